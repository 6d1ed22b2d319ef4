"""Output that is held back on a terminal, and for how long. No byte is lost or reordered."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relight.core.workers.held_traceback import HeldTraceback

SAMPLES = Path(__file__).parent / "samples"
TRACEBACK = (
    b'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nValueError: x\n'
)
SYNTAX_ERROR = b'  File "a.py", line 2\n    if x\n        ^\nSyntaxError: invalid syntax\n'
MANY = 64 * 1024


class Play:
    """A worker's output, the part that has been shown, and the clock."""

    def __init__(self) -> None:
        self.core = HeldTraceback()
        self.now = 100.0
        self.printed = self.shown = b""

    def prints(self, data: bytes) -> bytes:
        self.printed += data
        return self._show(self.core.output(data, self.now))

    def look(self, ends: bool | None) -> bytes:
        return self._show(self.core.on_inspected(ends, self.now))

    def look_when_due(self, ends: bool | None) -> bytes:
        due = self.core.deadline()
        assert due is not None
        self.now = max(self.now, due)
        return self.look(ends)

    def ends(self) -> None:
        self.core.worker_ended()
        self._show(b"")

    def _show(self, data: bytes) -> bytes:
        self.shown += data
        self.core.check()
        assert self.shown + self.core.held == self.printed
        return data


@pytest.mark.parametrize(
    ("before", "held"),
    [
        (b"", TRACEBACK),
        (b"loading\n", TRACEBACK),
        (b"ERROR:root:failed\n", TRACEBACK),
        (b" 50%|#####     | 3/6", TRACEBACK),
        (b"\r 50%|#####     | 3/6\r", TRACEBACK),
        (b"line\n", b"[rank12]: " + TRACEBACK),
        (b"line\n", b"  + Exception Group " + TRACEBACK),
        (b"line\n", b"[rank3]:   + Exception Group " + TRACEBACK),
        (b"line\n", SYNTAX_ERROR),
        (b"", SYNTAX_ERROR),
        (b"", b'  File \x1b[35m"a.py"\x1b[0m, line \x1b[35m2\x1b[0m\n    if x\n'),
        (b"line\n", b"Traceback (mo"),
        (b"line\n", b'  File "a.p'),
        (b"a table\n  File      size\n", b""),
        (b"a table\n  File      size\n", TRACEBACK),
        (b'Current thread 0x7f (most recent call first):\n  File "a.py", line 4 in f\n', b""),
        (b'in the middle:  File "a.py", line 2\n', b""),
        ("╭──── Traceback (most recent call last) ────╮\n".encode(), b""),
        (b"Trace of the matrix: 3\n", b""),
    ],
)
def test_output_is_held_back_from_the_start_of_a_traceback(before: bytes, held: bytes) -> None:
    play = Play()
    assert play.prints(before + held) == before
    assert play.core.held == held
    assert (play.core.deadline() is None) == (not held)


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(SAMPLES.glob("*.txt")) if not path.stem.startswith("json-log")],
    ids=lambda path: path.stem,
)
def test_every_kind_of_traceback_is_held_back_for_any_chunk_size(path: Path) -> None:
    """Only the text before the traceback's first word may be shown if it arrives alone."""
    data = path.read_bytes()
    whole = Play()
    whole.prints(data)
    begin = max(0, whole.core.held.find(b"Traceback (most recent"))
    for size in (1, 7, 4095):
        play = Play()
        for at in range(0, len(data), size):
            play.prints(data[at : at + size])
        assert play.core.held.endswith(whole.core.held[begin:])


def test_fatal_traceback_is_held_back_until_worker_exits() -> None:
    """Anything printed while Python shuts down is held back along with the traceback."""
    play = Play()
    assert play.prints(b"step 1\n" + TRACEBACK) == b"step 1\n"
    for _ in range(8):
        assert play.look_when_due(True) == b""
    assert (
        play.prints(b"[W1124 socket.cpp] Warning: destroy_process_group() was not called\n") == b""
    )
    play.ends()
    assert play.core.deadline() is None
    assert play.core.held.startswith(TRACEBACK)


@pytest.mark.parametrize("data", [TRACEBACK, SYNTAX_ERROR])
def test_traceback_of_caught_exception_is_shown_immediately(data: bytes) -> None:
    play = Play()
    play.prints(data)
    assert play.core.deadline() == play.now
    assert play.look(False) == data
    assert play.prints(b"goes on\n") == b"goes on\n"


def test_held_traceback_is_shown_once_worker_is_seen_to_continue() -> None:
    """The first check may have been made just between two stacks."""
    play = Play()
    play.prints(TRACEBACK)
    assert play.look(True) == b""
    assert play.prints(b"retry\n") == b""
    assert play.look_when_due(False) == TRACEBACK + b"retry\n"


def test_traceback_of_worker_that_cannot_be_inspected_is_shown_after_a_delay() -> None:
    play = Play()
    play.prints(TRACEBACK)
    began = play.now
    assert play.look(None) == b""
    assert play.look_when_due(None) == TRACEBACK
    assert play.now - began <= 0.25


def test_worker_that_could_not_be_inspected_is_inspected_again() -> None:
    """A shell script may continue after its Python process has exited, and a check may fail for
    other reasons.
    """
    play = Play()
    play.prints(TRACEBACK)
    for ends in (None, True, None, True):
        assert play.look_when_due(ends) == b""
    assert play.look_when_due(None) == b""
    assert play.look_when_due(None) == TRACEBACK


def test_traceback_is_shown_if_worker_hangs_during_shutdown() -> None:
    """The process hangs while it shuts down."""
    play = Play()
    play.prints(TRACEBACK)
    began = play.now
    while not play.look_when_due(True):
        assert play.now - began < 5
    assert play.now - began == 5
    assert play.shown == TRACEBACK


def test_held_output_is_limited_to_what_the_report_needs() -> None:
    play = Play()
    play.prints(TRACEBACK)
    assert play.look(True) == b""
    while len(play.printed) <= MANY:
        play.prints(b"frame\n" * 1000)
    assert play.shown == play.printed
    assert play.prints(TRACEBACK + b"x" * MANY).startswith(TRACEBACK)


def test_frequent_tracebacks_cause_at_most_four_inspections_a_second() -> None:
    play = Play()
    looks = 0
    for _ in range(1000):
        play.prints(TRACEBACK)
        play.now += 0.01
        due = play.core.deadline()
        if due is not None and due <= play.now:
            play.look(False)
            looks += 1
    assert 35 <= looks <= 41


def test_output_that_merely_resembles_a_traceback_is_shown() -> None:
    play = Play()
    assert play.prints(b"Trace") == b""
    assert play.prints(b" of the matrix\n") == b"Trace of the matrix\n"
    assert play.core.deadline() is None


def test_traceback_header_split_across_chunks_is_recognised() -> None:
    play = Play()
    play.prints(b"line\nTraceba")
    assert play.prints(TRACEBACK[7:]) == b""
    assert play.core.held == TRACEBACK
    assert play.core.deadline() == play.now


def test_no_output_is_held_back_after_exit_without_a_traceback() -> None:
    """Processes that the worker left behind may still print."""
    play = Play()
    play.prints(b"bye\n")
    play.ends()
    assert play.prints(TRACEBACK) == TRACEBACK


PIECES = st.sampled_from(
    [
        b"line\n", b"\r50%", b"Tra", b"Traceback (most recent", b" call last):\n", TRACEBACK,
        SYNTAX_ERROR, b"  File ", b"[rank0]: ", b"  + Exception Group ", b"x" * 30_000, b"\n",
    ]
)  # fmt: skip
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("prints"), PIECES),
        st.tuples(st.just("sleeps"), st.sampled_from([0.0, 0.01, 0.3, 6.0])),
        st.tuples(st.just("is seen"), st.sampled_from([True, False, None])),
        st.tuples(st.just("is released"), st.none()),
        st.tuples(st.just("ends"), st.none()),
    ),
    max_size=30,
)


@settings(max_examples=500)
@given(steps=STEPS)
def test_shown_and_held_output_add_up_to_printed_output(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    """`Play` checks this and the core's invariants after each step. At the end, everything has been
    shown.
    """
    play = Play()
    began: float | None = None
    ended = False
    for verb, argument in steps:
        match verb:
            case "prints":
                play.prints(argument)
            case "sleeps":
                play.now += argument
            case "is seen":
                play.look(argument)
            case "is released":
                play._show(play.core.release())
            case "ends":
                play.ends()
                ended = True
        while (due := play.core.deadline()) is not None and due <= play.now:
            play.look(True)
        began = (play.now if began is None else began) if play.core.held else None
        if began is not None and not ended:
            assert play.now - began < 5
    play._show(play.core.release())
    assert play.shown == play.printed
