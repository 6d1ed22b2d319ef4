"""Makes programs that start torchrun start relight instead, without changing them.

    bin/torchrun            the entry of PATH below `relight exec`
    site/sitecustomize.py   loads the hook there, through PYTHONPATH
    site/relight_hook.py    the hook: `relight shim install` loads it through a .pth file

Other Pythons load these files by their paths, before relight can be imported there; nothing in
relight imports them. The hook also runs in Pythons that are too old for relight.
"""
