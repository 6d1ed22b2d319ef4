"""Shows where a job's ranks are in their programs, by summarizing the stacks of many processes in a
few lines.

Only the main thread of each process is considered. A process's location is the innermost line in
the user's own code, with the name of the library function that this line called, such as
`all_reduce`. Ranks with the same location share one line. If a job has hung, the suspect is the
rank that never entered the collective or, failing that, the outlier. Therefore groups that wait for
their peers come last. Among the other groups, those that can't run, because they are stopped or in
an uninterruptible call, come first. They are followed by the smallest group.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from relight.base.text import format_ranks, pluralize
from relight.core.failure import WorkerState

MAX_LINES = 10
_FEW = 24
"""Maximum number of characters for rank numbers. If the list is longer, the number of ranks is
shown instead.
"""
_SHOWN, _REASON = 160, 320
"""Maximum number of characters for a name, and for a reason, in a line."""
_LIBRARY = re.compile(
    r"""^<(?:frozen|string|stdin|attrs|.*__array_function__) | ^$
    | /lib(?:64)?/python\d(?:\.\d+)?t?/ | /(?:site|dist)-packages/ | /python\d+\.zip/
    | /torch/(?:_|(?:autograd|cuda|distributed|nn|optim|utils)/) | /relight/worker/""",
    re.VERBOSE,
)
_TORCH = re.compile(r"/torch/")
_OF_PEERS = re.compile(r"/torch/(?:distributed|autograd|cuda)/")
"""Files whose functions wait for other workers. DistributedDataParallel waits below `backward`."""
_PARALLEL = re.compile(r"/torch/nn/parallel/distributed\.py$")
_SYNCS = re.compile(r"_sync_|broadcast_coalesced")
"""DistributedDataParallel functions in which `forward` copies buffers from rank 0."""
_COLLECTIVE = re.compile(
    r"/torch/(?:distributed/(?:distributed_c10d|_functional_collectives|nn/functional)\.py|cuda/)"
)
"""Functions where a rank waits for all other ranks, even if it uses CPU time, as with NCCL."""
_PERHAPS_COLLECTIVE = re.compile(
    r"/torch/(?:distributed|autograd)/|/torch/nn/parallel/distributed\.py"
)
"""Functions below which sleeping ranks wait for all other ranks. A rank that is not sleeping there
is computing.
"""
_NO_COLLECTIVE = re.compile(r"/torch/distributed/(?:checkpoint|pipelining|rpc)/")
_OF_PAIRS = re.compile(r"i?send|i?recv|batch_isend_irecv|send_object_list|recv_object_list")
"""Functions that synchronize two ranks. A pipeline stage, for example, waits for the previous
one.
"""
_OF_LOADER = re.compile(r"/torch/utils/data/dataloader\.py$")
_OF_CHILDREN = re.compile(
    r"/torch/utils/data/dataloader\.py$|/concurrent/futures/"
    r"|/multiprocessing/(?:connection|managers|pool|popen_\w+|process|queues)\.py$"
)
"""Functions where a process waits for processes that it has started with multiprocessing."""
_BOOTSTRAP = re.compile(r"/multiprocessing/process\.py$")
"""The outermost function of a process started with multiprocessing. Below this function, a forked
process has its parent's frames.
"""
_FETCH = re.compile(r"/torch/utils/data/_utils/fetch\.py$")
"""Where a data loader process reads data. The data set may be defined in a library."""
_TITLE = re.compile(r"(?:loader|child) process \d+:")
_THREADING = re.compile(r"/threading\.py$")
_MAX_THREADS = 2
_MAX_FRAMES = 30
_GENERIC = re.compile(r"wrapper|inner|wrapped|decorate_\w+|new_func|\w*_fn")
"""Wrapper functions that decorators put around the function that the user has called."""
_IDLE_CALLS = ("futex", "restart_syscall")
"""System calls that reveal nothing about a thread. For example, a wait for the GIL or for any lock
is in futex.
"""
_RECEIVES = re.compile(r", system call (?:recv\w+|accept4?)$")
_ROOTED = re.compile(
    r"(?:broadcast|gather|scatter)(?:_\w+)?|reduce|i?send|i?recv|(?:send|recv)_object_list"
    r"|batch_isend_irecv"
)
_OUTERMOST = ("<module>", "_run_module_as_main")
"""The outermost function of a script, and of `python -m` (Lib/runpy.py)."""
_IMPORTS = "<frozen importlib._bootstrap>"
_IMPORT_SYSTEM = "<frozen importlib.", "<frozen zipimport>"
NO_CODE = " runs no Python code"
"""The location shown for a process that is starting, compiling its script, or running a C exit
function.
"""
SHUTTING_DOWN = f"{NO_CODE} any more"
"""The location shown for a process that has finished its program and its exit functions."""
_STATES = {
    "T": " is stopped (SIGSTOP)",
    "t": " is stopped by a debugger",
    "D": " is uninterruptible (state D)",
}
_OF_MANY = {" is ": " are ", " has ": " have ", " runs ": " run "}


class Frame(NamedTuple):
    """A line of code that is being executed. The `function` field is the qualified name of the
    function that contains the line. The `line` field is 0 if the line is unknown.
    """

    file: str
    line: int
    function: str


class Handled(NamedTuple):
    """An exception that a thread is handling in an `except`, `finally` or `with` block. The
    `frames` field contains the frames where the exception was raised, with the innermost first.
    """

    type: str
    message: str
    frames: tuple[Frame, ...]


class ThreadStack(NamedTuple):
    """A thread's stack, with the innermost frame first.

    The `native_id` field is the system's thread id, or 0 if unknown. The `waits_in` field is the
    system call or kernel function that blocks the thread. It is empty if the thread is running or
    the name can't be read. If they were captured, the `native` field contains the C and C++
    functions below the innermost frame, with the innermost first. The `handled` field is only set
    for the main thread.
    """

    native_id: int
    name: str
    waits_in: str
    is_main: bool
    frames: tuple[Frame, ...]
    native: tuple[str, ...] = ()
    handled: Handled | None = None


class ProcessStack(NamedTuple):
    """The stacks of a process, its state as in proc(5) (R, S, D, T, t or Z), and whether Python is
    shutting down, which means that the program and its exit functions have finished.
    """

    pid: int
    state: str
    threads: tuple[ThreadStack, ...]
    is_finalizing: bool = False


class CodePlace(NamedTuple):
    """A process's location. It consists of the function that the process is in, and the line in the
    user's code that called this function.
    """

    what: str
    where: Frame


class RankGroup(NamedTuple):
    """Ranks in the same location, in ascending order. The `text` field is worded so that it can
    follow the name of a single rank. The function `line` makes it plural. The `has_stack`
    field is false if `text` is the reason why the stack is missing. The `expects_peers` field is
    true if the ranks are waiting for other ranks.
    """

    ranks: tuple[int, ...]
    text: str
    has_stack: bool
    expects_peers: bool


def main_thread(stack: ProcessStack) -> ThreadStack | None:
    """Return a process's main thread, or otherwise the first thread that has frames."""
    main = next((thread for thread in stack.threads if thread.is_main and thread.frames), None)
    return main or next((thread for thread in stack.threads if thread.frames), None)


def runs_program(stack: ProcessStack) -> bool:
    """Return whether a process's main thread is running its program, or Python is still starting.
    The main thread is not running its program while Python prints the fatal exception, runs exit
    functions or shuts down.
    """
    main = next((thread for thread in stack.threads if thread.is_main and thread.frames), None)
    if main is None:
        return False
    outermost = main.frames[-1]
    # Before the program starts, C code imports site and the modules named in .pth files.
    return outermost.function in _OUTERMOST or outermost.file == _IMPORTS


def place(frames: Sequence[Frame]) -> CodePlace:
    """Return a thread's location. At least one frame must be given, and the innermost frame comes
    first.

    The location's function name is the innermost public name from torch, or otherwise from any
    library, below the user's line. If no frame is in the user's own code, the innermost frame is
    used.
    """
    own = next((n for n, frame in enumerate(frames) if not _LIBRARY.search(frame.file)), 0)
    called = frames[:own]
    name = _public([frame for frame in called if _TORCH.search(frame.file)])
    if not name and any(_OF_LOADER.search(frame.file) for frame in called):
        name = "__next__"  # everything that it calls is private
    name = name or _public(called)
    if not name:
        name = _short(called[-1].function if called else frames[own].function)
    return CodePlace(name, frames[own])


def groups(stacks: Mapping[int, ProcessStack | str]) -> list[RankGroup]:
    """Group ranks by state and location. Groups that wait for other ranks come last, and groups
    that can't run come first. Among the remaining groups, the smallest group comes first, then
    groups that are not waiting for data from a socket, then the group with the lowest rank.

    Args:
        stacks: the stack of each rank, or a string with the reason why the stack is missing.
    """
    ranks_by_key: dict[tuple[object, ...], list[int]] = {}
    first_of: dict[tuple[object, ...], tuple[str, bool, bool]] = {}
    for rank, stack in sorted(stacks.items()):
        key, text, has_stack = _describe(stack)
        ranks_by_key.setdefault(key, []).append(rank)
        first_of.setdefault(key, (text, has_stack, _expects_peers(stack)))
    found = [RankGroup(tuple(ranks), *first_of[key]) for key, ranks in ranks_by_key.items()]
    return sorted(found, key=_likeliest_first)


def waits_for_children(stack: ProcessStack) -> bool:
    """Return whether a process's main thread is waiting for processes that it started with
    multiprocessing.
    """
    thread = main_thread(stack)
    return thread is not None and any(_OF_CHILDREN.search(each.file) for each in _called(thread))


def child_at_work(child: ProcessStack) -> ProcessStack | None:
    """Return the stack of a process started with multiprocessing, without its parent's frames.
    Return None if the process is waiting for work, or was started in some other way.
    """
    thread = main_thread(child)
    if thread is None:
        return child if child.state == "D" else None
    begins = [n for n, frame in enumerate(thread.frames) if _BOOTSTRAP.search(frame.file)]
    frames = thread.frames[: begins[0]] if begins else ()
    works = any(not _LIBRARY.search(each.file) or _FETCH.search(each.file) for each in frames)
    waits_in = thread.waits_in if child.state == "D" else ""
    own = thread._replace(frames=frames, waits_in=waits_in)
    return child._replace(threads=(own,)) if works else None


def doing(stack: ProcessStack | str, child: ProcessStack | None = None) -> WorkerState:
    """Return a worker's state for the failure report.

    Args:
        stack: the stack of the worker's process, or a string with the reason why the stack is
            missing.
        child: the process that the worker is waiting for, as returned by `child_at_work`.
    """
    _, text, has_stack = _describe(stack)
    thread = None if isinstance(stack, str) or not has_stack else main_thread(stack)
    lines = traceback_lines(thread.frames[:_MAX_FRAMES]) if thread else []
    if child is not None:
        loads = thread is not None and any(_OF_LOADER.search(each.file) for each in _called(thread))
        name = "loader process" if loads else "child process"
        _, at, _ = _describe(child)
        text += f", whose {name}{' is' if at.startswith(' in ') else ''}{at}"
        inner = main_thread(child)
        lines.append(f"{name} {child.pid}:")
        lines += traceback_lines(inner.frames[:_MAX_FRAMES]) if inner else []
    handled = thread.handled if thread else None
    if handled and handled.frames and handled.frames[-1].file.startswith(_IMPORT_SYSTEM):
        handled = None  # such as a KeyError for a directory that isn't cached yet
    return WorkerState(
        text,
        tuple(_cut(each, _REASON) for each in lines),
        _expects_peers(stack),
        handling=_named(handled) if handled else "",
        handling_where=_raised_at(handled) if handled else "",
        in_program=not isinstance(stack, str) and runs_program(stack),
        works_below=thread is not None and _works_below(thread),
    )


def stuck_loader(loader: ProcessStack) -> str:
    """Return a sentence about the data loader process that a worker waited for in vain.

    Args:
        loader: the process's stack, as returned by `child_at_work`.
    """
    at = _describe(loader)[1]
    return f"its loader process {loader.pid} was{at.removeprefix(' is')}"


def is_halted(doing: WorkerState) -> bool:
    """Return whether a worker was unable to run because it was stopped or in an uninterruptible
    call.
    """
    return doing.place.startswith(tuple(_STATES.values()))


def is_stopped(doing: WorkerState) -> bool:
    """Return whether a signal or a debugger had stopped a worker."""
    return doing.place.startswith((_STATES["T"], _STATES["t"]))


def receives(text: str) -> bool:
    """Return whether processes are waiting for data from a socket, or for a connection.

    Args:
        text: the `text` of the processes' group, or `WorkerState.place`.
    """
    return _RECEIVES.search(text) is not None


def has_root(call: str) -> bool:
    """Return whether a call of torch.distributed sends to or receives from a single rank. Unlike an
    all_reduce, it can return in some ranks before others have entered it.

    Args:
        call: the name of the function, such as `broadcast`.
    """
    return _ROOTED.fullmatch(call) is not None


def handled_exception(doing: WorkerState) -> str:
    """Return the exception that a worker was handling, and where that exception was raised."""
    place = doing.handling_where.rpartition("/")[2]
    return f"{doing.handling} ({place})" if place else doing.handling


def is_locked(found: WorkerState) -> bool:
    """Return whether a worker was in state D, in which its stack can't be read."""
    return found.place.startswith(_STATES["D"]) and not found.stack


def render(
    found: Sequence[RankGroup], named: Callable[[Sequence[int]], str] | None = None
) -> list[str]:
    """Return one line for each group, for at most 10 groups, followed by a line with the number of
    remaining groups.

    Args:
        found: the groups.
        named: returns the names of a group's processes. The default is `few_or_many`.
    """
    lines = [line(group, named) for group in found[:MAX_LINES]]
    more = len(found) - MAX_LINES
    if more > 0:
        lines.append(f"… and {pluralize(more, 'more group')}")
    return lines


def line(group: RankGroup, named: Callable[[Sequence[int]], str] | None = None) -> str:
    """Return the line for one group, such as `rank 5 in read (data.py:41)`."""
    text = plural(group.text) if len(group.ranks) > 1 else group.text
    return f"{(named or few_or_many)(group.ranks)}{text}"


def plural(text: str) -> str:
    """Return the text that follows the names of several ranks, such as ` are stopped (SIGSTOP)`,
    given the text that follows the name of a single one.
    """
    for one, many in _OF_MANY.items():
        if text.startswith(one):
            return many + text.removeprefix(one)
    return text


def few_or_many(ranks: Sequence[int]) -> str:
    """Format ranks as `rank 3`, `ranks 0-3, 5`, or `31 ranks` if the list would be long."""
    text = format_ranks(ranks)
    return text if len(text) <= _FEW else f"{len(ranks)} ranks"


def waits_for_all(frames: Sequence[Frame], state: str) -> bool:
    """Return whether a thread is waiting for all other ranks, as in a collective.

    Args:
        frames: the thread's stack, with the innermost frame first.
        state: the thread's state as in proc(5).
    """
    called = list(takewhile(lambda frame: _LIBRARY.search(frame.file), frames))
    if any(
        _NO_COLLECTIVE.search(frame.file)
        or (_OF_PEERS.search(frame.file) and _OF_PAIRS.fullmatch(_short(frame.function)))
        for frame in called
    ):
        return False
    if any(_COLLECTIVE.search(frame.file) for frame in called):
        return True
    return state == "S" and any(_PERHAPS_COLLECTIVE.search(frame.file) for frame in called)


def traceback_lines(frames: Iterable[Frame]) -> list[str]:
    """Format frames as lines of a Python traceback, with the innermost last."""
    return [
        f'File "{frame.file}", line {frame.line or "?"}, in {frame.function}'
        for frame in reversed(list(frames))
    ]


def native_lines(functions: Sequence[str]) -> list[str]:
    """Format C and C++ functions as lines to be shown below the Python frames, with the innermost
    last.
    """
    return [f"  in {_cut(function)}" for function in reversed(functions)]


def with_native(stack: Sequence[str], functions: Sequence[str]) -> tuple[str, ...]:
    """Add C and C++ functions to a worker's stack. The stack of a child process stays below."""
    end = next((n for n, line in enumerate(stack) if is_title(line)), len(stack))
    return (*stack[:end], *native_lines(functions), *stack[end:])


def is_title(line: str) -> bool:
    """Return whether a line of a worker's stack is the title of its child process's stack."""
    return _TITLE.fullmatch(line) is not None


def _likeliest_first(group: RankGroup) -> tuple[bool, bool, int, bool, tuple[int, ...]]:
    can_run = not group.text.startswith(tuple(_STATES.values()))
    return group.expects_peers, can_run, len(group.ranks), receives(group.text), group.ranks


def _describe(stack: ProcessStack | str) -> tuple[tuple[object, ...], str, bool]:
    """Return a key that is the same for equal processes, the text to show after their names, and
    whether they have a stack.
    """
    if isinstance(stack, str):
        reason = _cut(" ".join(stack.split()), _REASON)
        return ("", re.sub(r"\d+", "#", reason)), f": no stack: {reason}", False
    if stack.state in ("Z", "X"):
        return ("Z",), " has ended (zombie)", False
    condition = _STATES.get(stack.state, "")
    thread = main_thread(stack)
    if thread is None and stack.state == "D":
        call = next((each.waits_in for each in stack.threads if each.is_main), "")
        return (condition, None, call), f"{condition}{_in_call(call)}", False
    if thread is None:
        text = SHUTTING_DOWN if stack.is_finalizing else NO_CODE
        text = f"{condition}, without Python code" if condition else text
        return (condition, None), text, False
    what, where = found = place(thread.frames)
    text, call = f"{condition} in {_at(found)}", ""
    says_more = stack.state == "D" or (not condition and where == thread.frames[0])
    if says_more and thread.waits_in not in _IDLE_CALLS:
        call = thread.waits_in
    text += _in_call(call) + _threads_to_wait_for(stack, thread)
    return (condition, what, where.file, where.line, call), text, True


def _at(found: CodePlace) -> str:
    what, where = found
    at = f"{where.file.rpartition('/')[2]}:{where.line}" if where.line else where.file
    return f"{_cut(what)} ({_cut(at)})"


def _threads_to_wait_for(stack: ProcessStack, main: ThreadStack) -> str:
    """Return where other threads run the user's code, if the main thread has left the script and
    waits for all threads that aren't daemons. It is unknown which ones are.
    """
    if not any(f.function == "_shutdown" and _THREADING.search(f.file) for f in main.frames):
        return ""
    others = [each.frames for each in stack.threads if each is not main and each.frames]
    places = {
        _at(place(frames)): None
        for frames in others
        if not all(_LIBRARY.search(frame.file) for frame in frames)
    }
    if not places:
        return ""
    who = "another thread is" if len(places) == 1 else "other threads are"
    return f", while {who} in {', '.join(list(places)[:_MAX_THREADS])}"


def _in_call(call: str) -> str:
    return f", system call {call}" if call else ""


def _called(thread: ThreadStack) -> list[Frame]:
    """Return the frames of the library functions that were called by the user's innermost line."""
    return list(takewhile(lambda frame: _LIBRARY.search(frame.file), thread.frames))


def _expects_peers(stack: ProcessStack | str) -> bool:
    """Return whether the main thread is waiting for other ranks in a library that the user's code
    called.
    """
    if isinstance(stack, str) or stack.state in ("T", "t", "D"):
        return False
    thread = main_thread(stack)
    for frame in thread.frames if thread else ():
        if not _LIBRARY.search(frame.file):
            return False
        if _OF_PEERS.search(frame.file) or (
            _PARALLEL.search(frame.file) and _SYNCS.search(frame.function)
        ):
            return True
    return False


def _named(handled: Handled) -> str:
    message = handled.message.strip().partition("\n")[0]
    return _cut(f"{handled.type}: {message}" if message else handled.type, _REASON)


def _raised_at(handled: Handled) -> str:
    """Return the innermost line in the user's code, or otherwise in any code, where an exception
    was raised.
    """
    frames = handled.frames
    own = [frame for frame in frames if not _LIBRARY.search(frame.file)] or frames
    return f"{own[0].file}:{own[0].line}" if own else ""


def _works_below(thread: ThreadStack) -> bool:
    """Return whether a thread is in a user function that was called from its `except` block. The
    function that contains the `except` block is the outermost one in the traceback.
    """
    if thread.handled is None or not thread.handled.frames:
        return False
    caught = thread.handled.frames[-1]
    for frame in thread.frames:
        if (frame.file, frame.function) == (caught.file, caught.function):
            return False
        if not _LIBRARY.search(frame.file):
            return True
    return False


def _public(frames: Iterable[Frame]) -> str:
    """Return the innermost public name that is not a decorator's, or an empty string."""
    names = (_short(frame.function) for frame in frames)
    return next((n for n in names if n[:1] not in ("_", "<") and not _GENERIC.fullmatch(n)), "")


def _short(function: str) -> str:
    return function.rpartition(".")[2] or function


def _cut(text: str, most: int = _SHOWN) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
