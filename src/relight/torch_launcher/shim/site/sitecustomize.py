"""Loads the hook in programs that `relight exec` starts, and then loads the sitecustomize module
that this module hides.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
try:
    import relight_hook  # type: ignore[import-not-found]

    relight_hook.install()
except Exception as error:  # the hook must never break the program
    sys.stderr.write(f"relight: note: torchrun is not replaced here: {error!r}\n")
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != HERE]

own = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
except ImportError as error:
    if error.name != "sitecustomize":
        raise
finally:
    if own is not None:
        sys.modules.setdefault("sitecustomize", own)
