"""Determines whether a worker's last messages blame another worker. The result is weighed against
other facts in `core/diagnosis/causes`.

The patterns match messages from gloo, NCCL, TCPStore (torch 2.13) and the kernel about a peer that
has exited or is late. Other libraries have similar messages about their connections and timeouts.
Ambiguous messages only count as blaming a peer if torch.distributed raised them.
"""

import re
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from relight.core.diagnosis import loaders
from relight.core.diagnosis.traceback_lines import without_other_members
from relight.core.failure import ErrorReport, Failure, FailureKind


class Blame(Enum):
    """Whom an exception blames."""

    NOBODY = "the worker itself"
    CONNECTION = "whoever was at the other end of a connection of the script: a peer, or any server"
    PEER = "another rank"


class Mismatch(NamedTuple):
    """A worker received `sent` bytes in a collective but expected `expected` bytes."""

    sent: int
    expected: int


class Difference(NamedTuple):
    """According to torch, the collective of a rank differed from that of another one. The
    `aspects` are worded from the view of the first one, as in `Op type: BARRIER vs ALLREDUCE`.
    """

    rank: int
    other: int
    aspects: str


_PEER = re.compile(
    r"""gloo/transport/ | connectFullMesh | monitoredBarrier
    | remote\ process\ exited\ or\ there | collective\ operation\ timeout:
    | Application\ timeout\ caused\ pair\ closure
    | Timed\ out\ waiting\ \d+ms\ for\ (?:send|recv)\ operation
    | ncclRemoteError | ncclSystemError | NCCL\ communicator\ was\ aborted
    | Watchdog\ caught\ collective\ operation\ timeout
    | ^(?:[\w.]*\.)?Dist\w*Error:\ .*(?:Socket\ Timeout|wait\ timeout|Connection\ closed\ by)
    | Timed\ out\ after\ \d+\ seconds\ waiting\ for\ clients
    | wait\ timeout\ after\ \d+ms,\ keys: | client\ socket\ has\ timed\ out
    | (?:recv|send)Value\ failed | Failed\ to\ recv,\ got\ 0\ bytes
    | ^(?:[\w.]*\.)?GroupBrokenError""",
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
)
"""Messages specific to gloo, NCCL, torch and `relight.worker.recoverable`."""
_IN_TORCH = re.compile(r"Socket Timeout|operation timeout|wait timeout", re.IGNORECASE)
"""Messages that blame a peer if torch.distributed raised them."""
_CONNECTION = re.compile(
    r"""Connection(?:Reset|Aborted|Refused)Error | BrokenPipeError | DistNetworkError
    | \bConnection\ (?:reset|closed|aborted|refused)\ by\ (?:remote\ )?peer\b
    | \bConnection\ closed\b | \bBroken\ pipe\b | \bIncompleteReadError:\ \d+\ bytes\ read\b""",
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
)
_OWN_CONNECTION = re.compile(
    r"""(?<![\w.])ConnectionError\b | \bConnection\ (?:was\ )?lost\b
    | \b(?:closed|lost)\ (?:the\ |its\ )?connections?\b""",
    re.VERBOSE | re.IGNORECASE,
)
"""Errors that scripts raise about their own connections between ranks. The exceptions of HTTP
clients also have names that end in ConnectionError, so only the built-in exception counts.
"""
_WEB = re.compile(r"https?://|HTTPS?ConnectionPool\(", re.IGNORECASE)
"""Text which shows that the other end of the connection is a server rather than a rank."""
_END = re.compile(r"^EOFError: ?$", re.MULTILINE)
"""An error that is raised at the end of a multiprocessing pipe, but also at the end of a file."""
_DISTRIBUTED = "/torch/distributed/"
_OWN = re.compile(
    r"""server\ socket\ has\ failed\ to\ listen | EADDRINUSE | no\ socket\ interface\ found
    | Unable\ to\ find\ (?:address|interface)\ for:? | Unable\ to\ resolve\ hostname
    | creating\ shared\ memory\ segment""",
    re.VERBOSE,
)
"""Errors about a port that is in use, about an address or network interface that this machine
doesn't have, or about a full /dev/shm.
"""
_MISMATCH = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")
"""Gloo's message when a peer sends more than a rank expects (gloo/transport/tcp/pair.cc)."""
_ADDRESS = re.compile(r"trying to connect to \(?([^\s,()]+)[,:] ?(\d+)\)?")
_KEY_OF_RANK = re.compile(r"keys: /default_pg/0//(?:cpu|cuda)//0/(\d+)\b")
"""The store key that rank n sets for gloo in init_process_group. The other ranks wait for this
key.
"""
_DIFFERENCE = re.compile(
    r"Detected mismatch between collectives on ranks\. Rank (\d+) is running collective: .*?"
    r"but Rank (\d+) is running collective: .*Collectives differ in the following aspects:\s*(.*)",
    re.DOTALL,
)
"""The message with TORCH_DISTRIBUTED_DEBUG=DETAIL (torch 2.13, ProcessGroupWrapper.cpp)."""
_WORD_TWICE = re.compile(r"\b(Tensor) (?=\1\b)")
_NO_SPACE = re.compile(r"(?<=\w)vs\b")
_ABSENT = re.compile(r"\bRanks? (\d[\d, ]*) failed to pass monitoredBarrier\b")
"""Rank 0's message (torch 2.13, ProcessGroupGloo.cpp). The other ranks only refer to rank 0."""

OTHER_ADDRESS = "relight had set MASTER_ADDR="
OWN_PORT = "; to use its own port, a script needs --worker-store=rank0 before torch 2.14"
"""Follows the address."""
OTHER_STORE = "the process group uses another store, at "


def absent_ranks(report: ErrorReport | None) -> set[int]:
    """Return the ranks that did not come to a barrier, according to an exception."""
    found = _ABSENT.search(report.message) if report is not None else None
    return set(map(int, re.findall(r"\d+", found[1]))) if found else set()


def blames_peer(message: str) -> bool:
    """Return whether an exception message blames a peer or the other end of a connection."""
    return bool(_PEER.search(message) or _CONNECTION.search(message))


def determine(report: ErrorReport | None, last_lines: Sequence[str], words: str = "") -> Blame:
    """Determine whom a worker blames.

    Args:
        report: the worker's exception, or None.
        last_lines: the end of the worker's stderr.
        words: the most informative line in the worker's other output.
    """
    if report is not None and loaders.is_loss(report):
        return Blame.NOBODY
    lines = report.lines if report is not None else ()
    text = last_messages(report, last_lines)
    if report is not None and report.kind is FailureKind.CRASHED:
        text += f"\n{words}"  # may be a library's message before an abort
    found = _from_text(text, lines)
    if report is not None and report.kind is FailureKind.PRINTED and found is Blame.CONNECTION:
        return Blame.NOBODY  # this did not end the worker
    return found


def from_failure(failure: Failure) -> Blame:
    """Determine whom a worker blames. Use the exception that the worker was handling when it was
    stopped, or otherwise the worker's last messages.
    """
    if failure.stop_signal and failure.state.handling:
        return _from_text(failure.state.handling, ())
    if loaders.lost_one(failure):
        return Blame.NOBODY
    found = determine(failure.report, failure.last_lines, failure.words)
    if found is Blame.CONNECTION and failure.evidence and not is_at_other_address(failure):
        return Blame.NOBODY  # the machine has reported the defect
    return found


def _is_pipe(line: str) -> bool:
    return "/multiprocessing/connection.py" in line


def _from_text(text: str, lines: Sequence[str]) -> Blame:
    if _OWN.search(text):
        return Blame.NOBODY
    if _PEER.search(text):
        return Blame.PEER
    in_torch = any(_DISTRIBUTED in line for line in lines)
    if in_torch and _IN_TORCH.search(text):
        return Blame.PEER
    has_lost = _CONNECTION.search(text) or _OWN_CONNECTION.search(text)
    is_pipe = _END.search(text) and any(map(_is_pipe, lines))
    if not is_pipe and (not has_lost or _WEB.search(text)):
        return Blame.NOBODY
    return Blame.PEER if in_torch else Blame.CONNECTION


def mismatch(failure: Failure) -> Mismatch | None:
    """Return the sizes that did not match, if gloo ended the worker because of a size mismatch."""
    found = _MISMATCH.search(_text(failure))
    return Mismatch(int(found[1]), int(found[2])) if found else None


def difference(failure: Failure) -> Difference | None:
    """Return how a worker's collective differed from another one, if torch has compared them."""
    found = _DIFFERENCE.search(_text(failure))
    if found is None:
        return None
    aspects = _NO_SPACE.sub(" vs", _WORD_TWICE.sub("", " ".join(found[3].split())))
    return Difference(int(found[1]), int(found[2]), aspects)


def address(failure: Failure) -> tuple[str, int] | None:
    """Return the address at which torch's store could not be reached."""
    return address_in(_text(failure))


def address_in(text: str) -> tuple[str, int] | None:
    """Return the first address that could not be reached according to messages of torch's store."""
    found = _ADDRESS.search(text)
    return (found[1], int(found[2])) if found else None


def missing_rank(failure: Failure) -> int | None:
    """Return the rank that has not entered init_process_group, if gloo's message names it."""
    found = _KEY_OF_RANK.search(_text(failure))
    return int(found[1]) if found else None


def is_at_other_address(failure: Failure) -> bool:
    """Return whether the agent found that a worker was trying to reach torch's store at an address
    that was not set by relight.
    """
    return OTHER_ADDRESS in failure.evidence


def is_at_other_store(failure: Failure) -> bool:
    """Return whether the agent found that a worker was trying to reach one of torch's stores that
    isn't that of the process group.
    """
    return failure.evidence.startswith(OTHER_STORE)


def last_messages(report: ErrorReport | None, last_lines: Sequence[str]) -> str:
    """Return a worker's last messages, which are its exception and the first exception in that
    exception's chain. A group's most relevant exception represents the group.
    """
    if report is None:
        return "\n".join(last_lines)
    said = without_other_members(f"{report.type}: {report.message}")
    return f"{said}\n{without_other_members(report.cause)}" if report.cause else said


def _text(failure: Failure) -> str:
    return last_messages(failure.report, failure.last_lines)
