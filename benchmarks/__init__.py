"""Measurements, side by side with torch's own launcher where it has the same thing.

relight's bytecode is made first: pip makes it when it installs a wheel, as it has made torch's, but
not for a checkout.
"""

import compileall
from pathlib import Path

import relight

compileall.compile_dir(Path(relight.__file__).parent, quiet=1)
