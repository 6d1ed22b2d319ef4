"""Lines that a terminal shows only once, and the note about the other ranks."""

from hypothesis import given, settings
from hypothesis import strategies as st

from relight.core.workers.repeated_lines import RepeatedLines


class Play:
    """A terminal showing several ranks' output, and the clock."""

    def __init__(self) -> None:
        self.core = RepeatedLines()
        self.now = 100.0

    def prints(self, rank: int, *lines: str, inside: bool = False) -> list[str]:
        """Print whole lines, and return the ones that are shown."""
        data = "".join(f"{line}\n" for line in lines).encode()
        shown = self.core.output(rank, data, self.now, inside=inside)
        self.core.check()
        return shown.decode().splitlines()

    def notes(self, after_s: float = 0.1) -> list[str]:
        self.now += after_s
        due = self.core.deadline()
        notes = self.core.notes(self.now) if due is not None and due <= self.now else []
        self.core.check()
        return notes


def test_line_printed_by_several_ranks_is_shown_once() -> None:
    play = Play()
    assert play.prints(0, "Loading") == ["Loading"]
    assert [play.prints(rank, "Loading") for rank in range(1, 8)] == [[]] * 7
    assert play.notes(0.09) == []
    assert play.notes(0.01) == ["[ranks 1-7] the same"]
    assert play.core.deadline() is None


def test_repeated_block_of_lines_gets_one_note() -> None:
    play = Play()
    play.prints(3, "a", "", "b")
    for rank in (0, 1, 5):
        assert play.prints(rank, "a") == []
    for rank in (0, 1, 5):
        assert play.prints(rank, "", "b") == []
    assert play.notes() == ["[ranks 0-1, 5] the same 3 lines"]


def test_note_names_all_ranks_if_different_ranks_printed_the_lines_first() -> None:
    play = Play()
    play.prints(0, "a")
    play.prints(1, "a", "b")
    play.prints(0, "b")
    assert play.notes() == ["[ranks 0-1] the same 2 lines"]


def test_note_quotes_the_repeated_line_if_other_output_came_between() -> None:
    play = Play()
    play.prints(0, "\x1b[32ma\x1b[0m", "own", "b")
    play.prints(1, "\x1b[32ma\x1b[0m", "mine", "b")
    assert play.notes() == ["[rank 1] a (and 1 more of the lines above)"]
    play.prints(0, "c" * 100)
    play.prints(1, "c" * 100)
    play.core.interrupt()
    assert play.notes() == [f"[rank 1] {'c' * 60}…"]


def test_lines_repeated_by_different_ranks_get_separate_notes() -> None:
    play = Play()
    play.prints(0, "a", "b")
    play.prints(1, "a", "b")
    play.prints(2, "b")
    assert play.notes() == ["[rank 1] a", "[ranks 1-2] b"]


def test_line_repeated_by_one_rank_is_shown_every_time() -> None:
    play = Play()
    assert play.prints(0, "a", "a") == ["a", "a"]
    assert play.prints(1, "a", "a", "a") == ["a"]
    assert play.prints(2, "a", "a", "a") == []
    assert play.notes() == ["[ranks 1-2] a (and 1 more of the lines above)", "[rank 2] a"]


def test_line_repeated_too_late_is_shown_again() -> None:
    play = Play()
    play.prints(0, "a")
    assert play.notes() == []
    assert play.prints(1, "a") == ["a"]


def test_note_on_the_last_line_waits_for_the_missing_ranks() -> None:
    """In a steady stream, a note replaces the lines that all ranks have printed."""
    play = Play()
    for step in range(6):
        for rank in (0, 1, 2):
            if (step, rank) != (5, 2):
                play.prints(rank, f"step {step}")
        play.now += 0.016
    assert play.notes(0) == []
    assert play.notes(0.005) == ["[ranks 1-2] step 0 (and 4 more of the lines above)"]
    assert play.prints(2, "step 5") == []
    assert play.notes() == ["[ranks 1-2] step 5"]


def test_pending_notes_are_printed_before_a_message() -> None:
    play = Play()
    play.prints(0, "a")
    play.prints(1, "a")
    assert play.core.all_notes() == ["[rank 1] the same"]
    assert play.core.deadline() is None


def test_lines_that_move_the_cursor_are_never_dropped() -> None:
    play = Play()
    for text in ("10%\r20%", "\x1b[2Kdone", "\x1b[Aup", "bell\a", "back\b"):
        for rank in (0, 1):
            assert play.core.output(rank, f"{text}\n".encode(), play.now, inside=False)
    assert play.core.deadline() is None


def test_partial_lines_are_never_dropped() -> None:
    play = Play()
    play.prints(0, "a")
    assert play.core.output(1, b"a\na\na", play.now, inside=True) == b"a\na"


def test_lines_beyond_the_memory_limit_are_not_dropped() -> None:
    """Memory for lines is bounded, and is free again in the next window."""
    play = Play()
    lines = [f"line {number}" for number in range(3000)]
    assert play.prints(0, *lines) == lines
    assert play.prints(1, *lines) == lines[2000:]
    long = ["x" * 4000 + str(number) for number in range(100)]
    play.notes()
    assert play.prints(0, *long) == long
    assert 30 < len(play.prints(1, *long)) < 70


LINES = st.lists(st.sampled_from(["a", "b", "", "c\rc"]), min_size=1, max_size=4)
STEPS = st.one_of(
    st.tuples(st.integers(0, 3), LINES), st.sampled_from([0.01, 0.06, 0.1]), st.none()
)


@settings(max_examples=300)
@given(st.lists(STEPS, max_size=40))
def test_only_lines_already_shown_for_another_rank_are_dropped(
    steps: list[tuple[int, list[str]] | float | None],
) -> None:
    """Each time a rank's line is dropped, the same line has been shown for another rank before.
    Every dropped line is covered by a note.
    """
    play = Play()
    shown = dict.fromkeys(("a", "b", "", "c\rc"), 0)
    printed: dict[tuple[int, str], int] = {}
    for step in [*steps, None]:
        if isinstance(step, tuple):
            rank, lines = step
            for line in lines:
                printed[rank, line] = printed.get((rank, line), 0) + 1
                shown[line] += (
                    play.core.output(rank, f"{line}\n".encode(), play.now, inside=False) != b""
                )
                play.core.check()
                assert printed[rank, line] <= shown[line]
        elif step is None:
            play.core.all_notes()
            play.core.check()
        else:
            play.notes(step)
