"""Determines which modules a warm spawner imports. Either the user specifies them or, with
--preload=auto, they are the modules that workers imported in earlier jobs with the same script
(warm/import_profile).
"""

import sys
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property

from relight.base.values import AUTO, BACKGROUND
from relight.warm.import_profile import LearnedFile
from relight.warm.worker_program import WorkerProgram


class ImportList:
    """The modules to preload for one job.

    Args:
        worker_program: the workers' program, including the script.
        modules: the names that the user specified, or AUTO, or BACKGROUND.
    """

    def __init__(self, worker_program: WorkerProgram, modules: Sequence[str]) -> None:
        self.is_auto = tuple(modules) in ((AUTO,), (BACKGROUND,))
        self.names = [] if self.is_auto else list(modules)
        self._worker_program = worker_program

    @cached_property
    def learned(self) -> LearnedFile | None:
        """The script's profile, if --preload=auto is used. It is read on first use."""
        return LearnedFile(self._worker_program) if self.is_auto else None

    def add(self, imports: Iterable[str]) -> None:
        """Add the modules that workers have imported, except those that can't be preloaded."""
        if self.learned is not None:
            names = dict.fromkeys((*self.names, *imports))
            self.names = self.learned.known.without_unfit(names)

    def lacking(self, imports: Iterable[str], asked: Collection[str]) -> list[str]:
        """Return the installed modules that workers have imported but that are missing from a
        process with the modules `asked`.
        """
        learned = self.learned
        if learned is None:
            return []
        new = learned.known.without_unfit(name for name in imports if name not in asked)
        return [name for name in new if learned.is_installed(name)]

    def write(self, unfit: dict[str, str], directories: list[str]) -> None:
        """Store, for the next job with this script, which modules can be imported before a fork.

        Args:
            unfit: the modules in the list that can't be imported before a fork, with the reasons.
            directories: the directories in which modules were found.
        """
        if self.learned is not None:
            self.learned.write(self.names, unfit, directories)
            self.names = self.learned.known.fit

    def third_party(self) -> Sequence[str]:
        """Return the modules that do not belong to Python itself or, failing that, all modules.
        A script usually sets environment variables before it imports third-party modules such as
        torch, but often after it imports standard library modules such as os.
        """
        own = sys.stdlib_module_names
        return [name for name in self.names if name.partition(".")[0] not in own] or self.names
