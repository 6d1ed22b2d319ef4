"""Gives each worker its own copy of the temporary directories that imports have created.

Otherwise, forked workers would share such a directory, and the first worker to end would remove it.
A `tempfile.TemporaryDirectory` whose name has not been read yet can be recreated in each worker.
wandb has such a directory, so this concerns every module that imports wandb. Any other temporary
file or directory makes the module unfit for preloading.
"""

import gc
import os
import sys
import weakref
from types import FrameType
from typing import Any, NamedTuple

from relight.host.files import remove_tree
from relight.preload.env_tracer import importing_module
from relight.preload.speculative_import import UnfitError


class _Made(NamedTuple):
    """A temporary file or directory, with the module that created it and the arguments that were
    passed to mkdtemp.
    """

    module: str
    suffix: Any
    prefix: Any
    folder: Any


class Temporary:
    """Records temporary files and directories that are created after this object has been
    created.
    """

    def __init__(self) -> None:
        self._made: dict[str, _Made] = {}
        self._renewed: list[tuple[Any, _Made]] = []
        self._notes = True
        sys.addaudithook(self._note)

    def end(self) -> None:
        """Stop recording."""
        self._notes = False

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._notes and event in ("tempfile.mkdtemp", "tempfile.mkstemp"):
            frame: FrameType = sys._getframe(1)
            known = frame.f_locals.get
            made = _Made(importing_module(frame), known("suffix"), known("prefix"), known("dir"))
            self._made[os.fsdecode(arguments[0])] = made

    def check(self) -> None:
        """Remove the files that were created since the last call. Raise UnfitError if a module
        created something that can't be recreated.
        """
        made = {path: by for path, by in self._made.items() if os.path.lexists(path)}
        self._made.clear()
        directories = _unasked(made) if made else {}
        for path in made:
            remove_tree(path) if os.path.isdir(path) else os.unlink(path)
        for path, by in made.items():
            if path not in directories:
                reason = f"{by.module} creates a temporary file or directory: {path}"
                raise UnfitError(by.module, reason)
            self._renewed.append((directories[path], by))

    def renew(self) -> None:
        """Recreate the temporary directories in a worker."""
        for directory, made in self._renewed:
            import tempfile

            old, new = directory.name, tempfile.mkdtemp(made.suffix, made.prefix, made.folder)
            directory.name = new
            known = directory._finalizer.detach()
            if known is not None:
                _, function, _, named = known
                named = {k: v.replace(old, new) if type(v) is str else v for k, v in named.items()}
                directory._finalizer = weakref.finalize(directory, function, new, **named)


def _unasked(made: dict[str, _Made]) -> dict[str, Any]:
    """Return the objects of the directories that are empty and whose names are not referenced
    anywhere else.
    """
    tempfile: Any = sys.modules["tempfile"]
    found = {}
    for thing in gc.get_objects():
        if type(thing) is tempfile.TemporaryDirectory and thing.name in made:
            known = thing._finalizer.peek()
            own = [made, thing, vars(thing), *(known[2:] if known else ())]
            holders = [x for x in gc.get_referrers(thing.name) if all(x is not y for y in own)]
            if known and not holders and not os.listdir(thing.name):
                found[thing.name] = thing
    return found
