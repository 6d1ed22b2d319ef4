"""`relight debug`: connects this terminal to pdb in a rank that is waiting at a breakpoint."""

import json
import select
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relight.base import env
from relight.base.errors import EXIT_OK, MachineError, UsageError
from relight.base.fields import printable
from relight.base.text import LineBuffer, format_names
from relight.base.values import parse_count, whole
from relight.cli.inspect import ranks
from relight.cli.jobs.common import HANDLE, Page, read_arguments
from relight.core.diagnosis.stack_text import few_or_many
from relight.flags import site
from relight.flags.spec import Flag
from relight.host import system
from relight.processes import breakpoints
from relight.runner import audit

PAGE = Page(
    "debug [flags] PID|JOB",
    (
        "Attaches this terminal to pdb in a rank that called breakpoint(). Ctrl-D detaches; the",
        "rank keeps waiting and can be attached again. `continue` runs it to the next breakpoint;",
        "while it runs, ctrl-C detaches.",
        "PID is an agent (relight run) or a rank. JOB is the handle, id or name of a job with",
        "processes on this machine.",
    ),
    (
        Flag("rank", parse_count, None, "K", "which rank, if several are waiting"),
    ),
    (
        "relight debug 4711 --rank 3                        (the rank prints its PID)",
        f"relight debug {HANDLE}",
    ),
    "exit code: 0 detached, or the rank has exited; 2 no such job, process or rank; 4 not at a "
    "breakpoint",
)  # fmt: skip
_SOON_S = 1.0
"""If a pdb command takes longer than this, a message is printed."""
_NONE = -1
"""The rank number used for a process that is not a rank."""
_DELIMITERS = " \t\n`@#$%^&*()=+[{]}\\|;:'\",<>?"
"""The characters that delimit words for completion, as in pdb."""


def main(argv: list[str]) -> int:
    """Run `relight debug`.

    Raises:
        RelightError: if the rank is not on this machine, or is not waiting at a breakpoint.
    """
    parsed = read_arguments(argv, PAGE, 1, 1, "the pid of a process, or a job")
    target = parsed.command[0]
    found = ranks.resolve(target, "debug")
    rank, pid = _choose(found, breakpoints.waiting(), parsed.values["rank"], target)
    who = f"rank {rank}" if found.get(rank) == pid else f"process {pid}"
    terminal = _Terminal(breakpoints.connect(pid), who)
    variables = env.read()
    audit.record(variables, site.load(variables), "debug", target, f"{who}, pid {pid}")
    print(terminal.run())
    return EXIT_OK


def _choose(
    found: Mapping[int, int], waiting: Mapping[int, bool], rank: int | None, target: str
) -> tuple[int, int]:
    """Return the rank and the process to attach to.

    Args:
        found: the pids of the target's ranks on this machine, by rank.
        waiting: the pids that are waiting at a breakpoint. The value is True if no terminal is
            attached to that process.
        rank: the rank on the command line, or None.
        target: the pid or job on the command line.
    """
    if rank is not None and rank not in found:
        here = few_or_many(sorted(found)) if found else "none"
        raise UsageError(
            f"rank {rank} of {target} is not on this machine; here: {here}",
            hint="run relight debug on that rank's node",
        )
    process = whole(target)
    if process is not None and waiting.get(process) and rank is None:
        return next((each for each, pid in found.items() if pid == process), _NONE), process
    asked = found if rank is None else {rank: found[rank]}
    if not asked and process is not None:
        asked = {_NONE: process}
    # A child process of a rank, such as a DataLoader worker, may also be waiting.
    pids = [
        (each, one) for each, pid in sorted(asked.items())
        for one in (pid, *system.tree(pid)) if one in waiting
    ]  # fmt: skip
    free = [(each, one) for each, one in pids if waiting[one]]
    if len(free) == 1:
        return free[0]
    if free:
        raise _several(free, target)
    if pids:
        raise MachineError(
            f"another terminal is attached to rank {pids[0][0]} (pid {pids[0][1]})",
            hint="detach there first, with ctrl-D",
        )
    where = f"no rank of {target} is" if rank is None else f"rank {rank} of {target} is not"
    raise MachineError(
        f"{where} at a breakpoint on this machine",
        hint=f"{_attaching()}; relight stacks {target} shows each rank's position",
    )


def _attaching() -> str:
    """Return a hint on how to get a prompt in a rank that has not called `breakpoint()`. Since
    Python 3.14, pdb can attach to a running process (PEP 768).
    """
    how = "put breakpoint() in the script"
    if sys.version_info < (3, 14):
        version = ".".join(map(str, sys.version_info[:2]))
        return f"{how}; attaching to a running rank requires Python 3.14, but this is {version}"
    return f"{how}, or attach with python -m pdb -p PID"


def _several(free: Sequence[tuple[int, int]], target: str) -> UsageError:
    listed = format_names([f"rank {rank} (pid {pid})" for rank, pid in free])
    rank, pid = free[0]
    differ = len({each for each, _ in free}) == len(free)
    choice = f"{target} --rank {rank}" if differ else str(pid)
    return UsageError(
        f"{len(free)} processes are waiting at a breakpoint: {listed}",
        hint=f"relight debug {choice}",
    )


class _Terminal:
    """The user's terminal while it is attached to a rank.

    Args:
        connection: the connection to the rank.
        who: the name of the rank in messages.
    """

    def __init__(self, connection: socket.socket, who: str) -> None:
        self._connection = connection
        self._who = who
        self._messages = self._receive()
        self._found: list[str] = []
        self._runs = False
        self._complete()

    def run(self) -> str:
        """Relay prompts and commands until one side disconnects. Return the reason."""
        try:
            for message in self._messages:
                if "print" in message:
                    sys.stdout.write(printable(str(message["print"]), lines=True))
                    sys.stdout.flush()
                elif "ask" in message:
                    line = self._prompt(str(message["ask"]))
                    if line is None:
                        return f"\ndetached: {self._who} is still waiting"
                    self._send({"line": line})
                elif "runs" in message:
                    self._runs = True
        except KeyboardInterrupt:
            return f"\ndetached: {self._who} keeps running"
        except OSError:
            pass
        return f"{self._who} has ended"

    def _prompt(self, prompt: str) -> str | None:
        while True:
            try:
                return input(prompt)
            except EOFError:
                return None
            except KeyboardInterrupt:
                print()  # the line is discarded, as in a shell

    def _complete(self) -> None:
        """Enable completion with the tab key, if this Python has readline."""
        try:
            import readline
        except ImportError:
            return

        def complete(text: str, number: int) -> str | None:
            if number == 0:
                place = readline.get_begidx(), readline.get_endidx()
                self._send({"complete": [text, readline.get_line_buffer(), *place]})
                answer = next(self._messages, {})
                self._found = [str(each) for each in answer.get("candidates", ())]
            return self._found[number] if number < len(self._found) else None

        readline.set_completer(complete)
        readline.set_completer_delims(_DELIMITERS)
        readline.parse_and_bind("tab: complete")

    def _send(self, message: dict[str, Any]) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def _receive(self) -> Iterator[dict[str, Any]]:
        buffer = LineBuffer()
        while True:
            if self._runs and not select.select([self._connection], [], [], _SOON_S)[0]:
                print(f"{self._who} is running; ctrl-C detaches", flush=True)
            self._runs = False
            data = self._connection.recv(65536)
            if not data:
                return
            for line in buffer.feed(data):
                yield json.loads(line)
