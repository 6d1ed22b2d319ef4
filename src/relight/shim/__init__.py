"""Makes unmodified programs start relight where they would start torchrun.

    bin/torchrun            the entry of PATH below `relight exec`
    site/sitecustomize.py   loads the hook there, through PYTHONPATH
    site/relight_hook.py    the hook: `relight shim install` loads it through a .pth file

Other Python interpreters load these files by path, before relight can be imported; nothing in
relight imports them. The hook also runs in Python versions that are too old for relight.
"""
