"""Lets a warm spawner outlive its job: records what its imports depend on, and drops all state that
belongs to the job that started it.
"""

import contextlib
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from relight.host import linux
from relight.host.process_handle import ProcessHandle
from relight.preload.argv_tracer import Arguments
from relight.preload.env_tracer import Watch
from relight.preload.file_tracer import Inputs
from relight.preload.importer import check_shadows
from relight.preload.lazy_modules import LATER, NATIVE
from relight.preload.speculative_import import UnfitError
from relight.preload.warm_process import JobConnection, WarmProcess
from relight.warm import fork_compat, warm_sockets
from relight.warm.warm_sockets import BeingMade, Description


class Lasting:
    """Records what imports depend on, from the time when this object is created.

    Attributes:
        until: processes that this process must not outlive.
        lock: the descriptor of a file that stays locked until jobs can find this process.
        arguments: the tracer that finds modules that read the script's arguments.
        inputs: the tracer that finds modules that read a file which changed after this process
            started.

    Args:
        setup: the agent's instructions (`warm/preloading.py`).
        loaded: the names of the modules that every worker has loaded by this time.

    Raises:
        UnfitError: if a process that this process must not outlive has ended.
    """

    def __init__(self, setup: dict[str, Any], loaded: set[str]) -> None:
        self._setup = setup
        self._loaded = loaded
        self.until = _open(setup["keep"]["until"])
        self.lock: int = setup["keep"]["lock"]
        self.inputs = Inputs(setup["keep"]["began_ns"])
        self.arguments = Arguments(sys.argv[0])
        self._variables = fork_compat.NOTHING
        self._modules = 0
        self._shown = b""

    def show(self, guard: int) -> None:
        """Record in the locked file which process is importing, so that `relight warm` can read it.

        Args:
            guard: the pid of this process's guard.
        """
        being_made = BeingMade(
            guard,
            self._setup["keep"]["script"],
            len(self._setup["modules"]),
            time.monotonic(),
            self._setup["low_priority"],
        )
        self._shown = being_made.text()
        with contextlib.suppress(OSError):  # the disk is full; the lock itself still works
            os.truncate(self.lock, 0)
            os.pwrite(self.lock, self._shown, 0)

    def show_progress(self) -> None:
        """Record in the locked file how many modules have been imported so far."""
        with contextlib.suppress(OSError):
            imported = len(sys.modules) - len(self._loaded)
            os.pwrite(self.lock, b"%9d" % imported, len(self._shown))

    def end_imports(self, variables: Mapping[str, str], watch: Watch) -> None:
        """Record the dependencies of the imports, and clear this process's environment.

        Args:
            variables: the environment during the imports.
            watch: the tracer that has recorded which variables were read.

        Raises:
            UnfitError: if a file changed during the imports.
        """
        self.arguments.end()
        if changed := self.inputs.end():
            raise UnfitError("", changed, lasting=False)
        mine = {*self._setup["own"], *self._setup["writes"]}
        self._variables = fork_compat.import_variables(
            {name: value for name, value in variables.items() if name not in mine},
            self.inputs.words.union(*watch.reads.values()) - mine,
            {*fork_compat.NATIVE, *NATIVE, *self.inputs.variables}.union(*watch.prefixes.values()),
            LATER,
        )
        self._modules = len(sys.modules) - len(self._loaded)
        os.environ.clear()
        linux.show_environment({})

    def serve(self, control: socket.socket, agent: int) -> JobConnection:
        """Serve agents, starting with the agent that has this pid. Return only in a child, which
        serves a single job.

        Raises:
            OSError: if the socket can't be created, or no descriptor is left.
        """
        linux.rename_process(f"warm process of {self._setup['keep']['script']}", exactly=True)
        keep = self._setup["keep"]
        process = WarmProcess(
            keep["socket"],
            keep["stays_s"],
            self.until,
            self._describe,
            is_ahead=keep["is_ahead"],
        )
        for path in keep["replaces"]:  # the old process accepts no further jobs and ends
            with contextlib.suppress(OSError):
                os.unlink(path)
        warm_sockets.unlock(self.lock)
        return process.run(control, agent)

    def _describe(self, **progress: Any) -> Description:
        return Description(
            pid=os.getpid(),
            script=self._setup["keep"]["script"],
            asked=self._setup["modules"],
            learned=self._setup["learned"],
            modules=self._modules,
            writes=tuple(self._setup["writes"]),
            facts=fork_compat.collect(),
            variables=self._variables,
            why_not=self.inputs.changed() or self._shadow(),
            **progress,
        )

    def _shadow(self) -> str:
        """Describe a module next to the script that would now shadow a preloaded module."""
        try:
            check_shadows(self._setup["argv"], sys.modules.keys() - self._loaded)
        except UnfitError as error:
            return str(error)
        return ""


def _open(pids: Sequence[int]) -> list[ProcessHandle]:
    """Return references to processes."""
    found = []
    for pid in pids:
        try:
            found.append(ProcessHandle(pid))
        except OSError as error:
            why = f"it was not to outlive process {pid}: {error.strerror}"
            raise UnfitError("", why, lasting=False) from None
    return found
