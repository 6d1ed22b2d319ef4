"""Provides the caller's `__main__` module, with its functions and classes, in a `relight.launch`
worker.

As in multiprocessing's spawn method, a worker imports the caller's script or module under the name
`__mp_main__`, so that code below `if __name__ == "__main__":` does not run. In a pickle, both names
refer to the same module in the caller and in the worker.
"""

import io
import os
import pickle
import runpy
import sys
import types
from typing import Any, NamedTuple

from relight.base.errors import UsageError

NAME = "__mp_main__"
importing = ""
"""The script or module that this process is importing as `__mp_main__`, or an empty string."""


class MainModule(NamedTuple):
    """The origin of a `__main__` module, which is a path or, for `python -m`, a module name."""

    origin: str
    is_module: bool
    argv: list[str]

    def load(self) -> None:
        """Import the script or module as this process's `__main__`.

        Raises:
            UsageError: if the script or module calls `relight.launch` while it is being imported.
            Exception: any exception that the script or module raises.
        """
        global importing
        argv, importing = sys.argv, self.origin
        sys.argv = [*self.argv]
        try:
            if self.is_module:
                found = runpy.run_module(self.origin, run_name=NAME, alter_sys=True)
            else:
                found = runpy.run_path(self.origin, run_name=NAME)
        finally:
            sys.argv, importing = argv, ""
        module = types.ModuleType(NAME)
        module.__dict__.update(found)
        sys.modules["__main__"] = sys.modules[NAME] = module


class Unpickler(pickle.Unpickler):
    """Loads a pickle whose `__main__` may come from another process."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.of_main = ""
        """The name of an object in `__main__` that the pickle refers to, or empty."""

    def find_class(self, module: str, name: str) -> Any:
        """Return an object that the pickle refers to.

        Raises:
            UsageError: if the object was in the caller's `__main__` module but isn't in this
                process's.
        """
        if module not in ("__main__", NAME):
            return super().find_class(module, name)
        self.of_main = name
        try:
            return super().find_class("__main__", name)
        except AttributeError:
            where = getattr(sys.modules["__main__"], "__file__", "__main__")
            raise UsageError(
                f"{name} is missing from {where} when a worker imports it",
                hint='define it above `if __name__ == "__main__":`, or pip install cloudpickle',
            ) from None


def detect_main_module() -> MainModule | None:
    """Return the origin of `__main__`, or None if no other process can import it. The result is
    None with `python -c`, with standard input and in a notebook.
    """
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", "__main__")
    if name != "__main__":  # the __main__ module in a directory
        return MainModule(name, True, sys.argv)
    path = os.path.abspath(getattr(main, "__file__", None) or "")
    return MainModule(path, False, sys.argv) if os.path.isfile(path) else None


def refuse_while_importing(caller: str = "launch") -> None:
    """Reject a call to `relight.launch` or a similar function if this process is a worker that is
    only importing the script.

    Raises:
        UsageError: if this process is such a worker.
    """
    if importing:
        raise UsageError(
            f"{importing} calls relight.{caller} when a worker imports it",
            hint='move the call below `if __name__ == "__main__":`, or pip install cloudpickle',
        )
