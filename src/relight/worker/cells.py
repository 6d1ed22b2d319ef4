"""Code that is sent by value keeps its place: a cell of a notebook, an interactive line, a script.

cloudpickle (3.1) calls the file of such code `<dynamic-code>`, so that equal functions have equal
pickles. A traceback would show neither the cell nor its text. So a code object is sent with the
name of its file, and the text of a file that only the caller has goes along.
"""

import io
import linecache
import os
import sys
import types
from collections.abc import Callable
from typing import Any

Sources = dict[str, list[str]]
"""The lines of files that only the caller has, by the names that tracebacks show."""
_MOST = 1 << 20
"""Characters of the text that is sent; tracebacks lack source lines beyond that."""


def dumps(value: Any) -> tuple[bytes, Sources]:
    """Return a pickle of functions and their arguments, and the sources of the functions.

    Raises:
        ImportError: if cloudpickle is not installed.
        Exception: if a part of the value can't be pickled.
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
    """Return the code object that was sent, in its file."""
    return make(*arguments).replace(co_filename=file)


def take(sources: Sources) -> None:
    """Let tracebacks of this process show these lines."""
    for file, lines in sources.items():
        size = sum(map(len, lines))
        linecache.cache[file] = size, None, lines, file  # None prevents a lookup on the disk


def _shown(file: str) -> str:
    """Return the name under which the user knows a file: `Cell In[3]` in a notebook."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    compiler = getattr(get_shell() if get_shell is not None else None, "compile", None)
    number = getattr(compiler, "_filename_map", {}).get(file)  # IPython 7.20 to 9
    return file if number is None else f"Cell In[{number}]"


def _add(sources: Sources, file: str, shown: str) -> None:
    if shown == file and os.path.exists(file):
        return
    lines = linecache.getlines(file)
    size = sum(len(line) for each in (lines, *sources.values()) for line in each)
    if lines and size <= _MOST:
        sources[shown] = lines
