"""Jobs described once: `import relight.job as specs` in a component file.

Importing this costs little: what is not a type of the description is loaded when it is used.
"""
