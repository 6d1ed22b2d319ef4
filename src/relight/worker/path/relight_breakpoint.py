"""Makes `relight.worker.breakpoint` importable in a Python installation that doesn't have relight.
The directory that contains this file, and nothing else, is on the workers' PYTHONPATH. If the
Python version is too old for the module, pdb is used instead.
"""

import os
import sys

_ROOT = os.path.abspath(__file__)
for _ in range(4):
    _ROOT = os.path.dirname(_ROOT)

sys.path.append(_ROOT)
try:
    from relight.worker.breakpoint import wait
except Exception:
    from pdb import set_trace as wait  # type: ignore[assignment]
finally:
    sys.path.remove(_ROOT)

__all__ = ["wait"]
