"""Console, streams and readers on a real loop, with real pipes, files and pseudo-terminals."""

import contextlib
import os
import re
import select
import socket
import termios
import tracemalloc
import tty
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from screens import FastLoop, Screen, descriptors, loop, screen, small_screen  # noqa: F401

from relight.agent.prepare import log_settings
from relight.base.env import Environment
from relight.flags.arguments import parse, to_spec
from relight.output import console as console_module
from relight.output.console import Console, Consoles, ConsoleStream
from relight.output.pipe_reader import PipeReader, channel
from relight.output.worker_logs import Logs

# Lines


LETTERS = (b"abc", b"ABC", b"012", b"xyz")
STEPS = st.one_of(
    st.tuples(
        st.just("write"),
        st.integers(0, 3),
        st.lists(st.sampled_from([0, 1, 2, 3, 4]), min_size=1, max_size=8),
        st.sampled_from([1, 1, 1, 300]),
    ),
    st.tuples(st.just("sleep"), st.sampled_from([0.0, 0.05, 0.11, 0.6, 5.1])),
    st.tuples(st.just("read"), st.sampled_from([100, 5000])),
    st.tuples(st.just("say")),
    st.tuples(st.just("end"), st.integers(0, 3)),
)


def chunk(stream: int, pieces: list[int], repeat: int) -> bytes:
    """Return bytes that differ from those in other streams, with `$` before each real line end."""
    letters = LETTERS[stream]
    texts = [letters[:1], letters[1:2] * repeat, letters[2:] + b"$\n", b"\r", letters + b"$\r\n"]
    return b"".join(texts[piece] for piece in pieces)


@settings(max_examples=300)
@given(
    steps=st.lists(STEPS, max_size=40),
    count=st.integers(1, 4),
    prefixed=st.booleans(),
    tiny=st.booleans(),
)
def test_lines_from_several_streams_never_mix(
    steps: list[tuple], count: int, prefixed: bool, tiny: bool
) -> None:  # fmt: skip
    """Each line has bytes from one stream only, and all of a stream's bytes arrive in order."""
    with pytest.MonkeyPatch.context() as patch:
        if tiny:  # so that the limits are hit constantly
            patch.setattr(console_module, "_QUEUE", 400)
            patch.setattr(console_module, "_LONG_LINE", 100)
        loop = FastLoop()
        screen = Screen(loop, 4096)
        prefixes = [b"<%d>" % i if prefixed else b"" for i in range(count)]
        ends = []
        for prefix in prefixes:
            ours, theirs = channel(-1)
            os.set_blocking(theirs, False)
            ends.append((PipeReader(loop, ours, ConsoleStream(screen.console, prefix)), theirs))
        written = [b""] * count
        said = 0
        try:
            for verb, *arguments in steps:
                if verb == "sleep":
                    loop.sleep(arguments[0])
                elif verb == "read":
                    screen.read(arguments[0])
                elif verb == "say":
                    screen.console.say("#")
                    said += 1
                elif arguments[0] < count and ends[arguments[0]][1] >= 0:
                    number = arguments[0]
                    reader, theirs = ends[number]
                    if verb == "end":
                        os.close(theirs)
                        ends[number] = (reader, -1)
                    else:
                        data = chunk(number, *arguments[1:])
                        written[number] += data[: os.write(theirs, data)]
                loop.settle(2)
            for reader, theirs in ends:
                if theirs >= 0:
                    os.close(theirs)
                reader.finish()
            loop.until(lambda: (screen.read(), all(reader.done for reader, _ in ends))[1])
            loop.until(lambda: (screen.read(), not screen.console._queue)[1])
            loop.sleep(10)
            screen.read()
            assert loop.idle
        finally:
            screen.close()
            loop.close()
    shown = screen.seen
    for prefix, letters in zip(prefixes, LETTERS, strict=False):
        if prefix:
            for piece in re.split(rb"[\r\n]+", shown):
                if set(piece) & set(letters):
                    assert piece.startswith(prefix)
            shown = shown.replace(prefix, b"")
    lines = shown.split(b"\n")
    assert lines.count(b"#") == said
    back = [b""] * count
    for line in lines:
        if line == b"#":
            continue
        owners = [i for i, letters in enumerate(LETTERS) if set(line) & set(letters)]
        assert len(owners) <= 1, f"a line of {owners}: {line!r}"
        if owners:
            back[owners[0]] += line.replace(b"\r", b"")
        else:
            assert set(line) <= set(b"$\r")
    marks = shown.count(b"$")
    assert marks == sum(data.count(b"$") for data in written)
    assert len(re.findall(rb"\$\r?\n", shown)) >= marks - shown.endswith((b"$", b"$\r"))
    assert shown.count(b"\r") == sum(data.count(b"\r") for data in written)
    assert shown.count(b"\n") >= sum(data.count(b"\n") for data in written) + said
    for data, got in zip(written, back, strict=True):
        expected = data.replace(b"\r", b"").replace(b"\n", b"")
        assert got.replace(b"$", b"") == expected.replace(b"$", b"")
    if count == 1 and not prefixed and not said:
        assert shown == written[0]


def test_unfinished_line_is_shown_after_a_short_delay(loop: FastLoop, screen: Screen) -> None:
    """Text without a line end is held back briefly and then shown. The rest of it follows on the
    same line.
    """
    first, other = ConsoleStream(screen.console), ConsoleStream(screen.console)
    first.feed(b"loss: ")
    loop.settle()
    assert screen.read() == b""
    loop.sleep(0.15)
    assert screen.read() == b"loss: "
    first.feed(b"0.5\n")
    other.feed(b"other\n")
    assert screen.read() == b"loss: 0.5\nother\n"


def test_single_stream_is_not_delayed(screen: Screen) -> None:
    """With no other stream to mix with, every byte is shown immediately."""
    ConsoleStream(screen.console).feed(b"Enter: ")
    assert screen.read() == b"Enter: "


def test_unfinished_line_delays_other_streams_by_half_a_second(
    loop: FastLoop, screen: Screen
) -> None:
    first, other = ConsoleStream(screen.console, b"[a]"), ConsoleStream(screen.console, b"[b]")
    first.feed(b"stuck")
    loop.sleep(0.2)
    other.feed(b"other\n")
    loop.sleep(0.4)
    assert screen.read() == b"[a]stuck"
    loop.sleep(0.2)
    assert screen.read() == b"[a]stuck\n[b]other\n"
    first.feed(b" again\n")
    assert screen.read() == b"[a]stuck\n[b]other\n[a] again\n"


def test_line_is_not_broken_unless_another_stream_is_waiting(
    loop: FastLoop, screen: Screen
) -> None:
    """However long it takes, an unfinished line is only broken for another stream's output."""
    first, _ = ConsoleStream(screen.console), ConsoleStream(screen.console)
    for _ in range(20):
        first.feed(b".")
        loop.sleep(3)
    assert screen.read() == b"." * 20


def test_endless_line_is_eventually_broken_for_other_streams(
    loop: FastLoop, screen: Screen
) -> None:
    """This happens after several seconds."""
    dots, other = ConsoleStream(screen.console), ConsoleStream(screen.console)
    dots.feed(b".")
    loop.sleep(0.2)
    other.feed(b"other\n")
    for _ in range(60):
        dots.feed(b".")
        loop.sleep(0.1)
    shown = screen.read()
    assert re.fullmatch(rb"\.{40,60}\nother\n\.+", shown), shown


@pytest.mark.parametrize("bar", [b"\r%d%%", b"%d%%\r"])
def test_other_streams_can_write_between_progress_bar_updates(
    loop: FastLoop, screen: Screen, bar: bytes
) -> None:
    """When a progress bar returns to the start of its line, waiting streams may write, as they may
    at a line end.
    """
    moving, other = ConsoleStream(screen.console), ConsoleStream(screen.console)
    for percent in range(10, 20):
        moving.feed(bar % percent)
        loop.sleep(0.11)
        if percent == 13:
            other.feed(b"other\n")
    shown = screen.read()
    before, after = shown.split(b"other\n")
    assert before.endswith(b"\r\n")
    assert b"15" not in before
    assert (before[:-1] + after) == b"".join(bar % percent for percent in range(10, 20))


def test_crlf_split_across_reads_gets_one_prefix(loop: FastLoop, screen: Screen) -> None:
    stream = ConsoleStream(screen.console, b"[a]")
    stream.feed(b"one\r")
    loop.sleep(0.2)
    stream.feed(b"\ntwo\r\n")
    assert screen.read() == b"[a]one\r\n[a]two\r\n"


def test_agent_message_appears_on_its_own_line(loop: FastLoop, small_screen: Screen) -> None:
    """It breaks the current line, and no other output comes in between."""
    screen = small_screen
    first, other = ConsoleStream(screen.console), ConsoleStream(screen.console)
    first.feed(b"half")
    loop.sleep(0.2)
    other.feed(b"x" * 70000)  # too long to wait for its end
    screen.console.say("message")
    screen.console.say("again")
    first.end()
    other.end()
    loop.until(lambda: len(screen.read()) >= 70000 + len(b"half\nmessage\n\nagain\n"))
    assert re.fullmatch(rb"half\nmessage\nx+\nagain\n(x+)?", screen.seen)
    assert screen.seen.count(b"x") == 70000


# Consoles that are slow, stuck or closed


def test_line_repeated_by_several_ranks_is_shown_once(loop: FastLoop, screen: Screen) -> None:
    """The note precedes any agent message, and is printed before the console is flushed."""
    screen.console.shows_once = True
    streams = [ConsoleStream(screen.console, b"<%d>" % rank, rank) for rank in range(3)]
    for stream in streams:
        stream.feed(b"a\nb")
        stream.feed(b"\n")
    assert screen.read() == b"<0>a\n<0>b\n"
    loop.sleep(0.2)
    assert screen.read() == b"<0>a\n<0>b\n[ranks 1-2] the same 2 lines\n"
    screen.seen = b""
    for stream in streams[1:]:
        stream.feed(b"c\n")
    screen.console.say("message")
    for stream in streams[1:]:
        stream.feed(b"c\n")
    screen.console.flush()
    note = b"[rank 2] the same\n"
    assert screen.read() == b"<1>c\n%smessage\n<1>c\n%s" % (note, note)
    loop.sleep(1)
    assert loop.idle


@pytest.mark.parametrize(
    ("rest", "shown"),
    [(b" done\n", b"a\n10 % done\n[rank 1] a\n"), (b"", b"a\n10 %\n[rank 1] a\n")],
)
def test_note_about_repeated_lines_waits_for_end_of_line(
    loop: FastLoop, screen: Screen, rest: bytes, shown: bytes
) -> None:
    """It breaks the line only if the stream that owns it is idle."""
    screen.console.shows_once = True
    streams = [ConsoleStream(screen.console, rank=rank) for rank in range(3)]
    streams[2].feed(b"10 %")
    loop.sleep(0.05)
    for stream in streams[:2]:
        stream.feed(b"a\n")
    loop.sleep(0.06)
    loop.sleep(0.06)
    assert screen.read() == b"a\n10 %"
    streams[2].feed(rest)
    loop.sleep(0.5)
    assert screen.read() == shown


def test_slow_console_does_not_break_long_line(loop: FastLoop, small_screen: Screen) -> None:
    """A stream isn't idle while the console itself keeps it from writing."""
    screen = small_screen
    long, other = ConsoleStream(screen.console), ConsoleStream(screen.console)
    pieces = [b"x" * 65536] * 15 + [b"x" * 65536 + b"\n"]
    long.feed(pieces.pop(0))
    other.feed(b"other\n")
    while pieces or not other.wrote_at:
        while pieces and not long.full:
            long.feed(pieces.pop(0))
        loop.sleep(2.0)  # much longer than the console waits for an idle owner
        screen.read(1 << 14)
    shown = screen.read_until(lambda seen: seen.endswith(b"other\n"))
    assert shown == b"x" * (1 << 20) + b"\nother\n"


def test_blocked_console_does_not_block_the_loop(
    loop: FastLoop, small_screen: Screen, descriptors: Callable[[int], int]
) -> None:
    """Writers wait, memory stays bounded, and everything is shown later."""
    screen = small_screen
    writers = {}
    for number in range(4):
        ours, theirs = channel(-1)
        descriptors(theirs)
        os.set_blocking(theirs, False)
        writers[theirs] = (b"%d\n" % number, PipeReader(loop, ours, ConsoleStream(screen.console)))
    sent = dict.fromkeys(writers, 0)

    def write_all() -> int:
        before = sum(sent.values())
        for fd, (line, _) in writers.items():
            try:
                sent[fd] += os.write(fd, line * 2048)
            except BlockingIOError:
                pass
        return sum(sent.values()) - before

    tracemalloc.start()
    idle_turns = 0
    while idle_turns < 5:
        idle_turns = 0 if write_all() else idle_turns + 1
        loop.sleep(0.05)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20
    assert all(64 * 1024 <= size < 1 << 20 for size in sent.values())
    assert loop.idle, "nothing is polled while the console is stuck"
    before = dict(sent)
    loop.until(
        lambda: (screen.read(), write_all(), all(sent[fd] > before[fd] for fd in writers))[2]
    )
    for fd, (_, reader) in writers.items():
        os.close(fd)
        reader.finish()
    loop.until(lambda: len(screen.read()) == sum(sent.values()))
    for fd, (line, _) in writers.items():
        assert screen.seen.split(b"\n").count(line[:-1]) == sent[fd] // 2


def test_message_that_drains_the_queue_wakes_waiting_streams(
    loop: FastLoop, small_screen: Screen
) -> None:
    screen = small_screen
    first, other = ConsoleStream(screen.console), ConsoleStream(screen.console)
    first.feed(b"x" * 300_000 + b"\n")
    other.feed(b"other\n")
    assert screen.console.full
    while screen.console._queue:  # as if the console accepted everything while a message is written
        screen.read()
        screen.console._drain()
    screen.console.say("message")
    shown = screen.read_until(lambda seen: b"other\n" in seen)
    assert shown.count(b"\n") == 3


def test_longest_waiting_stream_writes_next_at_line_end(small_screen: Screen) -> None:
    """A stream that has waited for longer than the line's owner writes right after that line."""
    screen = small_screen
    owner, other = ConsoleStream(screen.console), ConsoleStream(screen.console)
    owner.feed(b"x" * 300_000)
    other.feed(b"other\n")
    owner.feed(b"end\n")
    while screen.console._queue:  # as if the console accepted everything in one call
        screen.read()
        screen.console._drain()
    screen.console._on_writable()
    shown = screen.read_until(lambda seen: b"other\n" in seen)
    assert shown == b"x" * 300_000 + b"end\nother\n"


def test_slow_console_is_shared_fairly(
    loop: FastLoop, small_screen: Screen, descriptors: Callable[[int], int]
) -> None:
    """Streams that always have more output than the console accepts get equal shares."""
    screen = small_screen
    writers = []
    for number in range(4):
        ours, theirs = channel(-1)
        descriptors(theirs)
        os.set_blocking(theirs, False)
        writers.append((theirs, b"%d" % number * 99 + b"\n"))
        PipeReader(loop, ours, ConsoleStream(screen.console))
    while len(screen.read()) < 4 << 20:
        for fd, line in writers:
            try:
                os.write(fd, line * 40)
            except BlockingIOError:
                pass
        loop.run_once(0)
    shares = [screen.seen.count(line) for _, line in writers]
    assert min(shares) * 2 > max(shares), shares
    screen.close_reader()
    loop.settle()


def test_writers_get_epipe_after_console_reader_has_closed(
    loop: FastLoop, small_screen: Screen, descriptors: Callable[[int], int]
) -> None:
    """When the console's reader closes, a worker's next write fails, even if the worker had to
    wait.
    """
    screen = small_screen
    writers = []
    for _ in range(3):
        ours, theirs = channel(-1)
        descriptors(theirs)
        os.set_blocking(theirs, False)
        writers.append((theirs, PipeReader(loop, ours, ConsoleStream(screen.console))))
    for fd, _ in writers[:2]:  # the third writer has written nothing
        while loop.run_once(0) is None:
            try:
                os.write(fd, b"line\n" * 1000)
            except BlockingIOError:
                break
    screen.close_reader()
    loop.until(lambda: all(reader.done for _, reader in writers))
    assert screen.console.broken
    for fd, _ in writers:
        with pytest.raises(BrokenPipeError):
            os.write(fd, b"x")
    assert loop.idle
    screen.console.say("nobody hears it")
    screen.console.flush()


def test_full_disk_stops_output_but_not_agent_or_writers(
    loop: FastLoop, descriptors: Callable[[int], int]
) -> None:
    """After ENOSPC, the workers' output is read and discarded."""
    console = Console(loop, descriptors(os.open("/dev/full", os.O_WRONLY)))
    descriptors(console.fd)
    ours, theirs = channel(-1)
    descriptors(theirs)
    reader = PipeReader(loop, ours, ConsoleStream(console))
    os.set_blocking(theirs, False)
    os.write(theirs, b"line\n")
    loop.until(lambda: console.broken)
    left = [b"another line\n" * 300] * 300  # more than a pipe holds

    def is_written() -> bool:
        with contextlib.suppress(BlockingIOError):
            while left:
                assert os.write(theirs, left[-1]) == len(left.pop())
        return not left

    loop.until(is_written)
    os.close(theirs)
    loop.until(lambda: reader.done)


def test_all_output_can_be_written_to_file_or_dev_null(
    loop: FastLoop, tmp_path: Path, descriptors: Callable[[int], int]
) -> None:
    """The file's earlier content is kept."""
    path = tmp_path / "out.txt"
    path.write_bytes(b"before\n")
    file_fd = descriptors(os.open(path, os.O_WRONLY | os.O_APPEND))
    null_fd = descriptors(os.open(os.devnull, os.O_WRONLY))
    for fd in (file_fd, null_fd):
        console = Console(loop, fd)
        stream = ConsoleStream(console)
        for _ in range(100):
            stream.feed(b"x" * 99_999 + b"\n")
        stream.end()
        console.flush()
        assert not console.broken
        if console.fd != fd:
            descriptors(console.fd)
    os.write(file_fd, b"after\n")  # all processes that have the file open share its offset
    assert path.read_bytes() == b"before\n" + (b"x" * 99_999 + b"\n") * 100 + b"after\n"


@pytest.mark.parametrize("shared_nonblocking", [False, True])
@pytest.mark.parametrize("kind", ["pipe", "socket", "terminal"])
def test_slow_console_reader_never_blocks_the_loop(
    kind: str, shared_nonblocking: bool, loop: FastLoop, descriptors: Callable[[int], int]
) -> None:
    """Whatever stdout is, with or without O_NONBLOCK, the agent waits for room in its loop."""
    if kind == "pipe":
        theirs, ours = os.pipe()
    elif kind == "socket":
        theirs, ours = (each.detach() for each in socket.socketpair())
    else:
        theirs, ours = os.openpty()
        tty.setraw(ours)
    descriptors(theirs)
    descriptors(ours)
    os.set_blocking(ours, not shared_nonblocking)
    console = Console(loop, ours)
    if console.fd != ours:
        descriptors(console.fd)
    stream = ConsoleStream(console)
    data = b"0123456789abcde\n" * 64 * 1024
    position = 0
    while position < len(data) and not stream.full:
        stream.feed(data[position : position + 65536])
        position += 65536
        loop.settle()
    assert stream.full
    if kind == "terminal":
        termios.tcflow(ours, termios.TCOOFF)  # Ctrl-S
        loop.settle()
        termios.tcflow(ours, termios.TCOON)
    os.set_blocking(theirs, False)
    seen = bytearray()

    def done() -> bool:
        nonlocal position
        if select.select([theirs], [], [], 0)[0]:
            seen.extend(os.read(theirs, 3000))
        if position < len(data) and not stream.full:
            stream.feed(data[position : position + 65536])
            position += 65536
        return len(seen) == len(data)

    loop.until(done)
    assert seen == data
    assert os.get_blocking(ours) != shared_nonblocking, "the flag belongs to those who share it"


def test_shared_stdout_and_stderr_use_one_console(
    loop: FastLoop, tmp_path: Path, descriptors: Callable[[int], int]
) -> None:
    """With `2>&1` there is one console, so that lines from the two don't mix. Two pipes have two
    consoles.
    """
    r1, w1 = os.pipe()
    r2, w2 = os.pipe()
    for fd in (r1, w1, r2, w2):
        descriptors(fd)
    file = descriptors(os.open(tmp_path / "f", os.O_WRONLY | os.O_CREAT))
    saved = [descriptors(os.dup(fd)) for fd in (1, 2)]
    opened: list[Consoles] = []
    try:
        for out, err in ((w1, w1), (w1, w2), (file, file), (w1, file)):
            os.dup2(out, 1)
            os.dup2(err, 2)
            opened.append(Consoles.open(loop))
    finally:
        for fd, old in zip((1, 2), saved, strict=True):
            os.dup2(old, fd)
    for consoles in opened:
        for console in set(consoles):
            if console.fd > 2:
                descriptors(console.fd)
    assert [consoles.stdout is consoles.stderr for consoles in opened] == [
        True, False, True, False,
    ]  # fmt: skip


@pytest.mark.parametrize(("flag", "is_merged"), [("once", False), ("all", False), ("always", True)])
def test_repeated_lines_written_to_a_pipe_are_merged_on_request(
    loop: FastLoop, screen: Screen, tmp_path: Path, flag: str, *, is_merged: bool
) -> None:
    spec = to_spec(parse([f"--repeated-lines={flag}", "t.py"], Environment({})))
    consoles = Consoles(screen.console, screen.console)
    Logs(loop, consoles, log_settings(spec), str(tmp_path / "attempt_0"))
    assert screen.console.shows_once == is_merged
