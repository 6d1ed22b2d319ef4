"""Console, streams and readers on a real loop with real pipes, files and pseudo-terminals."""

import fcntl
import os
import re
import select
import signal
import socket
import stat
import termios
import time
import tracemalloc
import tty
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relight.host import console as console_module
from relight.host import linux
from relight.host import logs as logs_module
from relight.host.console import Console, Consoles, Stream
from relight.host.loop import Loop
from relight.host.readers import FileTail, FileTails, PipeReader, channel


class FastLoop(Loop):
    """A loop whose clock stands still, is put forward, or runs while a condition is awaited."""

    clock = 0.0

    def now(self) -> float:
        self.clock += 1e-6  # a call that is due now comes in the next turn
        return self.clock

    def settle(self, turns: int = 6) -> None:
        """Handle what is due now."""
        for _ in range(turns):
            self.run_once(0)

    def sleep(self, seconds: float) -> None:
        self.clock += seconds
        self.settle()

    def until(self, done: Callable[[], bool], limit_s: float = 60) -> None:
        begin, was = time.monotonic(), self.clock
        while not done():
            assert self.clock - was < limit_s, "it never happens"
            self.run_once(0.01)
            self.clock = max(self.clock, was + time.monotonic() - begin)

    @property
    def idle(self) -> bool:
        """Whether no timer is set."""
        return not [timer for timer in self._timers if timer.callback is not None]


class Screen:
    """A pipe with a console at one end and a reader at the other."""

    def __init__(self, loop: FastLoop, size: int = 0) -> None:
        self.loop = loop
        self.fd, self.write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        if size:
            fcntl.fcntl(self.write_fd, fcntl.F_SETPIPE_SZ, size)
        self.console = Console(loop, self.write_fd)
        self.seen = b""

    def read(self, size: int = 1 << 20) -> bytes:
        """Return everything that was shown until now, after one more read."""
        try:
            self.seen += os.read(self.fd, size)
        except BlockingIOError:
            pass
        return self.seen

    def read_until(self, done: Callable[[bytes], bool], size: int = 1 << 20) -> bytes:
        def enough() -> bool:
            return done(self.read(size))

        self.loop.until(enough)
        return self.seen

    def close_reader(self) -> None:
        os.close(self.fd)
        self.fd = -1

    def close(self) -> None:
        for fd in {self.fd, self.write_fd, self.console.fd} - {-1}:
            os.close(fd)


@pytest.fixture
def loop() -> Iterator[FastLoop]:
    loop = FastLoop()
    yield loop
    loop.close()


@pytest.fixture
def screen(loop: FastLoop) -> Iterator[Screen]:
    screen = Screen(loop)
    yield screen
    screen.close()


@pytest.fixture
def small_screen(loop: FastLoop) -> Iterator[Screen]:
    """A screen that takes one page before it must be read."""
    screen = Screen(loop, 4096)
    yield screen
    screen.close()


@pytest.fixture
def descriptors() -> Iterator[Callable[[int], int]]:
    """Close these at the end of the test."""
    fds: list[int] = []

    def keep(fd: int) -> int:
        fds.append(fd)
        return fd

    yield keep
    for fd in fds:
        try:
            os.close(fd)
        except OSError:
            pass


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
    """Bytes that can be told from those of other streams: `$` goes before each real line end."""
    letters = LETTERS[stream]
    texts = [letters[:1], letters[1:2] * repeat, letters[2:] + b"$\n", b"\r", letters + b"$\r\n"]
    return b"".join(texts[piece] for piece in pieces)


@settings(max_examples=300, deadline=None)
@given(
    steps=st.lists(STEPS, max_size=40),
    count=st.integers(1, 4),
    prefixed=st.booleans(),
    tiny=st.booleans(),
)
def test_lines_are_never_mixed(
    steps: list[tuple], count: int, prefixed: bool, tiny: bool
) -> None:  # fmt: skip
    """Each line has bytes of one stream, and each stream's bytes arrive, all and in order."""
    with pytest.MonkeyPatch.context() as patch:
        if tiny:  # so that the limits are met all the time
            patch.setattr(console_module, "_QUEUE", 400)
            patch.setattr(console_module, "_LONG_LINE", 100)
        loop = FastLoop()
        screen = Screen(loop, 4096)
        prefixes = [b"<%d>" % i if prefixed else b"" for i in range(count)]
        ends = []
        for prefix in prefixes:
            ours, theirs = channel(-1)
            os.set_blocking(theirs, False)
            ends.append((PipeReader(loop, ours, Stream(screen.console, prefix)), theirs))
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


def test_an_unfinished_line_is_shown_after_a_moment(loop: FastLoop, screen: Screen) -> None:
    """What has no line end is held back shortly, then shown, and its rest follows on the line."""
    first, other = Stream(screen.console), Stream(screen.console)
    first.feed(b"loss: ")
    loop.settle()
    assert screen.read() == b""
    loop.sleep(0.15)
    assert screen.read() == b"loss: "
    first.feed(b"0.5\n")
    other.feed(b"other\n")
    assert screen.read() == b"loss: 0.5\nother\n"


def test_a_lone_stream_is_not_held_back(screen: Screen) -> None:
    """With nobody to mix with, every byte is shown at once."""
    Stream(screen.console).feed(b"Enter: ")
    assert screen.read() == b"Enter: "


def test_a_quiet_owner_is_broken_for_others(loop: FastLoop, screen: Screen) -> None:
    """Who stops in mid-line keeps others waiting for half a second, not longer."""
    first, other = Stream(screen.console, b"[a]"), Stream(screen.console, b"[b]")
    first.feed(b"stuck")
    loop.sleep(0.2)
    other.feed(b"other\n")
    loop.sleep(0.4)
    assert screen.read() == b"[a]stuck"
    loop.sleep(0.2)
    assert screen.read() == b"[a]stuck\n[b]other\n"
    first.feed(b" again\n")
    assert screen.read() == b"[a]stuck\n[b]other\n[a] again\n"


def test_a_line_stays_whole_while_nobody_waits(loop: FastLoop, screen: Screen) -> None:
    """An unfinished line is broken for others only, however long it takes."""
    first, _ = Stream(screen.console), Stream(screen.console)
    for _ in range(20):
        first.feed(b".")
        loop.sleep(3)
    assert screen.read() == b"." * 20


def test_dots_without_an_end_do_not_starve_others(loop: FastLoop, screen: Screen) -> None:
    """A line that grows for ever is broken after some seconds if others wait."""
    dots, other = Stream(screen.console), Stream(screen.console)
    dots.feed(b".")
    loop.sleep(0.2)
    other.feed(b"other\n")
    for _ in range(60):
        dots.feed(b".")
        loop.sleep(0.1)
    shown = screen.read()
    assert re.fullmatch(rb"\.{40,60}\nother\n\.+", shown), shown


@pytest.mark.parametrize("bar", [b"\r%d%%", b"%d%%\r"])
def test_a_progress_bar_lets_others_in(loop: FastLoop, screen: Screen, bar: bytes) -> None:
    """Where a bar starts its line anew, it is a line's end for those who wait."""
    moving, other = Stream(screen.console), Stream(screen.console)
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


def test_a_carriage_return_and_newline_cut_in_two(loop: FastLoop, screen: Screen) -> None:
    """A line end of two bytes that come one by one gets one prefix, not two."""
    stream = Stream(screen.console, b"[a]")
    stream.feed(b"one\r")
    loop.sleep(0.2)
    stream.feed(b"\ntwo\r\n")
    assert screen.read() == b"[a]one\r\n[a]two\r\n"


def test_a_message_of_the_agent_is_a_line(loop: FastLoop, small_screen: Screen) -> None:
    """A message breaks the line that is being written, and nobody gets in between."""
    screen = small_screen
    first, other = Stream(screen.console), Stream(screen.console)
    first.feed(b"half")
    loop.sleep(0.2)
    other.feed(b"x" * 70000)  # too long to wait for its end: it owns the console when it may
    screen.console.say("message")
    screen.console.say("again")
    first.end()
    other.end()
    loop.until(lambda: len(screen.read()) >= 70000 + len(b"half\nmessage\n\nagain\n"))
    assert re.fullmatch(rb"half\nmessage\nx+\nagain\n(x+)?", screen.seen)
    assert screen.seen.count(b"x") == 70000


# A console that is slow, stuck, or gone


def test_a_long_line_is_not_broken_by_a_slow_console(loop: FastLoop, small_screen: Screen) -> None:
    """The owner is not quiet while it is the console that keeps it from writing."""
    screen = small_screen
    long, other = Stream(screen.console), Stream(screen.console)
    pieces = [b"x" * 65536] * 15 + [b"x" * 65536 + b"\n"]
    long.feed(pieces.pop(0))
    other.feed(b"other\n")
    while pieces or not other.wrote_at:
        while pieces and not long.full:
            long.feed(pieces.pop(0))
        loop.sleep(2.0)  # much longer than a quiet owner is waited for
        screen.read(1 << 14)
    shown = screen.read_until(lambda seen: seen.endswith(b"other\n"))
    assert shown == b"x" * (1 << 20) + b"\nother\n"


def test_a_stuck_console_blocks_nobody(
    loop: FastLoop, small_screen: Screen, descriptors: Callable[[int], int]
) -> None:
    """The loop goes on, writers wait, memory is bounded, and later everything is shown."""
    screen = small_screen
    writers = {}
    for number in range(4):
        ours, theirs = channel(-1)
        descriptors(theirs)
        os.set_blocking(theirs, False)
        writers[theirs] = (b"%d\n" % number, PipeReader(loop, ours, Stream(screen.console)))
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


def test_a_message_does_not_leave_others_waiting(loop: FastLoop, small_screen: Screen) -> None:
    """Who waits for room gets it also when it was a message that emptied the queue."""
    screen = small_screen
    first, other = Stream(screen.console), Stream(screen.console)
    first.feed(b"x" * 300_000 + b"\n")
    other.feed(b"other\n")
    assert screen.console.full
    while screen.console._queue:  # as if the console took everything while a message is written
        screen.read()
        screen.console._drain()
    screen.console.say("message")
    shown = screen.read_until(lambda seen: b"other\n" in seen)
    assert shown.count(b"\n") == 3


def test_nobody_gets_a_slow_console_for_himself(
    loop: FastLoop, small_screen: Screen, descriptors: Callable[[int], int]
) -> None:
    """Streams that always have more to show than the console takes get equal parts."""
    screen = small_screen
    writers = []
    for number in range(4):
        ours, theirs = channel(-1)
        descriptors(theirs)
        os.set_blocking(theirs, False)
        writers.append((theirs, b"%d" % number * 99 + b"\n"))
        PipeReader(loop, ours, Stream(screen.console))
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


def test_writers_learn_that_nobody_reads(
    loop: FastLoop, small_screen: Screen, descriptors: Callable[[int], int]
) -> None:
    """When the console's reader goes, a worker's next write fails, also if it had to wait."""
    screen = small_screen
    writers = []
    for _ in range(3):
        ours, theirs = channel(-1)
        descriptors(theirs)
        os.set_blocking(theirs, False)
        writers.append((theirs, PipeReader(loop, ours, Stream(screen.console))))
    for fd, _ in writers[:2]:  # the third has written nothing
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
    screen.console.flush(lambda: False)


def test_a_full_disk_is_a_broken_console(
    loop: FastLoop, descriptors: Callable[[int], int]
) -> None:  # fmt: skip
    """ENOSPC ends the output, not the agent."""
    console = Console(loop, descriptors(os.open("/dev/full", os.O_WRONLY)))
    descriptors(console.fd)
    ours, theirs = channel(-1)
    descriptors(theirs)
    reader = PipeReader(loop, ours, Stream(console))
    os.write(theirs, b"line\n")
    loop.until(lambda: reader.done)
    assert console.broken


def test_other_kinds_of_console(
    loop: FastLoop, tmp_path: Path, descriptors: Callable[[int], int]
) -> None:
    """A regular file and /dev/null take everything; what a file had before stays."""
    path = tmp_path / "out.txt"
    path.write_bytes(b"before\n")
    file_fd = descriptors(os.open(path, os.O_WRONLY | os.O_APPEND))
    null_fd = descriptors(os.open(os.devnull, os.O_WRONLY))
    for fd in (file_fd, null_fd):
        console = Console(loop, fd)
        stream = Stream(console)
        for _ in range(100):
            stream.feed(b"x" * 99_999 + b"\n")
        stream.end()
        console.flush(lambda: False)
        assert not console.broken
        if console.fd != fd:
            descriptors(console.fd)
    os.write(file_fd, b"after\n")  # the offset is shared with whoever has the file
    assert path.read_bytes() == b"before\n" + (b"x" * 99_999 + b"\n") * 100 + b"after\n"


@pytest.mark.parametrize("shared_nonblocking", [False, True])
@pytest.mark.parametrize("kind", ["pipe", "socket", "terminal"])
def test_a_slow_reader_never_blocks_the_loop(
    kind: str, shared_nonblocking: bool, loop: FastLoop, descriptors: Callable[[int], int]
) -> None:
    """Whatever stdout is, and O_NONBLOCK or not, the agent waits for room in its loop."""
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
    stream = Stream(console)
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


def test_stdout_and_stderr_that_lead_to_the_same_place(
    loop: FastLoop, tmp_path: Path, descriptors: Callable[[int], int]
) -> None:
    """`2>&1` gives one console, so that lines of the two are not mixed; two pipes give two."""
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


# Readers


def test_a_terminal_gives_what_was_written_before_it_closed(
    loop: FastLoop, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data that is left in a pseudo-terminal when its last writer goes is not lost with EIO."""
    monkeypatch.setattr(os, "isatty", lambda fd: True)
    ours, theirs = channel(0)
    reader = PipeReader(loop, ours, Stream(screen.console))
    data = b"".join(b"%04d\r\n" % n for n in range(500))
    assert os.write(theirs, data) == len(data)
    os.close(theirs)
    loop.until(lambda: reader.done)
    assert screen.read() == data
    assert reader.tail == data


def test_the_end_of_a_stream_is_kept(loop: FastLoop) -> None:
    """The last 64 KB that a worker wrote are there for the report, and not much more."""
    ours, theirs = channel(-1)
    reader = PipeReader(loop, ours, None)
    for number in range(400):
        os.write(theirs, b"%05d " % number * 200)
        loop.settle(1)
    os.close(theirs)
    loop.until(lambda: reader.done)
    assert 64 * 1024 <= len(reader.tail) <= 128 * 1024
    assert reader.tail.endswith(b"00399 ")


def test_a_descriptor_that_stays_open_does_not_delay_the_end(
    loop: FastLoop, screen: Screen, descriptors: Callable[[int], int]
) -> None:
    """After the workers' end what is in the pipe is read, and nobody waits for an end of file."""
    ours, theirs = channel(-1)
    descriptors(theirs)
    reader = PipeReader(loop, ours, Stream(screen.console))
    os.write(theirs, b"last words")
    reader.finish()
    loop.until(lambda: reader.done)
    assert screen.read() == b"last words"


class TailedFile:
    """A file that somebody writes and a console shows."""

    def __init__(self, loop: FastLoop, console: Console, path: Path) -> None:
        path.touch()
        self.path = path
        self.fd = os.open(path, os.O_WRONLY | os.O_APPEND)
        self.copied = b""
        self.tails = FileTails(loop)
        self.tail = FileTail(str(path), Stream(console))
        self.tails.add(self.tail, str(path))

    def close(self) -> None:
        self.tails.close()
        os.close(self.fd)


@pytest.fixture
def tailed(loop: FastLoop, screen: Screen, tmp_path: Path) -> Iterator[TailedFile]:
    file = TailedFile(loop, screen.console, tmp_path / "stdout.log")
    yield file
    file.close()


def test_a_file_is_shown_while_it_is_written(
    loop: FastLoop, screen: Screen, tailed: TailedFile
) -> None:
    """Each change is shown soon, and when there is none, nothing is scheduled."""
    for number in range(5):
        os.write(tailed.fd, b"line %d\n" % number)
        screen.read_until(lambda seen, n=number: seen.endswith(b"line %d\n" % n))
        loop.until(lambda: loop.idle)
    os.write(tailed.fd, b"rest")
    tailed.tails.finish()
    loop.until(lambda: tailed.tails.done)
    assert screen.read() == b"line 0\nline 1\nline 2\nline 3\nline 4\nrest"


@pytest.mark.parametrize("missing", ["inotify_open", "inotify_watch"])
def test_without_inotify_files_are_polled(
    missing: str,
    loop: FastLoop,
    screen: Screen,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A machine that has no inotify instance or watch left shows output all the same."""
    monkeypatch.setattr(linux, missing, lambda *arguments: -1)
    tailed = TailedFile(loop, screen.console, tmp_path / "stdout.log")
    for number in range(3):
        os.write(tailed.fd, b"line %d\n" % number)
        screen.read_until(lambda seen, n=number: seen.endswith(b"line %d\n" % n))
    tailed.tails.finish()
    loop.until(lambda: tailed.tails.done)
    tailed.close()
    assert loop.idle


def test_changes_that_inotify_forgot(
    loop: FastLoop, screen: Screen, tailed: TailedFile, tmp_path: Path
) -> None:
    """When the kernel's queue overflows, the last changes are seen all the same."""
    other_path = tmp_path / "other.log"
    other_path.touch()
    other = FileTail(str(other_path), Stream(screen.console))
    tailed.tails.add(other, str(other_path))
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    other_fd = os.open(other_path, os.O_WRONLY | os.O_APPEND)
    for _ in range(limit // 2 + 10):  # alternating, or the kernel would merge them
        os.write(tailed.fd, b"a\n")
        os.write(other_fd, b"b\n")
    os.write(tailed.fd, b"last\n")
    os.close(other_fd)
    shown = screen.read_until(lambda seen: b"last\n" in seen and seen.count(b"b") > limit // 2)
    assert shown.count(b"a\n") == shown.count(b"b\n") == limit // 2 + 10


def test_a_file_that_is_truncated_meanwhile(
    loop: FastLoop, screen: Screen, tailed: TailedFile
) -> None:
    """After logrotate's copytruncate new lines are shown, without a hole and without the old."""
    os.write(tailed.fd, b"old old old old\n")
    screen.read_until(lambda seen: seen == b"old old old old\n")
    os.truncate(tailed.path, 0)
    os.write(tailed.fd, b"new\n")
    screen.read_until(lambda seen: seen == b"old old old old\nnew\n")
    assert tailed.path.read_bytes() == b"new\n"


def test_a_flood_does_not_hold_up_signals(
    loop: FastLoop, tmp_path: Path, descriptors: Callable[[int], int]
) -> None:
    """A signal is seen while a file with much to show is shown."""
    path = tmp_path / "stdout.log"
    path.touch()
    os.truncate(path, 4 << 30)  # sparse
    console = Console(loop, descriptors(os.open(os.devnull, os.O_WRONLY)))
    descriptors(console.fd)
    tails = FileTails(loop)
    tail = FileTail(str(path), Stream(console))
    tails.add(tail, str(path))
    positions = []
    loop.on_signal(signal.SIGUSR1, lambda number: positions.append(tail._position))
    with path.open("ab") as file:
        file.write(b"go")
    loop.until(lambda: tail._position > 0)
    os.kill(os.getpid(), signal.SIGUSR1)
    loop.run_once(0)
    loop.run_once(0)
    assert positions
    assert positions[0] < 1 << 30
    os.truncate(path, 0)
    tails.close()


def test_a_stuck_console_costs_nothing_for_files(
    loop: FastLoop, small_screen: Screen, tmp_path: Path
) -> None:
    """While the console takes nothing, a worker that writes to its file does not wake the agent."""
    screen = small_screen
    tailed = TailedFile(loop, screen.console, tmp_path / "stdout.log")
    os.write(tailed.fd, b"line\n" * 200_000)
    loop.until(lambda: tailed.tail.stream.full and loop.idle)
    for _ in range(5):
        os.write(tailed.fd, b"more\n")
        began = time.monotonic()
        loop.run_once(0.05)
        assert time.monotonic() - began >= 0.05
    tailed.tails.finish()
    loop.until(lambda: len(screen.read()) == 5 * 200_005)
    loop.until(lambda: tailed.tails.done)
    tailed.close()


# Filters


@pytest.fixture
def filtered(tmp_path: Path) -> Iterator[tuple[logs_module._FilteredFile, Path]]:
    path = tmp_path / "filtered.log"
    file = logs_module._FilteredFile(("apple", "b\u00e9"), str(path))
    yield file, path
    file.close()


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_filter_sees_whole_lines(data: st.DataObject, tmp_path_factory: object) -> None:
    """However the output is cut, a filter takes the lines with a text, with prefix and end."""
    lines = data.draw(
        st.lists(st.sampled_from(["an apple", "pear", "", "b\u00e9", "apple" * 3, "ap\udcffple"]))
    )
    end = data.draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    encoded = [line.encode(errors="surrogateescape") for line in lines]
    text = end.join(encoded)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    path = tmp_path_factory.mktemp("f") / "filtered.log"  # type: ignore[attr-defined]
    file = logs_module._FilteredFile(("apple", "b\u00e9"), str(path))
    each = logs_module._Filter(file, b"[p]:")
    for begin, stop in zip([0, *cuts], [*cuts, len(text)], strict=True):
        if begin != stop:
            each.feed(text[begin:stop])
    each.end()
    file.close()
    wanted = [line for line in encoded if b"apple" in line or b"b\xc3\xa9" in line]
    assert path.read_bytes() == b"".join(b"[p]:" + line + b"\n" for line in wanted)


def test_a_filter_keeps_no_endless_line(
    filtered: tuple[logs_module._FilteredFile, Path],
) -> None:
    """A line without an end is held up to a limit; the end of it still counts."""
    file, path = filtered
    each = logs_module._Filter(file, b"[p]:")
    for _ in range(400):
        each.feed(b"x" * 65536)
    assert len(each._rest) == logs_module._LONGEST_LINE
    each.feed(b"apple\n")
    assert path.stat().st_size == len(b"[p]:") + logs_module._LONGEST_LINE + len(b"apple\n")


def test_filters_go_on_when_nobody_reads(
    loop: FastLoop, screen: Screen, tmp_path: Path
) -> None:  # fmt: skip
    """A console that is gone takes nothing away from the filtered file."""
    path = tmp_path / "stdout.log"
    path.touch()
    got: list[bytes] = []
    tails = FileTails(loop)
    tails.add(FileTail(str(path), Stream(screen.console), got.append), str(path))
    screen.close_reader()
    for number in range(3):
        with path.open("ab") as file:
            file.write(b"line %d\n" % number)
        loop.until(lambda n=number: b"".join(got).endswith(b"line %d\n" % n))
    assert screen.console.broken
    tails.finish()
    loop.until(lambda: tails.done)
    tails.close()
    assert b"".join(got) == b"line 0\nline 1\nline 2\n"


def test_descriptors_are_not_passed_on_by_chance() -> None:
    """What this package opens is closed by exec: both ends of a channel."""
    ours, theirs = channel(-1)
    try:
        for fd in (ours, theirs):
            assert not os.get_inheritable(fd)
            assert stat.S_ISFIFO(os.fstat(fd).st_mode)
    finally:
        os.close(ours)
        os.close(theirs)
