"""Implements the functions that need Linux. `portable` has the same functions for other systems.

Some of these functions call libc through ctypes to make system calls that Python's standard library
does not provide.
"""

import ctypes
import os
import select
import selectors
import signal
import struct
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from relight.host.files import open_descriptors, read_small, remove_tree
from relight.host.process_handle import ProcessHandle

if TYPE_CHECKING:
    from subprocess import Popen

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_NAME = 15
_PR_SET_MM = 35
_PR_SET_MM_MAP = 14
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
IN_MODIFY = 0x2  # linux/inotify.h
IN_MOVED_FROM = 0x40
IN_MOVED_TO = 0x80
IN_DELETE = 0x200
IN_DELETE_SELF = 0x400
IN_MOVE_SELF = 0x800
_MFD_CLOEXEC = 1  # linux/memfd.h
_MFD_ALLOW_SEALING = 2
_FOLDERS = ("/dev/shm", "/tmp", "/var/tmp")  # noqa: S108
"""Directories for the files that replace anonymous memory."""
END_LIMIT_S = 10.0
"""How long to wait for processes to exit after SIGKILL before giving up."""
REFUSED_LIMIT_S = 1.0
"""The same limit for processes that this user is not allowed to signal. They may never exit."""
_LET_END_S = 0.5
_START_MS = 100
"""How long the guard delays its own setup, so that it does not compete with the starting workers
for CPU time.
"""

# Functions are looked up once here, rather than in each forked process.
_libc = ctypes.CDLL(None)
_prctl = _libc.prctl
_sigmask = _libc.pthread_sigmask
_BLOCK, _UNBLOCK, _SET = int(signal.SIG_BLOCK), int(signal.SIG_UNBLOCK), int(signal.SIG_SETMASK)
_SIGSET = 128
"""The size in bytes of a sigset_t in glibc and musl."""
_ALL_SIGNALS = ctypes.create_string_buffer(_SIGSET)
_libc.sigfillset(_ALL_SIGNALS)
_SIGCHLD = ctypes.create_string_buffer(_SIGSET)
_libc.sigaddset(_SIGCHLD, int(signal.SIGCHLD))

Selector = selectors.DefaultSelector
"""The selector that the loop uses."""
own_children: set[int] = set()
"""The processes that this process has forked with `fork` and not yet reaped, and the children that
an earlier program in this process left behind. As a subreaper, this process also has orphans as
children, but they are not needed by anything.
"""


def fork() -> int:
    """Fork a process that isn't a worker: the spawner, a warm spawner or a helper."""
    pid = os.fork()
    if pid:
        own_children.add(pid)
    else:
        own_children.clear()
    return pid


fork_worker = os.fork
"""Fork a worker. Called in the spawner."""
SPAWNER_STAYS = True
"""Whether a single spawner can start the workers of several generations."""


SUPPORTS_ALL_FLAGS = True
"""Whether this system has what all flags of `relight run` need."""


def require_linux(what: str) -> None:
    """Do nothing, because Linux supports all features."""
    del what


class Child:
    """A reference to a process that was forked with `fork`. It ensures that no signal is ever sent
    to a reused pid.

    The forked process may be a guard (`stand_guard`) whose child is the spawner. The guard exits
    with the same status as its child. A warm process forks its guards itself
    (`preload/warm_process.py`).

    Attributes:
        pid: the spawner.

    Raises:
        OSError: if no descriptor can be opened.
    """

    def __init__(self, pid: int) -> None:
        self.pid = self._child = pid
        self._processes = [ProcessHandle(pid)]
        self._is_foreign = parent_pid(pid) != os.getpid()

    def guards(self, pid: int) -> None:
        """Record the pid of the spawner. If the spawner is not the forked process, the forked
        process is its guard.
        """
        if pid == self._child:
            return
        try:
            self._processes.append(ProcessHandle(pid))
        except OSError:
            return  # it has ended, or no descriptor is left
        if parent_pid(pid) == self._child:
            self.pid = pid
        else:
            self._processes.pop().close()

    def fileno(self) -> int:
        """Return a descriptor that becomes readable once the process has exited."""
        return self._processes[0].fileno()

    def send(self, number: int) -> None:
        """Send a signal to the process and to its guard, if they exist."""
        for process in self._processes:
            with suppress(ProcessLookupError, PermissionError):
                process.send(number)

    def is_stopped(self) -> bool:
        """Return whether the process or its guard is stopped."""
        return is_stopped(self.pid) or is_stopped(self._child)

    def reap(self) -> int:
        """Reap the process once `fileno` is readable, and return its exit code, which is negative
        for a signal.

        The exit code is unknown if the process was forked by another process. In that case, the
        process itself reports why it is exiting, unless it is killed.

        Raises:
            ChildProcessError: if this process has already reaped it.
        """
        if self._is_foreign:
            return -signal.SIGKILL
        return os.waitstatus_to_exitcode(reap(self._child, END_LIMIT_S) or 0)

    def kill_orphans(self) -> bool:
        """Kill the orphans that the process left behind when it was killed, and return whether some
        still exist. The orphans are now children of this process, because it is a subreaper.
        """
        return bool(reap_and_kill(own_children))

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return not self._processes

    def close(self) -> None:
        """Close the descriptors."""
        while self._processes:
            self._processes.pop().close()


def stand_guard(agent: int, of: str = "worker", held: Collection[int] = ()) -> int:
    """Fork and continue in the child, while the parent stays behind as the child's guard.

    If the agent exits, the guard kills all descendants. If the child is killed, the guard kills the
    child's orphans and exits with the same status. All signals are blocked.

    Args:
        agent: the parent of this process.
        of: the kind of processes that the child spawns; used in the guard's name.
        held: descriptors that the guard keeps open as long as it is running.

    Returns:
        The descriptor of a pipe to the guard. If the path of a directory is written to the pipe,
        the guard removes that directory at the end if the agent no longer exists.

    Raises:
        OSError: if the fork failed, or no descriptor is left.
    """
    become_subreaper()
    directory, to_guard = os.pipe()
    pid = os.fork()
    if pid:
        _guard(pid, agent, directory, of, held)
    os.close(directory)
    return to_guard


def _guard(pid: int, agent: int, directory: int, of: str, held: Collection[int]) -> None:
    """Guard a child of this process. Does not return."""
    try:
        poll = select.poll()
        die_with_parent(signal.SIGCONT)  # a stopped guard must notice that the agent has exited
        # Otherwise, the agent's peers would not notice that their connections have closed.
        close_all_but((directory, *held))
        child = ProcessHandle(pid)
        poll.register(child, select.POLLIN)
        if not poll.poll(_START_MS):
            _stay(agent, poll, of)
        status = 0
        if os.getppid() == agent:
            status = reap(pid, END_LIMIT_S) or 0
            if status:
                end_children(END_LIMIT_S)
        else:
            let_end(child)
        if os.getppid() != agent:
            left = end_children(END_LIMIT_S)
            scratch = os.read(directory, 1 << 16)
            if scratch:
                remove_tree(os.fsdecode(scratch))
            _log_left(agent, left)
        end_as(status)
    finally:
        os._exit(1)


def _stay(agent: int, poll: select.poll, of: str) -> None:
    """Run as the guard: wait until the agent or the child has exited."""
    os.setsid()
    rename_process(f"{of} guard of {agent}")
    try:
        poll.register(ProcessHandle(agent), select.POLLIN)
    except ProcessLookupError:
        return
    if os.getppid() == agent:
        poll.poll()


def let_end(child: ProcessHandle) -> None:
    """Resume a child whose agent has exited, and wait for a limited time until the child exits.

    The child kills its own descendants. If the child and this process were both killed at this
    point, the descendants would be left behind.
    """
    os.kill(child.pid, signal.SIGCONT)
    child.wait(_LET_END_S)


def end_as(status: int) -> NoReturn:
    """Exit with the same status as another process, given its waitpid(2) status."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def ends_within(process: "Popen[bytes]", seconds: float) -> bool:
    """Wait up to a time limit for a child to end, and return whether it has."""
    handle = ProcessHandle(process.pid)
    try:
        return handle.wait(seconds)
    finally:
        handle.close()


def signal_if(pid: int, number: int, still: Callable[[], bool]) -> None:
    """Send a signal to a process if `still()` confirms that the pid still refers to the same
    process. The pid can't be reused between the check and the signal.

    Raises:
        ProcessLookupError: if no process has this pid.
    """
    process = ProcessHandle(pid)
    try:
        if still():
            process.send(number)
    finally:
        process.close()


def catches_signal(pid: int, number: int, unknown: bool) -> bool:
    """Return whether a process has a handler for a signal, or has blocked it in order to wait for
    it (proc(5)).

    Args:
        pid: the process; if it has ended, the result is False.
        number: the signal.
        unknown: the result if the system does not show handlers.
    """
    del unknown
    try:
        with open(f"/proc/{pid}/status") as file:
            masks = [line.split()[1] for line in file if line.startswith(("SigCgt:", "SigBlk:"))]
    except OSError:
        return False
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


def reopen(fd: int, flags: int) -> int:
    """Reopen the file, pipe or terminal that a descriptor refers to, and return a new descriptor
    with its own flags.

    Raises:
        OSError: if it can't be opened.
    """
    return os.open(f"/proc/self/fd/{fd}", flags)


def anonymous_file(name: str) -> int:
    """Return the descriptor of a new in-memory file, whose name is visible in the links in
    /proc/PID/fd.

    The function uses memfd_create(2), available on Linux 3.17 or newer in a CPython built with
    glibc 2.27 or newer. Without it, the function creates a file in a directory and immediately
    removes it.

    Raises:
        OSError: if no descriptor is left, or no directory is writable.
    """
    try:
        if hasattr(os, "memfd_create"):
            return os.memfd_create(name, _MFD_CLOEXEC | _MFD_ALLOW_SEALING)
        fd = int(_libc.memfd_create(name.encode(), _MFD_CLOEXEC | _MFD_ALLOW_SEALING))
    except (AttributeError, OSError):
        fd = -1
    return fd if fd >= 0 else _unlinked_file(name)


def _unlinked_file(name: str) -> int:
    problem: OSError | None = None
    for folder in _FOLDERS:
        path = f"{folder}/{name}-{os.urandom(8).hex()}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            problem = error
            continue
        os.unlink(path)
        return fd
    assert problem is not None
    raise problem


def open_files() -> int:
    """Return how many files this process may have open."""
    return os.sysconf("SC_OPEN_MAX")


def max_open_files(hard: int) -> int:
    """Return how many files this process could have open, given that the system's hard limit is
    `hard`.
    """
    return hard


def cpus() -> int:
    """Return how many CPUs this process may run on, or how many CPUs the machine has if the
    affinity mask can't be read.
    """
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 1


def end_with_parent(pid: int, number: int) -> bool:
    """Request a signal for this process when its parent `pid` exits, or return False if the parent
    has already exited.
    """
    die_with_parent(number)
    return os.getppid() == pid


def die_with_parent(number: int) -> None:
    """Request a signal for this process when the thread that forked it exits (prctl(2))."""
    _prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def is_subreaper() -> bool:
    """Return whether this process adopts descendants whose parents have exited."""
    found = ctypes.c_int()
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(found), 0, 0, 0)
    return bool(found.value)


def become_subreaper(is_one: bool = True) -> None:
    """Become the new parent of any descendant whose own parent exits (prctl(2), Linux 3.4), or stop
    adopting descendants.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, int(is_one), 0, 0, 0)


def adopt_orphans() -> None:
    """Become the new parent of any descendant whose own parent exits. Existing children don't count
    as adopted, because they may have been left by a shell that this program has replaced.
    """
    if not is_subreaper():
        own_children.update(children())
        become_subreaper()


def inotify_open(*watched: tuple[str, int]) -> int:
    """Return a new nonblocking inotify descriptor that watches paths, each for the events in a
    mask. Return -1 if no descriptor is left or a path can't be watched.
    """
    fd = int(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if fd >= 0 and any(inotify_watch(fd, path, mask) < 0 for path, mask in watched):
        os.close(fd)
        return -1
    return fd


def inotify_watch(fd: int, path: str, mask: int) -> int:
    """Watch `path` with inotify, and return the watch descriptor, or -1 on failure."""
    return int(_libc.inotify_add_watch(fd, os.fsencode(path), mask))


def close_all_but(keep: Collection[int]) -> None:
    """Close all of this process's descriptors except these."""
    if 0 not in keep:
        _close(0)  # there may be none left, and the listing needs one
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:
        if fd not in keep:
            _close(fd)


def libffi_descriptors() -> set[int]:
    """Return the descriptors of the files from which libffi 3.5 maps the code for ctypes callbacks
    (src/tramp.c). If a forked process reused one of these numbers, it would execute the contents of
    a different file.
    """
    files = open_descriptors().items()
    return {fd for fd, path in files if os.path.basename(path).startswith("libffi.so")}


def _close(fd: int) -> None:
    with suppress(OSError):  # already closed: the descriptor of the listing itself
        os.close(fd)


def block_signals() -> Any:
    """Block all signals in this thread, and return the previous mask for `restore_signals`.

    `signal.pthread_sigmask` is not used, because it converts each signal to an enum member, which
    would make a newly forked process copy about 60 memory pages.
    """
    before = ctypes.create_string_buffer(_SIGSET)
    _sigmask(_BLOCK, _ALL_SIGNALS, before)
    return before


def restore_signals(mask: Any) -> None:
    """Set this thread's signal mask to the one that `block_signals` returned."""
    _sigmask(_SET, mask, None)


def unblock_sigchld() -> None:
    """Unblock SIGCHLD in this thread."""
    _sigmask(_UNBLOCK, _SIGCHLD, None)


def system_call(number: int, *arguments: int) -> int:
    """Make a system call that libc does not wrap, and return its result, or -1 if it failed."""
    return int(_libc.syscall(number, *arguments))


def get_control(option: int) -> int:
    """Call prctl(2) with an option that takes no arguments, and return the result, or -1 if the
    call fails.
    """
    return int(_prctl(option, 0, 0, 0, 0))


def rename_process(name: str, *, exactly: bool = False) -> None:
    """Set the command line and the short name of this process, as shown by ps, top and pkill.

    The command line is overwritten in place (proc(5): arg_start and arg_end in /proc/self/stat). A
    long name is therefore truncated to the length of the old one, and a short one is padded with
    zero bytes. The argument `exactly` avoids the padding, but makes a newly forked process copy 50
    more memory pages.
    """
    show_as(name.encode(), name.encode(), exactly=exactly)


def show_as(short: bytes, command_line: bytes, *, exactly: bool = True) -> None:
    """Set this process's short name and its command line, in which each word ends with a zero
    byte.
    """
    _prctl(_PR_SET_NAME, short[:15] + b"\0", 0, 0, 0)
    _overwrite(_COMMAND_LINE, command_line, exactly=exactly)


def show_environment(variables: Mapping[str, str]) -> None:
    """Set the variables that /proc/PID/environ shows for this process. There is only room for as
    many bytes as the environment had when the program was started.
    """
    pairs = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in variables.items())
    _overwrite(_ENVIRONMENT, pairs, exactly=True)


_COMMAND_LINE, _ENVIRONMENT = 48, 50
"""Fields in /proc/self/stat: arg_start and env_start. Each is followed by the corresponding end
(proc(5)).
"""
_MAP = (26, 27, 45, 46, 47, 0, 28, 48, 49, 50, 51)
"""Fields in /proc/self/stat in the order of `struct prctl_mm_map` (linux/prctl.h). 0 stands for the
end of the heap, which stat lacks.
"""
_places: dict[int, tuple[int, int]] = {}
"""The start and end addresses of the memory for the command line and for the environment when this
program was started, including spare room.
"""


def _overwrite(field: int, data: bytes, *, exactly: bool) -> None:
    """Overwrite the memory that holds the command line or the environment shown in /proc. Data that
    doesn't fit is truncated, and shorter data is padded with zero bytes.

    With `exactly`, the data is not padded if the kernel supports that (PR_SET_MM_MAP, Linux 3.18
    with CONFIG_CHECKPOINT_RESTORE).
    """
    try:
        fields: list[Any] = [0, 0, 0, *read_small("/proc/self/stat").rpartition(b")")[2].split()]
        start, end = _places.setdefault(field, (int(fields[field]), int(fields[field + 1])))
        memory = os.open("/proc/self/mem", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(memory, data[: end - start - 1].ljust(end - start, b"\0"), start)
        finally:
            os.close(memory)
        if not exactly:
            return
        fields[field + 1] = min(start + len(data), end)
        _libc.sbrk.restype = ctypes.c_void_p
        fields[0] = _libc.sbrk(0)
        known = struct.pack("@11QQIi", *(int(fields[each]) for each in _MAP), 0, 0, -1)
        _prctl(_PR_SET_MM, _PR_SET_MM_MAP, known, ctypes.c_ulong(len(known)), ctypes.c_ulong(0))
    except (OSError, ValueError, IndexError):
        return  # optional: some sandboxes hide these files


def children() -> list[int]:
    """Return the pids of this process's unreaped children, in no particular order."""
    return child_pids(os.getpid())


def kill_children() -> dict[int, bool]:
    """Send SIGKILL to this process's children. Their pids can't be reused until the children have
    been reaped.

    Returns:
        A map from each child's pid to whether the system refused the signal, as it does for another
        user's process.
    """
    return _kill(children())


def _kill(pids: Iterable[int]) -> dict[int, bool]:
    found = {}
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
            found[pid] = False
        except PermissionError:
            found[pid] = True
        except ProcessLookupError:
            pass
    return found


def reap_and_kill(keep: Collection[int] = ()) -> dict[int, bool]:
    """Reap all children except those in `keep`, then kill the remaining ones and return them as
    `kill_children` does.

    The function reaps first, because the system refuses to signal another user's process even if
    that process is a zombie.
    """
    for pid in set(children()).difference(keep):
        with suppress(ChildProcessError):  # another thread reaped it
            os.waitpid(pid, os.WNOHANG)
    return _kill(set(children()).difference(keep))


def end_children(limit_s: float, keep: Collection[int] = ()) -> list[int]:
    """Kill all children except those in `keep`, and the orphans that this process adopts. Return
    the pids of the processes that still exist after the time limit.

    A process in an uninterruptible system call can't be killed. The time limit is shorter for
    processes that this process is not allowed to signal (`REFUSED_LIMIT_S`).
    """
    begin, pause, before = time.monotonic(), 0.0, dict[int, bool]()
    while left := reap_and_kill(keep):
        limit = min(limit_s, REFUSED_LIMIT_S) if all(left.values()) else limit_s
        if time.monotonic() - begin >= limit:
            break
        pause = min(2 * pause, 0.1) if left == before else 0.002
        before = left
        time.sleep(pause)
    return list(left)


def reap_any() -> tuple[int, int]:
    """Reap a child that has exited. Return its pid, or 0 if no child has exited, and its waitpid(2)
    status. Called in the spawner.

    Raises:
        ChildProcessError: if this process doesn't have any children.
    """
    return os.waitpid(-1, os.WNOHANG)


def reap(pid: int, limit_s: float) -> int | None:
    """Reap a child that has ended or is about to end. Return its waitpid(2) status, or None if the
    child is still running after the time limit.

    Raises:
        ChildProcessError: if it has already been reaped.
    """
    end, pause = time.monotonic() + limit_s, 0.0005
    while True:
        try:
            found, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            own_children.discard(pid)
            raise
        if found:
            own_children.discard(pid)
            return status
        if time.monotonic() >= end:
            return None
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def name_and_user(pid: int) -> tuple[str, str]:
    """Return a process's short name and the name of its user, or the uid if the user's name is
    unknown. Both are empty if the process has exited.
    """
    import pwd

    try:
        name = read_small(f"/proc/{pid}/comm").decode(errors="replace").strip()
        user = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return "", ""
    try:
        return name, pwd.getpwuid(user).pw_name
    except KeyError:
        return name, str(user)


def _log_left(agent: int, pids: Collection[int]) -> None:
    """Write to the system log that some processes could not be killed. Because the agent has
    exited, nobody would read a message on stderr.
    """
    if not pids:
        return
    import syslog

    left = ", ".join("{} ({}, user {})".format(pid, *name_and_user(pid)) for pid in pids)
    syslog.openlog("relight", syslog.LOG_PID)
    what = (
        f"agent {agent} has exited; processes that it started could not be killed and are left "
        "behind"
    )
    syslog.syslog(syslog.LOG_WARNING, f"{what}: {left}")


def tree(pid: int) -> list[int]:
    """Return the pids of all descendants of a process, parents before children."""
    found = child_pids(pid)
    for each in found:  # the list grows in the loop
        found += child_pids(each)
    return found


def child_pids(pid: int) -> list[int]:
    """Return the pids of the children of all of a process's threads."""
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += [int(word) for word in file.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        # The process ended before open(2) or before read(2), or the kernel lacks
        # CONFIG_PROC_CHILDREN.
        if os.path.exists(f"/proc/{pid}/task"):
            all_pids = map(int, filter(str.isdecimal, os.listdir("/proc")))
            return [child for child in all_pids if parent_pid(child) == pid]
    return found


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, by a signal or a debugger."""
    return _state(pid) in (b"T", b"t")


def is_running(pid: int) -> bool:
    """Return whether a process has neither exited nor been stopped."""
    return _state(pid) not in (b"T", b"t", b"Z", b"X", b"")


def is_uninterruptible(pid: int) -> bool:
    """Return whether a process is in a system call that signals can't interrupt."""
    return _state(pid) == b"D"


def parent_pid(pid: int) -> int:
    """Return the pid of a process's parent, or 0 if the process has no parent or has ended."""
    return int(_state_and_parent(pid)[1])


def _state(pid: int) -> bytes:
    """Return the state letter from proc(5), or an empty string if the process has exited."""
    return _state_and_parent(pid)[0]


def _state_and_parent(pid: int) -> list[bytes]:
    try:
        return read_small(f"/proc/{pid}/stat").rpartition(b")")[2].split(None, 2)[:2]
    except OSError:
        return [b"", b"0"]


def zombie(pid: int) -> tuple[str, int]:
    """Return the short name and the wait status of a process that has exited but whose parent
    hasn't reaped it. For other processes, return an empty name and 0. The status is 0 if the system
    doesn't show it.
    """
    try:
        name, _, rest = read_small(f"/proc/{pid}/stat").rpartition(b")")
    except OSError:
        return "", 0
    fields = rest.split()
    if fields[:1] != [b"Z"]:
        return "", 0
    return name.partition(b"(")[2].decode(errors="replace"), int(fields[-1])


_TICKS_S = os.sysconf("SC_CLK_TCK")


def usage(pid: int) -> tuple[float, int, int]:
    """Return the resource usage of a process and of the children that it has reaped: the seconds of
    CPU time, the bytes transferred by read(2) and write(2), and the page faults (proc(5)). A value
    that can't be read is 0.
    """
    cpu_s, faults, io_bytes = 0.0, 0, 0
    # It has ended, or its I/O is hidden from this user.
    with suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()
        faults = sum(map(int, words[7:11]))
        cpu_s = sum(map(int, words[11:15])) / _TICKS_S
        with open(f"/proc/{pid}/io", "rb") as file:
            io_bytes = sum(int(line.split()[1]) for line in file if line[1:6] == b"char:")
    return cpu_s, io_bytes, faults


_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident(pid: int) -> int:
    """Return the memory of a process in bytes, including shared pages, or 0 if it can't be read.
    Unlike `memory`, this function takes the same time no matter how large the process is.
    """
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0  # it has ended


def memory(pid: int) -> int:
    """Return the memory of a process in bytes, with shared pages counted proportionally (PSS, Linux
    4.14), or 0 if it can't be read.
    """
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return next((int(x.split()[1]) * 1024 for x in file if x.startswith(b"Pss:")), 0)
    except OSError:
        return 0
