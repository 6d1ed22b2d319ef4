"""Ends the traceback that IPython shows for an error of the Python API in the caller's own line.

IPython skips frames with `__tracebackhide__`, but always shows the last one, which would be
relight's. An exception may replace the traceback with its method `_render_traceback_`
(IPython.core.interactiveshell.InteractiveShell.showtraceback).
"""

import os
import sys
from functools import partial
from types import TracebackType

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def render(error: BaseException) -> list[str]:
    """Return the lines that IPython shows for an exception raised by relight."""
    formatter = sys.modules["IPython"].get_ipython().InteractiveTB
    shown: list[str] = formatter.structured_traceback(
        type(error), error, callers_part(error.__traceback__)
    )
    return shown


def attach(error: BaseException) -> None:
    """Make IPython, if it is running, use `render` for an exception of the user's."""
    if "IPython" in sys.modules:
        error._render_traceback_ = partial(render, error)  # type: ignore[attr-defined]


def callers_part(found: TracebackType | None) -> TracebackType | None:
    """Return a traceback up to the first call of relight, or all of it if there is no caller."""
    kept, each = [], found
    while each is not None and not each.tb_frame.f_code.co_filename.startswith(_OURS):
        kept.append(each)
        each = each.tb_next
    part: TracebackType | None = None
    for each in reversed(kept):
        part = TracebackType(part, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return part or found
