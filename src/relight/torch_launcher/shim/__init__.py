"""Makes unmodified programs start relight where they would start torchrun.

    bin/torchrun            the `torchrun` on PATH under `relight exec`
    site/sitecustomize.py   loads the hook under `relight exec`, through PYTHONPATH
    site/relight_hook.py    the hook, also loaded by the .pth file that `relight shim install` adds

Other Python interpreters load these files by path, before relight can be imported. No module in
relight imports them. The hook also runs in Python versions that are too old for relight.
"""
