"""Implements the functions in `linux` with what macOS provides: select, process groups, ps, and a
guardian process.

Wherever possible, they behave like the Linux versions. docs/macos.md lists the exceptions. Only
single-node jobs are supported.

macOS doesn't have parent-death signals or subreapers. Therefore a separate process, the guardian
(`processes/guardian.py`), ends the workers if the spawner is killed. Each worker reports itself to
the guardian through a pipe before its program starts, and the spawner reports each worker that it
reaps.
"""

import os
import select
import selectors
import signal
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from relight.base.errors import UsageError

if TYPE_CHECKING:
    from subprocess import Popen

IN_MODIFY = IN_MOVED_TO = 0
_MAX_FILES = 1024
"""FD_SETSIZE: the number of descriptors that select(2) supports."""
_PS = "/bin/ps"
_PARENT_POLL_S = 0.2
_SETTLE_S = 2.0
"""How long to wait for killed processes to exit."""
END_LIMIT_S = 10.0
REFUSED_LIMIT_S = 1.0
own_children: set[int] = set()
"""Always empty, because this process doesn't adopt orphans."""

SPAWNER_STAYS = False
"""Whether a single spawner can start the workers of several generations. The guardian doesn't
support that.
"""

Selector = selectors.SelectSelector
"""On macOS, select(2) supports all kinds of terminals, but kqueue(2) and poll(2) do not."""


class _GuardianPipes(NamedTuple):
    """The pipes between this process, a process that it has forked, and that process's guardian.

    The `ended` field becomes readable when the forked process has exited, and `swept` when the
    guardian has ended. The guardian knows that this process is running as long as `alive` is open.
    """

    ended: int
    swept: int
    alive: int


_guards: dict[int, _GuardianPipes] = {}
_pipe = -1
"""The spawner's pipe to the guardian."""
_kept: set[int] = set()
_running: set[int] = set()
_reaped: set[int] = set()


SUPPORTS_ALL_FLAGS = False
"""Whether this system has what all flags of `relight run` need."""


def require_linux(what: str) -> None:
    """Reject a feature that only works on Linux.

    Raises:
        UsageError: always.
    """
    raise UsageError(f"{what} needs Linux", hint="docs/macos.md lists the features available here")


# Processes.


def fork() -> int:
    """Fork the spawner and start its guardian.

    Raises:
        OSError: if no process can be forked, or no descriptor is left.
    """
    global _pipe
    told, tell = os.pipe()
    ended, ends = os.pipe()
    swept, sweeps = os.pipe()
    watched, alive = os.pipe()
    try:
        _start_guardian(told, sweeps, watched)
        os.set_blocking(tell, False)  # a stopped guardian must not block writers
        pid = os.fork()
    except OSError:
        for fd in (told, tell, ended, ends, swept, alive):
            os.close(fd)
        raise
    finally:
        for fd in (sweeps, watched):
            os.close(fd)
    if pid == 0:
        for fd in (ended, swept, alive):
            os.close(fd)
        for guard in _guards.values():
            for fd in guard:
                os.close(fd)
        _guards.clear()
        _pipe = tell
        _kept.update((tell, ends))
        _kept.add(told)  # otherwise, SIGPIPE would end the workers if the guardian were killed
        _running.clear()
        _reaped.clear()
        _tell(f"holder {os.getpid()}")
        return 0
    for fd in (told, tell, ends):
        os.close(fd)
    _guards[pid] = _GuardianPipes(ended, swept, alive)
    return pid


def _start_guardian(told: int, sweeps: int, watched: int) -> None:
    """Start the guardian in its own session, with its own command line and without a living parent,
    so that the guardian survives if the agent is killed by name or by process group.
    """
    mask = block_signals()  # the guardian inherits the mask
    try:
        pid = os.fork()
        if pid == 0:
            _become_guardian(told, sweeps, watched)
    finally:
        restore_signals(mask)
    if reap(pid, END_LIMIT_S) != 0:
        raise OSError(0, "the guardian of the workers could not be started")


def _become_guardian(told: int, sweeps: int, watched: int) -> None:
    status = 1
    try:
        os.setsid()
        if os.fork():
            status = 0
            return
        top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        program = (
            f"import sys; sys.path.insert(0, {top!r})\n"
            "from relight.processes.guardian import watch\n"
            f"watch({told}, {sweeps}, {watched})\n"
        )
        readable, writable = os.pipe()
        os.write(writable, program.encode(errors="surrogateescape"))
        os.dup2(readable, 0)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.dup2(null, 2)
        for fd in (told, sweeps, watched):
            os.set_inheritable(fd, True)
        close_all_but({0, 1, 2, told, sweeps, watched})
        os.execv(sys.executable, (sys.executable, "-I", "-S"))
    finally:
        os._exit(status)


class Child:
    """A reference to a process that was forked with `fork`. Once the process has been reaped, no
    more signals are sent to it.

    Raises:
        OSError: only on Linux.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._guard = _guards.pop(pid)
        self._reaped = self._closed = False

    def fileno(self) -> int:
        """Return a descriptor that becomes readable once the process has exited."""
        return self._guard.ended

    def send(self, number: int) -> None:
        """Send the process a signal if it still exists."""
        if not self._reaped:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)

    def guards(self, pid: int) -> None:
        """Do nothing, because the forked process is the spawner itself."""
        del pid

    def is_stopped(self) -> bool:
        """Return whether the process is stopped."""
        return is_stopped(self.pid)

    def reap(self) -> int:
        """Reap the process once `fileno` is readable, and return its exit code, negative for a
        signal.
        """
        status = reap(self.pid, END_LIMIT_S)
        self._reaped = True
        return os.waitstatus_to_exitcode(status or 0)

    def kill_orphans(self) -> bool:
        """Return whether the process was killed and the guardian still has to kill its orphans."""
        return not select.select([self._guard.swept], [], [], 0)[0]

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Close the descriptors."""
        self._closed = True
        for fd in self._guard:
            os.close(fd)


def stand_guard(agent: int, of: str = "worker", held: Collection[int] = ()) -> int:
    """Do nothing, and return -1 instead of a descriptor. As far as possible, the guardian takes
    over the guard's work.
    """
    del agent, of, held
    return -1


def fork_worker() -> int:
    """Fork a worker, which reports itself to the guardian. Called in the spawner."""
    pid = os.fork()
    if pid == 0:
        _tell(f"began {os.getpid()}")
    else:
        _running.add(pid)
    return pid


def reap_any() -> tuple[int, int]:
    """Reap a child that has ended, and report it to the guardian. Return its pid, or 0 if no child
    has ended, and its waitpid(2) status. Called in the spawner.

    Raises:
        ChildProcessError: if this process doesn't have any children.
    """
    reaped, status = os.waitpid(-1, os.WNOHANG)
    if reaped in _running:
        _running.remove(reaped)
        _reaped.add(reaped)
        _tell(f"ended {reaped}")
    return reaped, status


def _tell(line: str) -> None:
    with suppress(OSError):  # the guardian was killed, or was stopped and its pipe is full
        os.write(_pipe, line.encode() + b"\n")


def ends_within(process: "Popen[bytes]", seconds: float) -> bool:
    """Wait up to a time limit for a child to end, and return whether it has."""
    from subprocess import TimeoutExpired

    try:
        process.wait(seconds)
    except TimeoutExpired:
        return False
    return True


def signal_if(pid: int, number: int, still: Callable[[], bool]) -> None:
    """Send a signal to a process if `still()` confirms that the pid still refers to the same
    process.

    Raises:
        ProcessLookupError: if no process has this pid.
    """
    os.kill(pid, 0)
    if still():
        os.kill(pid, number)


def catches_signal(pid: int, number: int, unknown: bool) -> bool:
    """Return `unknown`, because this system does not show which signals a process handles."""
    del pid, number
    return unknown


def die_with_parent(number: int) -> None:
    """Do nothing, because the guardian takes care of this."""
    del number


def become_subreaper(is_one: bool = True) -> None:
    """Do nothing, because the guardian takes care of this as far as possible."""
    del is_one


def adopt_orphans() -> None:
    """Do nothing, because the guardian takes care of this as far as possible."""


def end_with_parent(pid: int, number: int) -> bool:
    """Have this process receive a signal when its parent `pid` exits, or return False if the parent
    has already exited.
    """
    import _thread

    def look() -> None:
        while os.getppid() == pid:
            time.sleep(_PARENT_POLL_S)
        os.kill(os.getpid(), number)

    _thread.start_new_thread(look, ())
    return os.getppid() == pid


class _PsRow(NamedTuple):
    pid: int
    parent: int
    session: int
    gone: bool


def _processes() -> list[_PsRow]:
    """Return all processes on this machine except ps itself. The result is empty if ps is not
    installed.
    """
    readable, writable = os.pipe()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        actions = [(os.POSIX_SPAWN_DUP2, writable, 1)]
        command = (_PS, "-A", "-o", "pid=", "-o", "ppid=", "-o", "stat=")
        try:
            ps = os.posix_spawn(_PS, command, {}, file_actions=actions, setsigmask=())
        finally:
            os.close(writable)
        with open(readable, "rb") as file:
            rows = [row.split() for row in file]
        reap(ps, END_LIMIT_S)
    except OSError:
        return []
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    found = []
    for row in rows:
        pid = int(row[0])
        try:
            session = os.getsid(pid)
        except OSError:
            continue  # it has ended
        if pid != ps:
            found.append(_PsRow(pid, int(row[1]), session, row[2].startswith(b"Z")))
    return found


def descendants(running: Collection[int], reaped: Collection[int]) -> list[int]:
    """Return the workers and all of their descendants that can be found, parents before children. A
    process can be found if it is in a worker's session, or if it has an unbroken chain of living
    ancestors up to a process in that session.

    Args:
        running: workers that have not been reaped.
        reaped: workers that have been reaped; a process that now has such a pid is unrelated, and
            so are the processes in its session.
    """
    processes = {process.pid: process for process in _processes()}
    if not processes:
        return list(running)
    own = os.getpid()
    strangers = {pid for pid in reaped if pid in processes}
    sessions = (set(running) | set(reaped)) - strangers
    found: dict[int, bool] = {}
    more = [p.pid for p in processes.values() if p.session in sessions or p.parent == own]
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    while more:
        pid = more.pop()
        if pid not in found and pid != own:
            found[pid] = not processes[pid].gone
            more += children.get(pid, ())
    return [pid for pid, runs in found.items() if runs]


def sweep(running: Collection[int], reaped: Collection[int]) -> None:
    """Kill the processes that `descendants` returns, and wait until they have exited or are stuck
    in the kernel.

    All of these processes are stopped before the first one is killed, and children are killed
    before their parents. Otherwise, if this process were killed halfway through, processes whose
    parents had already exited could no longer be found.
    """
    stopped: list[int] = []
    while more := [pid for pid in descendants(running, reaped) if pid not in stopped]:
        _kill(more, signal.SIGSTOP)
        stopped += more
    end = time.monotonic() + _SETTLE_S
    _kill(stopped[::-1], signal.SIGKILL)
    while stopped and time.monotonic() < end:
        stopped = descendants(running, reaped)
        _kill(stopped[::-1], signal.SIGKILL)


def _kill(pids: Collection[int], number: int) -> None:
    for pid in pids:
        with suppress(PermissionError, ProcessLookupError):
            os.kill(pid, number)


def kill_children() -> dict[int, bool]:
    """Kill this process's workers and their descendants. Return a map from the pid of each worker
    that has not been reaped yet to False.
    """
    sweep(_running, _reaped)
    _reaped.clear()
    _tell("swept")
    return dict.fromkeys(_running, False)


def reap(pid: int, limit_s: float) -> int | None:
    """Reap a child that has ended or is about to end. Return its waitpid(2) status, or None if the
    child is still running after the time limit.

    Raises:
        ChildProcessError: if it has already been reaped.
    """
    end = time.monotonic() + limit_s
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        if time.monotonic() >= end:
            return None
        time.sleep(0.001)


def name_and_user(pid: int) -> tuple[str, str]:
    """Return a process's short name and the name of its user. Both are empty if the process has
    exited.
    """
    return os.path.basename(_ps("comm", pid)), _ps("user", pid)


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, by a signal or a debugger."""
    return _ps("stat", pid).startswith("T")


def is_running(pid: int) -> bool:
    """Return whether a process has neither ended nor been stopped."""
    return not _ps("stat", pid).startswith(("T", "Z")) and parent_pid(pid) > 0


def tree(pid: int) -> list[int]:
    """Return the pids of a process's descendants, parents before children. Descendants whose
    parents have exited are not found.
    """
    processes = _processes()
    found = [process.pid for process in processes if process.parent == pid]
    for each in found:  # the list grows in the loop
        found += [process.pid for process in processes if process.parent == each]
    return found


def child_pids(pid: int) -> list[int]:
    """Return an empty list, because each call would have to run ps, and because orphans have a
    different parent.
    """
    del pid
    return []


def zombie(pid: int) -> tuple[str, int]:
    """Return an empty name and 0, because ps doesn't show how a process ended."""
    del pid
    return "", 0


def is_uninterruptible(pid: int) -> bool:
    """Return False, because each check would have to run ps."""
    del pid
    return False


def parent_pid(pid: int) -> int:
    """Return the pid of a process's parent, or 0 if the process has no parent or has ended."""
    parent = _ps("ppid", pid)
    return int(parent) if parent.isdecimal() else 0


def usage(pid: int) -> tuple[float, int, int]:
    """Return zeros, because resource usage is only needed for --hang-timeout, which this system
    does not support.
    """
    del pid
    return 0.0, 0, 0


def resident(pid: int) -> int:
    """Return the memory of a process in bytes, including shared pages, or 0 if it can't be read."""
    return memory(pid)


def memory(pid: int) -> int:
    """Return the memory of a process in bytes, including shared pages, or 0 if it can't be read."""
    size = _ps("rss", pid)
    return int(size) * 1024 if size.isdecimal() else 0


def _ps(column: str, pid: int) -> str:
    import subprocess

    command = (_PS, "-o", f"{column}=", "-p", str(pid))
    try:
        ps = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return ""
    try:
        return ps.communicate(timeout=_SETTLE_S)[0].strip()
    except subprocess.TimeoutExpired:
        ps.kill()
        return ""


def block_signals() -> Any:
    """Block all signals in this thread, and return the previous mask for `restore_signals`."""
    return signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def restore_signals(mask: Any) -> None:
    """Set this thread's signal mask to the one that `block_signals` returned."""
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def unblock_sigchld() -> None:
    """Unblock SIGCHLD in this thread."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def rename_process(name: str, *, exactly: bool = False) -> None:
    """Do nothing, because processes can't be renamed on this system."""
    del name, exactly


# Descriptors.


def close_all_but(keep: Collection[int]) -> None:
    """Close all of this process's descriptors except these and the ones that its guardian needs."""
    begin = 0
    for fd in (*sorted({*keep, *_kept}), open_files()):
        if begin < fd:  # closerange(0, 0) would close all of them
            os.closerange(begin, fd)
        begin = fd + 1


def reopen(fd: int, flags: int) -> int:
    """Return a new descriptor, with its own flags, for the same terminal.

    Raises:
        OSError: if `fd` is not a terminal, or belongs to another user.
    """
    return os.open(os.ttyname(fd), flags)


def anonymous_file(name: str) -> int:
    """Return the descriptor of a new file that has already been removed from its directory.

    Raises:
        OSError: if it can't be created.
    """
    import tempfile

    fd, path = tempfile.mkstemp(prefix=f"{name}-")
    os.unlink(path)
    return fd


def open_files() -> int:
    """Return how many files this process may have open, at most the number that `Selector`
    supports.
    """
    files = os.sysconf("SC_OPEN_MAX")
    return _MAX_FILES if files < 0 else min(files, _MAX_FILES)


def max_open_files(hard: int) -> int:
    """Return how many files this process could have open if the system's hard limit is `hard`."""
    return _MAX_FILES if hard < 0 else min(hard, _MAX_FILES)


def inotify_open(*watched: tuple[str, int]) -> int:
    """Return -1, because macOS doesn't have inotify. Files are polled instead."""
    del watched
    return -1


def inotify_watch(fd: int, path: str, mask: int) -> int:
    """Return -1, because macOS doesn't have inotify."""
    del fd, path, mask
    return -1


def cpus() -> int:
    """Return how many CPUs this machine has."""
    return os.cpu_count() or 1
