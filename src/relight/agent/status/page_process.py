"""The status page for a job that was started with `--status`. The page runs in a separate process,
which queries the agent like any other client and exits when the agent exits.

As a result, the agent itself serves nothing over the network. The job is not affected if the page
crashes or has a large number of viewers. The page is served on the node with rank 0, which users
know as MASTER_ADDR. If that node is lost, the next node with rank 0 also starts a page.
"""

import os
import sys
from importlib.util import find_spec

from relight.agent.status.view import ServedJob
from relight.base.values import PageAddress
from relight.host.loop import Alarm
from relight.processes.helper import Helper

_POLL_S = 1.0
_END_S = 2.0
"""How long the page may take to inform open browsers that the job has ended."""


class PageProcess:
    """Starts the page once this node has rank 0.

    Args:
        job: the agent's job.
        where: where to serve the page.
    """

    def __init__(self, job: ServedJob, where: PageAddress) -> None:
        self._job, self._loop = job, job.loop
        self._command = [
            # -P: a module in the script's directory must not shadow a standard module.
            *(sys.executable, "-P", "-m", "relight", "status", "--web", "--until-end"),
            *("--listen", str(where), job.id),
        ]
        self._process: Helper | None = None
        self._next = Alarm(self._loop, self._poll)
        self._poll()

    def close(self) -> None:
        """Stop the page, and don't start another one."""
        self._next.set(None)
        process = self._process
        if process is None:
            return
        process.ask_to_end()
        self._loop.run_until(lambda: process.exitcode is not None, _END_S)
        process.close()

    def _poll(self) -> None:
        if not self._job.has_rank_0:
            self._next.set_after(_POLL_S)
            return
        if find_spec("relight.cli.inspect.status") is None:
            _report(
                "the launcher that is sent with a job does not include it; install relight on "
                "this node"
            )
            return
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            try:
                variables = self._job.config.command.env.variables
                self._process = Helper(self._command, variables, null, 2)
            finally:
                os.close(null)
        except OSError as error:
            _report(str(error))
            return
        self._process.watch(self._loop, lambda: None)


def _report(why: str) -> None:
    sys.stderr.write(f"relight: no status page: {why}\n")
