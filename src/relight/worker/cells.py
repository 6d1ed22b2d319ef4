"""Preserves the file and line of code that is sent by value, such as a notebook cell, an
interactive line or a script.

cloudpickle (3.1) changes the file name of such code to `<dynamic-code>`, so that identical
functions have identical pickles. A traceback would then show neither the cell nor its source. A
code object is therefore sent along with its file name. The source is included if only the caller
has the file.
"""

import io
import linecache
import os
import sys
import types
from collections.abc import Callable
from typing import Any

Sources = dict[str, list[str]]
"""The lines of files that only the caller has, keyed by the file names that tracebacks show."""
_MAX = 1 << 20
"""The maximum number of source characters to send. Source lines beyond that are missing from
tracebacks.
"""


def dumps(value: Any) -> tuple[bytes, Sources]:
    """Return a pickle of functions and their arguments, and the source of the functions.

    Raises:
        ImportError: if cloudpickle is not installed.
        Exception: if part of the value can't be pickled.
    """
    import cloudpickle

    sources: Sources = {}
    shown: dict[str, str] = {}

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if not isinstance(obj, types.CodeType):
                return super().reducer_override(obj)
            make, arguments = self.dispatch_table[types.CodeType](obj)
            file = obj.co_filename
            if file not in shown:
                shown[file] = _shown(file)
                _add(sources, file, shown[file])
            return code, (make, arguments, shown[file])

    with io.BytesIO() as file:
        Pickler(file).dump(value)
        return file.getvalue(), sources


def code(
    make: Callable[..., types.CodeType], arguments: tuple[Any, ...], file: str
) -> types.CodeType:
    """Restore the code object that was sent, with its original file name."""
    return make(*arguments).replace(co_filename=file)


def take(sources: Sources) -> None:
    """Make source lines available to tracebacks in this process."""
    for file, lines in sources.items():
        size = sum(map(len, lines))
        linecache.cache[file] = size, None, lines, file  # None prevents a lookup on disk


def _shown(file: str) -> str:
    """Return the name by which the user knows a file, such as `Cell In[3]` in a notebook."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    compiler = getattr(get_shell() if get_shell is not None else None, "compile", None)
    number = getattr(compiler, "_filename_map", {}).get(file)  # IPython 7.20 to 9
    return file if number is None else f"Cell In[{number}]"


def _add(sources: Sources, file: str, shown: str) -> None:
    if shown == file and os.path.exists(file):
        return
    lines = linecache.getlines(file)
    size = sum(len(line) for each in (lines, *sources.values()) for line in each)
    if lines and size <= _MAX:
        sources[shown] = lines
