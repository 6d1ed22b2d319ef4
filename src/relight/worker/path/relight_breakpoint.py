"""Makes `relight.worker.breakpoint` importable for a Python that lacks relight. This directory,
with nothing else in it, is on the workers' PYTHONPATH. A Python too old for it gets pdb.
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
