"""What the ranks of a job are doing, from the stacks of their processes.

Ranks in the same place are one group. The smallest group comes first: the odd one out is often the
cause of a hang.
"""

import re
from collections.abc import Mapping

from relight.core.failures import named_ranks
from relight.typed import NamedTuple

_MOST_GROUPS = 10
_MOST_NAMED = 8
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python3[^/]*/|^<frozen |/torch/")
_MACHINERY = re.compile(
    r"_?wrapper|wrapped|inner|_fn|decorate_\w+|_wrapped_call_impl|_call_impl|__call__|_?call_\w+"
)
"""Functions of libraries that only call what the user has named."""


class Frame(NamedTuple):
    """A call: the file and line where it is, line 0 if none is known, and the function."""

    file: str
    line: int
    function: str


class Thread(NamedTuple):
    """A thread with its frames, innermost first; none outside of Python code."""

    native_id: int
    is_main: bool
    name: str
    frames: tuple[Frame, ...]


class ProcessStack(NamedTuple):
    """The threads of a process, the main one first.

    `state` is its letter in proc(5). `wchan` is the kernel function in which its main thread waits,
    empty if that is not known.
    """

    pid: int
    state: str
    wchan: str
    threads: tuple[Thread, ...]

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The frames of the main thread, or of the only one that has any."""
        return next((thread.frames for thread in self.threads if thread.frames), ())


class Group(NamedTuple):
    """Ranks that do the same."""

    ranks: tuple[int, ...]
    doing: str

    def __str__(self) -> str:
        count = len(self.ranks)
        who = named_ranks(self.ranks) if count <= _MOST_NAMED else f"{count} ranks"
        return f"{who} {'is' if count == 1 else 'are'} {self.doing}"


def doing(stack: ProcessStack) -> str:
    """Return what a process does, as `in all_reduce (train.py:88)`."""
    place = _place(stack.frames)
    if stack.state in ("T", "t"):
        return f"stopped (SIGSTOP, or a debugger) {place}"
    if stack.state == "D":
        call = f" ({stack.wchan})" if stack.wchan else ""
        return f"in an uninterruptible system call{call} {place}"
    return place


def groups(stacks: Mapping[int, "ProcessStack | str"]) -> list[Group]:
    """Return the ranks in groups, the smallest first.

    Args:
        stacks: the stack of each rank, or why it could not be taken.
    """
    return grouped(
        {
            rank: f"unknown: {stack}" if isinstance(stack, str) else doing(stack)
            for rank, stack in stacks.items()
        }
    )


def grouped(texts: Mapping[int, str]) -> list[Group]:
    """Return ranks that do the same in groups, the smallest first.

    Args:
        texts: what each rank does.
    """
    ranks: dict[str, list[int]] = {}
    for rank in sorted(texts):
        ranks.setdefault(texts[rank], []).append(rank)
    found = [Group(tuple(members), text) for text, members in ranks.items()]
    return sorted(found, key=lambda group: (len(group.ranks), group.ranks))


def lines(found: list[Group]) -> list[str]:
    """Return the groups as lines of text."""
    shown = [str(group) for group in found[:_MOST_GROUPS]]
    left = found[_MOST_GROUPS:]
    if left:
        count = sum(len(group.ranks) for group in left)
        shown.append(f"{count} ranks are in {len(left)} other places")
    return shown


def _place(frames: tuple[Frame, ...]) -> str:
    if not frames:
        return "not in Python code"
    own = next((at for at, frame in enumerate(frames) if not _LIBRARY.search(frame.file)), None)
    if own is None:
        frame = frames[0]
        return f"in {frame.function} ({_short(frame)})"
    called = [f for f in reversed(frames[:own]) if not _MACHINERY.fullmatch(_name(f))]
    function = _name(called[0]) if called else frames[own].function
    return f"in {function} ({_short(frames[own])})"


def _name(frame: Frame) -> str:
    """Return the name of a library's function, with its class only where it says more."""
    owner, _, name = frame.function.rpartition(".")
    is_special = name.startswith("__") and owner and "<" not in owner
    return f"{owner.rpartition('.')[2]}.{name}" if is_special else name


def _short(frame: Frame) -> str:
    return f"{frame.file.rpartition('/')[2]}:{frame.line}"
