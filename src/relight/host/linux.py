"""Functions that need Linux; `portable` has the same functions for other systems.

Some call libc through ctypes, for system calls that Python's standard library does not offer.
"""

import ctypes
import os
import select
import selectors
import signal
import struct
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from relight.host.files import read_small, remove_tree
from relight.host.process_handle import ProcessHandle

if TYPE_CHECKING:
    from subprocess import Popen

    from relight.flags.spec import LaunchSpec

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
"""Directories for files that replace anonymous memory."""
END_LIMIT_S = 10.0
"""How long processes may take to exit after SIGKILL before whoever waits for them gives up."""
REFUSED_LIMIT_S = 1.0
"""The same for processes that this user may not signal. They may never exit."""
_LET_END_S = 0.5
_START_MS = 100
"""How long the guard delays its own setup, so that the starting workers have the processors."""

# Functions are looked up once, and not in each process that is forked.
_libc = ctypes.CDLL(None)
_prctl = _libc.prctl
_sigmask = _libc.pthread_sigmask
_BLOCK, _UNBLOCK, _SET = int(signal.SIG_BLOCK), int(signal.SIG_UNBLOCK), int(signal.SIG_SETMASK)
_SIGSET = 128
"""Bytes of a sigset_t of glibc and musl."""
_ALL_SIGNALS = ctypes.create_string_buffer(_SIGSET)
_libc.sigfillset(_ALL_SIGNALS)
_SIGCHLD = ctypes.create_string_buffer(_SIGSET)
_libc.sigaddset(_SIGCHLD, int(signal.SIGCHLD))

Selector = selectors.DefaultSelector
"""The selector that the loop uses."""
own_children: set[int] = set()
"""The processes that this one has forked with `fork` and not reaped, and those that an earlier
program of it has left. As a subreaper it has other children too: orphans, which nobody needs.
"""


def fork() -> int:
    """Fork a process other than a worker: the spawner, a warm spawner, a helper."""
    pid = os.fork()
    if pid:
        own_children.add(pid)
    else:
        own_children.clear()
    return pid


fork_worker = os.fork
"""Fork a worker, in the spawner."""
SPAWNER_STAYS = True
"""Whether one spawner can start the workers of several generations."""


def fit(spec: "LaunchSpec", notes: list[str]) -> "LaunchSpec":
    """Return the spec unchanged: everything works on Linux."""
    del notes
    return spec


def require_linux(what: str) -> None:
    """Do nothing. Everything runs on Linux."""
    del what


class Child:
    """A process that was forked with `fork`, referenced so that a reused pid is never signalled.

    The forked process may be a guard (`stand_guard`) whose child is the spawner; the guard exits
    as its child does. A warm process has forked its guards itself (`preload/warm_process.py`).

    Attributes:
        pid: the spawner.

    Raises:
        OSError: if no descriptor can be opened.
    """

    def __init__(self, pid: int) -> None:
        self.pid = self._child = pid
        self._processes = [ProcessHandle(pid)]
        self._is_foreign = parent_of(pid) != os.getpid()

    def guards(self, pid: int) -> None:
        """Note the pid of the spawner. If it is not the forked process, that one is its guard."""
        if pid == self._child:
            return
        try:
            self._processes.append(ProcessHandle(pid))
        except OSError:
            return  # it has ended, or no descriptor is left
        if parent_of(pid) == self._child:
            self.pid = pid
        else:
            self._processes.pop().close()

    def fileno(self) -> int:
        """Return a descriptor that can be read once the process has ended."""
        return self._processes[0].fileno()

    def send(self, number: int) -> None:
        """Send a signal to it and to its guard, where they exist."""
        for process in self._processes:
            try:
                process.send(number)
            except (ProcessLookupError, PermissionError):
                pass

    def is_stopped(self) -> bool:
        """Return whether it or its guard is stopped."""
        return is_stopped(self.pid) or is_stopped(self._child)

    def reap(self) -> int:
        """Reap it once `fileno` can be read; return its exit code, negative for a signal. That of a
        process which another one has forked can't be known: such a process has told why it ends,
        unless it was killed.

        Raises:
            ChildProcessError: if this process has reaped it before.
        """
        if self._is_foreign:
            return -signal.SIGKILL
        return os.waitstatus_to_exitcode(reap(self._child, END_LIMIT_S) or 0)

    def kill_orphans(self) -> bool:
        """Kill the orphans that it left when it was killed, which are now children of this process,
        a subreaper; return whether some are still there.
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
    """Fork, continue in the child, and stay as its guard in the parent.

    If the agent ends, the guard kills all descendants; if the child is killed, the guard kills the
    child's orphans and exits the same way. All signals are blocked.

    Args:
        agent: the parent of this process.
        of: the kind of processes that the child spawns, for the name of the guard.
        held: descriptors that the guard keeps as long as it lives.

    Returns:
        The descriptor of a pipe to the guard. Write the path of a directory to it, and the guard
        removes the directory at the end if the agent is gone.

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
    """Guard a child of this process; does not return."""
    try:
        poll = select.poll()
        die_with_parent(signal.SIGCONT)  # a stopped guard must see that the agent is gone
        # Or peers of the agent would not see its connections end.
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
    """Wait as the guard until the agent or the child is gone."""
    os.setsid()
    rename_process(f"{of} guard of {agent}")
    try:
        poll.register(ProcessHandle(agent), select.POLLIN)
    except ProcessLookupError:
        return
    if os.getppid() == agent:
        poll.poll()


def let_end(child: ProcessHandle) -> None:
    """Continue a child whose agent is gone, and give it a bounded time to exit.

    It kills its descendants; no process would if both it and this process were killed now.
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
    """Wait until a child has ended, at most for a time; return whether it has."""
    handle = ProcessHandle(process.pid)
    try:
        return handle.wait(seconds)
    finally:
        handle.close()


def signal_if(pid: int, number: int, still: Callable[[], bool]) -> None:
    """Send a signal to a process if `still()` confirms that it is the same one; its pid can't be
    reused in between.

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
    """Return whether a process has a handler for a signal, or blocks it to wait (proc(5)).

    Args:
        pid: the process; for one that has ended, the result is False.
        number: the signal.
        unknown: the result where the system does not show handlers.
    """
    del unknown
    try:
        with open(f"/proc/{pid}/status") as file:
            masks = [line.split()[1] for line in file if line.startswith(("SigCgt:", "SigBlk:"))]
    except OSError:
        return False
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


def reopen(fd: int, flags: int) -> int:
    """Return a new descriptor, with its own flags, for the file, pipe or terminal of another one.

    Raises:
        OSError: if it can't be opened.
    """
    return os.open(f"/proc/self/fd/{fd}", flags)


def anonymous_file(name: str) -> int:
    """Return the descriptor of a new file in memory; links in /proc/PID/fd have its name.

    memfd_create(2) needs Linux 3.17, and CPython has it if it was built with glibc 2.27 or newer.
    Without it, the file has been removed from a directory.

    Raises:
        OSError: if no descriptor is left, or no directory can be written to.
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


def most_open_files(hard: int) -> int:
    """Return how many files this process can have open where the system allows `hard`."""
    return hard


def cpus() -> int:
    """Return how many CPUs this process may run on; those of the machine if that is hidden."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 1


def end_with_parent(pid: int, number: int) -> bool:
    """Have this process get a signal when its parent `pid` ends; return False if it has ended."""
    die_with_parent(number)
    return os.getppid() == pid


def die_with_parent(number: int) -> None:
    """Have the kernel send this process a signal when its parent thread ends (prctl(2))."""
    _prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def is_subreaper() -> bool:
    """Return whether this process is the parent of descendants whose own parents die."""
    found = ctypes.c_int()
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(found), 0, 0, 0)
    return bool(found.value)


def become_subreaper(is_one: bool = True) -> None:
    """Become the parent of all descendants whose own parents die (prctl(2), Linux 3.4), or none."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(is_one), 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parents die. Children that exist by now are
    none: a shell that has become this program may have left some.
    """
    if not is_subreaper():
        own_children.update(children())
        become_subreaper()


def inotify_open() -> int:
    """Return a new non-blocking inotify descriptor, or -1 if none is left."""
    return int(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))


def inotify_watch(fd: int, path: str, mask: int) -> int:
    """Watch `path`; return the watch's number, or -1."""
    return int(_libc.inotify_add_watch(fd, os.fsencode(path), mask))


def close_all_but(keep: Collection[int]) -> None:
    """Close all descriptors of this process except these."""
    if 0 not in keep:
        _close(0)  # none may be left, and the listing needs one
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:
        if fd not in keep:
            _close(fd)


def libffi_descriptors() -> set[int]:
    """Return the descriptors of its own file from which libffi 3.5 maps code for each callback of
    ctypes (src/tramp.c). A fork that reuses one of these numbers would execute the contents of
    another file.
    """
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # that of the listing itself
        if os.path.basename(path).startswith("libffi.so"):
            found.add(int(name))
    return found


def _close(fd: int) -> None:
    try:
        os.close(fd)
    except OSError:
        pass  # it is closed: the descriptor of the listing itself


def block_signals() -> Any:
    """Block all signals of this thread; return the mask from before, for `restore_signals`.

    `signal.pthread_sigmask` turns each signal into an enum member. A process that was just forked
    would copy some 60 pages for that.
    """
    before = ctypes.create_string_buffer(_SIGSET)
    _sigmask(_BLOCK, _ALL_SIGNALS, before)
    return before


def restore_signals(mask: Any) -> None:
    """Set the signal mask of this thread to what `block_signals` has returned."""
    _sigmask(_SET, mask, None)


def unblock_sigchld() -> None:
    """Let SIGCHLD arrive in this thread."""
    _sigmask(_UNBLOCK, _SIGCHLD, None)


def system_call(number: int, *arguments: int) -> int:
    """Make a system call that libc does not wrap; return -1 if it failed."""
    return int(_libc.syscall(number, *arguments))


def get_control(option: int) -> int:
    """Return what prctl(2) returns for an option without arguments; -1 if it fails."""
    return int(_prctl(option, 0, 0, 0, 0))


def rename_process(name: str, *, exactly: bool = False) -> None:
    """Set the command line and the short name of this process, which ps, top and pkill show.

    The command line is overwritten in place (proc(5): arg_start and arg_end of /proc/self/stat), so
    a long name is cut to the length of the old one, and zero bytes follow a short one, unless it
    must be shown `exactly`: for that, a process that was just forked copies 50 pages more.
    """
    show_as(name.encode(), name.encode(), exactly=exactly)


def show_as(short: bytes, command_line: bytes, *, exactly: bool = True) -> None:
    """Set the two names of this process; the words of a command line end with zero bytes."""
    _prctl(_PR_SET_NAME, short[:15] + b"\0", 0, 0, 0)
    _overwrite(_COMMAND_LINE, command_line, exactly=exactly)


def show_environment(variables: Mapping[str, str]) -> None:
    """Set what /proc/PID/environ shows of this process, up to the size of the environment that the
    program was started with.
    """
    pairs = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in variables.items())
    _overwrite(_ENVIRONMENT, pairs, exactly=True)


_COMMAND_LINE, _ENVIRONMENT = 48, 50
"""Fields of /proc/self/stat: arg_start and env_start, each followed by the end (proc(5))."""
_MAP = (26, 27, 45, 46, 47, 0, 28, 48, 49, 50, 51)
"""Fields of /proc/self/stat in the order of `struct prctl_mm_map` (linux/prctl.h); 0 replaces the
end of the heap, which stat lacks."""
_places: dict[int, tuple[int, int]] = {}
"""Where these words began and ended when this program was started, with the room that they have."""


def _overwrite(field: int, data: bytes, *, exactly: bool) -> None:
    """Overwrite the memory of this process from which proc(5) shows words; a word that does not fit
    is cut, and zero bytes follow the last one. With `exactly`, and where the kernel lets a process
    (PR_SET_MM_MAP, Linux 3.18 with CONFIG_CHECKPOINT_RESTORE), nothing follows it.
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
    """Return the pids of this process's unreaped children, unordered."""
    return children_of(os.getpid())


def kill_children() -> dict[int, bool]:
    """Send SIGKILL to the children of this process. Their pids can't be reused before it reaps
    them.

    Returns:
        Their pids, each with whether the system refused the signal, as for another user's process.
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
    """Reap children but those to keep, then kill the others; return these as `kill_children` does.

    Reaping comes first because the system refuses a signal even to another user's zombie.
    """
    for pid in set(children()).difference(keep):
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            pass  # another thread has reaped it
    return _kill(set(children()).difference(keep))


def end_children(limit_s: float, keep: Collection[int] = ()) -> list[int]:
    """Kill all children but those to keep, and the orphans that we adopt; return the pids of those
    that are left when the time is up. Nothing ends one in an uninterruptible call, and for one that
    we may not signal there is less time (`REFUSED_LIMIT_S`).
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
    """Reap a child that has ended, in the spawner; return its pid, or 0 if none has, and its
    waitpid(2) status.

    Raises:
        ChildProcessError: if this process has no children.
    """
    return os.waitpid(-1, os.WNOHANG)


def reap(pid: int, limit_s: float) -> int | None:
    """Reap a child that has ended or is about to; return its waitpid(2) status, or None if it still
    runs when the time is up.

    Raises:
        ChildProcessError: if it was reaped before.
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
    """Return the short name of a process and that of its user, or the user's number if it has no
    name; both are empty for a process that is gone.
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
    """Write to the system log that processes could not be killed. The stderr of an agent that is
    gone has no reader.
    """
    if not pids:
        return
    import syslog

    left = ", ".join("{} ({}, user {})".format(pid, *name_and_user(pid)) for pid in pids)
    syslog.openlog("relight", syslog.LOG_PID)
    what = f"agent {agent} has ended; what it started could not be killed and is left behind"
    syslog.syslog(syslog.LOG_WARNING, f"{what}: {left}")


def tree(pid: int) -> list[int]:
    """Return the pids of all descendants of a process, each after its parent."""
    found = children_of(pid)
    for each in found:  # the list grows in the loop
        found += children_of(each)
    return found


def children_of(pid: int) -> list[int]:
    """Return the children of a process, of all its threads."""
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += [int(word) for word in file.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        # It has ended, before open(2) or before read(2); or the kernel lacks CONFIG_PROC_CHILDREN.
        if os.path.exists(f"/proc/{pid}/task"):
            all_pids = map(int, filter(str.isdecimal, os.listdir("/proc")))
            return [child for child in all_pids if parent_of(child) == pid]
    return found


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, by a signal or a debugger."""
    return _state(pid) in (b"T", b"t")


def is_running(pid: int) -> bool:
    """Return whether a process has neither ended nor been stopped."""
    return _state(pid) not in (b"T", b"t", b"Z", b"X", b"")


def is_uninterruptible(pid: int) -> bool:
    """Return whether a process is in a system call that no signal can interrupt."""
    return _state(pid) == b"D"


def parent_of(pid: int) -> int:
    """Return the parent of a process; 0 for a process without one or that has ended."""
    return int(_state_and_parent(pid)[1])


def _state(pid: int) -> bytes:
    """Return the state letter of proc(5); empty for a process that is gone."""
    return _state_and_parent(pid)[0]


def _state_and_parent(pid: int) -> list[bytes]:
    try:
        return read_small(f"/proc/{pid}/stat").rpartition(b")")[2].split(None, 2)[:2]
    except OSError:
        return [b"", b"0"]


_TICKS_S = os.sysconf("SC_CLK_TCK")


def usage(pid: int) -> tuple[float, int, int]:
    """Return the use of a process and of the children that it has reaped: seconds of CPU time,
    bytes passed to read(2) and write(2), and page faults; 0 for values that can't be read
    (proc(5)).
    """
    cpu_s, faults, io_bytes = 0.0, 0, 0
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()
        faults = sum(map(int, words[7:11]))
        cpu_s = sum(map(int, words[11:15])) / _TICKS_S
        with open(f"/proc/{pid}/io", "rb") as file:
            io_bytes = sum(int(line.split()[1]) for line in file if line[1:6] == b"char:")
    except (OSError, ValueError, IndexError):
        pass  # it has ended, or its I/O is hidden from us
    return cpu_s, io_bytes, faults


_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident(pid: int) -> int:
    """Return the memory of a process in bytes, shared pages included; 0 where it can't be read.
    Unlike `memory`, it takes the same time for a process of any size.
    """
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0  # it has ended


def memory(pid: int) -> int:
    """Return the memory of a process in bytes, shared pages counted in part (PSS, Linux 4.14); 0
    where it can't be read.
    """
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return next((int(x.split()[1]) * 1024 for x in file if x.startswith(b"Pss:")), 0)
    except OSError:
        return 0
