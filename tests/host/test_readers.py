"""Pipes, terminals, files that are read while they are being written, and filters."""

import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from screens import FastLoop, Screen, descriptors, loop, screen, small_screen  # noqa: F401

from relight.host import linux
from relight.output import log_filters
from relight.output.console import Console, ConsoleStream
from relight.output.file_tails import FileTail, FileTails
from relight.output.log_filters import FilteredFile, LineFilter
from relight.output.pipe_reader import PipeReader, channel

# Readers


def test_terminal_output_written_before_close_is_not_lost(
    loop: FastLoop, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data left in a pseudo-terminal after its last writer closes isn't lost to EIO."""
    monkeypatch.setattr(os, "isatty", lambda fd: True)
    ours, theirs = channel(0)
    reader = PipeReader(loop, ours, ConsoleStream(screen.console))
    data = b"".join(b"%04d\r\n" % n for n in range(500))
    assert os.write(theirs, data) == len(data)
    os.close(theirs)
    loop.until(lambda: reader.done)
    assert screen.read() == data
    assert reader.tail == data


def test_missing_terminal_modules_only_disable_colours(
    loop: FastLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a module can't be loaded, for example because descriptors ran out, only the colours are
    missing.
    """
    monkeypatch.setattr(os, "isatty", lambda fd: True)
    for name in ("fcntl", "termios"):
        monkeypatch.setitem(sys.modules, name, None)
    ours, theirs = channel(0)
    assert stat.S_ISFIFO(os.fstat(theirs).st_mode)
    os.close(theirs)
    reader = PipeReader(loop, ours, None)
    reader.copy_window_size(0)
    reader.close()


def test_reader_counts_unread_bytes(loop: FastLoop) -> None:
    ours, theirs = channel(-1)
    reader = PipeReader(loop, ours, None)
    os.write(theirs, b"12345")
    assert reader.unread() == 5
    reader.read()
    assert reader.unread() == 0
    reader.close()
    assert reader.unread() == 0
    os.close(theirs)


def test_reader_keeps_last_64_kb_of_stream(loop: FastLoop) -> None:
    """The report uses this part of the output. Little more than that is kept."""
    ours, theirs = channel(-1)
    reader = PipeReader(loop, ours, None)
    for number in range(400):
        os.write(theirs, b"%05d " % number * 200)
        loop.settle(1)
    os.close(theirs)
    loop.until(lambda: reader.done)
    assert 64 * 1024 <= len(reader.tail) <= 128 * 1024
    assert reader.tail.endswith(b"00399 ")


HEADER = b"Traceback (most recent call last):"


@pytest.mark.parametrize("cut", [0, 1, 10, len(HEADER) - 1, len(HEADER)])
def test_traceback_header_is_recognised_across_chunks(loop: FastLoop, cut: int) -> None:
    ours, theirs = channel(-1)
    found: list[int] = []
    reader = PipeReader(loop, ours, None, lambda: found.append(reader.size))
    for part in (b"step 1\n" + HEADER[:cut], HEADER[cut:] + b"\n", b"  File \n"):
        os.write(theirs, part)
        loop.settle(1)
    os.close(theirs)
    loop.until(lambda: reader.done)
    assert len(found) == 1
    assert reader.end().tail == b"step 1\n" + HEADER + b"\n  File \n"


@pytest.mark.parametrize("size", [0, 10_000, 65_536, 70_000, 82_000, 300_000])
def test_start_of_long_traceback_is_kept(loop: FastLoop, size: int) -> None:
    ours, theirs = channel(-1)
    reader = PipeReader(loop, ours, None, lambda: None)
    message = b"".join(b"%07d\n" % n for n in range(size // 8))
    text = HEADER + b"\n  File a\nValueError: " + message + b"\n"
    whole = b"old " * 10_000 + text
    for at in range(0, len(whole), 4096):
        os.write(theirs, whole[at : at + 4096])
        loop.settle(1)
    os.close(theirs)
    loop.until(lambda: reader.done)
    end = reader.end()
    if not end.head:
        assert whole.endswith(end.tail)
        assert end.tail.find(text) >= 0
        return
    assert end.head == text[: 16 * 1024]
    assert text.endswith(end.tail)
    assert len(end.tail) >= 64 * 1024
    assert end.newlines == text[len(end.head) : -len(end.tail)].count(b"\n")


def test_leaked_descriptor_does_not_delay_end_of_reading(
    loop: FastLoop, screen: Screen, descriptors: Callable[[int], int]
) -> None:
    """After the workers have exited, the pipe is drained without waiting for end of file."""
    ours, theirs = channel(-1)
    descriptors(theirs)
    reader = PipeReader(loop, ours, ConsoleStream(screen.console))
    os.write(theirs, b"last words")
    reader.finish()
    loop.until(lambda: reader.done)
    assert screen.read() == b"last words"


class TailedFile:
    """A file that is being written while a console shows it."""

    def __init__(self, loop: FastLoop, console: Console, path: Path) -> None:
        path.touch()
        self.path = path
        self.fd = os.open(path, os.O_WRONLY | os.O_APPEND)
        self.copied = b""
        self.tails = FileTails(loop)
        self.tail = FileTail(str(path), ConsoleStream(console))
        self.tails.add(self.tail, str(path))

    def close(self) -> None:
        self.tails.drop()
        os.close(self.fd)


@pytest.fixture
def tailed(loop: FastLoop, screen: Screen, tmp_path: Path) -> Iterator[TailedFile]:
    file = TailedFile(loop, screen.console, tmp_path / "stdout.log")
    yield file
    file.close()


def test_output_file_is_shown_while_it_is_being_written(
    loop: FastLoop, screen: Screen, tailed: TailedFile
) -> None:
    """Each change is shown soon. Without changes, nothing is scheduled."""
    for number in range(5):
        os.write(tailed.fd, b"line %d\n" % number)
        screen.read_until(lambda seen, n=number: seen.endswith(b"line %d\n" % n))
        loop.until(lambda: loop.idle)
    os.write(tailed.fd, b"rest")
    tailed.tails.finish()
    loop.until(lambda: tailed.tails.done)
    assert screen.read() == b"line 0\nline 1\nline 2\nline 3\nline 4\nrest"


@pytest.mark.parametrize("missing", ["inotify_open", "inotify_watch"])
def test_output_files_are_polled_if_inotify_is_unavailable(
    missing: str,
    loop: FastLoop,
    screen: Screen,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A machine with no free inotify instance or watch still shows output."""
    monkeypatch.setattr(linux, missing, lambda *arguments: -1)
    tailed = TailedFile(loop, screen.console, tmp_path / "stdout.log")
    for number in range(3):
        os.write(tailed.fd, b"line %d\n" % number)
        screen.read_until(lambda seen, n=number: seen.endswith(b"line %d\n" % n))
    tailed.tails.finish()
    loop.until(lambda: tailed.tails.done)
    tailed.close()
    assert loop.idle


def test_inotify_overflow_loses_no_output(
    loop: FastLoop, screen: Screen, tailed: TailedFile, tmp_path: Path
) -> None:
    """The last changes are found even if the kernel's queue overflows."""
    other_path = tmp_path / "other.log"
    other_path.touch()
    other = FileTail(str(other_path), ConsoleStream(screen.console))
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


def test_truncated_file_is_shown_from_its_new_beginning(
    loop: FastLoop, screen: Screen, tailed: TailedFile
) -> None:
    """After logrotate's copytruncate, only new lines are shown, without a gap."""
    os.write(tailed.fd, b"old old old old\n")
    screen.read_until(lambda seen: seen == b"old old old old\n")
    os.truncate(tailed.path, 0)
    os.write(tailed.fd, b"new\n")
    screen.read_until(lambda seen: seen == b"old old old old\nnew\n")
    assert tailed.path.read_bytes() == b"new\n"


def test_stack_dump_is_not_mistaken_for_a_traceback(loop: FastLoop, tmp_path: Path) -> None:
    """Loggers print it with stack_info=True."""
    path = tmp_path / "stderr.log"
    path.write_bytes(b"Stack (most recent call last):\n  File \n")
    found: list[int] = []
    tail = FileTail(str(path), None, on_traceback=lambda: found.append(1))
    assert tail.read()
    assert not found
    tail.close()


@pytest.mark.parametrize("cut", [1, len(HEADER) - 1, len(HEADER)])
def test_traceback_in_output_file_is_found(loop: FastLoop, tmp_path: Path, cut: int) -> None:
    """Even files that aren't shown are searched."""
    path = tmp_path / "stderr.log"
    path.touch()
    found: list[float] = []
    tails = FileTails(loop)
    tail = FileTail(str(path), None, on_traceback=lambda: found.append(loop.now()))
    tails.add(tail, str(path))
    with open(path, "ab", buffering=0) as file:
        for part in (b"step 1\n" + HEADER[:cut], HEADER[cut:] + b"\n", b"  File \n"):
            file.write(part)
            loop.until(lambda: loop.idle)
            tail.read()
    assert len(found) == 1
    tails.finish()
    assert tails.done
    assert tails.drop() == 0


EDGE = "\u2500" * 20


@pytest.mark.parametrize(
    "dump",
    [
        # CPython prints it if a signal handler raises while a traceback is being printed.
        b"\nobject address  : 0x7f51b2fa87c0\nobject refcount : 3\n",
        # rich draws boxes.
        f"{EDGE} Traceback (most recent call last) {EDGE}\n".encode(),
        f"{EDGE} \x1b[1mTraceback \x1b[1;2m(most recent call last)\x1b[0m {EDGE}\n".encode(),
    ],
    ids=["object", "box", "coloured box"],
)
def test_traceback_in_another_format_is_found(loop: FastLoop, tmp_path: Path, dump: bytes) -> None:
    found: list[str] = []
    path = tmp_path / "stderr.log"
    path.touch()
    tail = FileTail(str(path), None, on_traceback=lambda: found.append("file"))
    ours, theirs = channel(-1)
    reader = PipeReader(loop, ours, None, on_traceback=lambda: found.append("pipe"))
    middle = 9 if dump.startswith(b"\n") else dump.index(b"recent")
    for part in (dump[:middle], dump[middle:]):  # the agent may read in between
        with path.open("ab") as file:
            file.write(part)
        tail.read()
        expected = reader.size + os.write(theirs, part)
        loop.until(lambda: reader.size == expected)  # noqa: B023
    assert sorted(found) == ["file", "pipe"]
    tail.close()
    os.close(theirs)
    loop.until(lambda: reader.done)
    assert sorted(found) == ["file", "pipe"]


def test_hidden_file_is_read_from_near_its_end(loop: FastLoop, tmp_path: Path) -> None:
    """If a worker writes faster than the agent reads, only one chunk is read each time."""
    path = tmp_path / "stderr.log"
    path.write_bytes(b"x" * 1_000_000 + HEADER)
    found: list[int] = []
    tail = FileTail(str(path), None, on_traceback=lambda: found.append(1))
    assert 0 < tail.read() < 65_536
    assert tail.read() == 0
    assert found
    tail.close()
    assert tail.done


def test_flood_of_output_does_not_delay_signals(
    loop: FastLoop, tmp_path: Path, descriptors: Callable[[int], int]
) -> None:
    """A signal is handled while a file with a lot of output is being shown."""
    path = tmp_path / "stdout.log"
    path.touch()
    os.truncate(path, 4 << 30)  # sparse
    console = Console(loop, descriptors(os.open(os.devnull, os.O_WRONLY)))
    descriptors(console.fd)
    tails = FileTails(loop)
    tail = FileTail(str(path), ConsoleStream(console))
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
    tails.drop()


def test_file_output_does_not_wake_agent_while_console_is_blocked(
    loop: FastLoop, small_screen: Screen, tmp_path: Path
) -> None:
    """While the console accepts nothing, a worker that writes to its file doesn't wake
    the agent.
    """
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
def filtered(tmp_path: Path) -> Iterator[tuple[FilteredFile, Path]]:
    path = tmp_path / "filtered.log"
    file = FilteredFile(("apple", "b\u00e9"), str(path), print)
    yield file, path
    file.close()


@settings(max_examples=100)
@given(data=st.data())
def test_filter_sees_whole_lines(data: st.DataObject, tmp_path_factory: object) -> None:
    """However the output is split, a filter selects matching lines along with their prefix and
    line end.
    """
    lines = data.draw(
        st.lists(st.sampled_from(["an apple", "pear", "", "b\u00e9", "apple" * 3, "ap\udcffple"]))
    )
    end = data.draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    encoded = [line.encode(errors="surrogateescape") for line in lines]
    text = end.join(encoded)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    path = tmp_path_factory.mktemp("f") / "filtered.log"  # type: ignore[attr-defined]
    file = FilteredFile(("apple", "b\u00e9"), str(path), print)
    each = LineFilter(file, b"[p]:")
    for begin, stop in zip([0, *cuts], [*cuts, len(text)], strict=True):
        if begin != stop:
            each.feed(text[begin:stop])
    each.end()
    file.close()
    wanted = [line for line in encoded if b"apple" in line or b"b\xc3\xa9" in line]
    assert path.read_bytes() == b"".join(b"[p]:" + line + b"\n" for line in wanted)


def test_filter_buffers_unterminated_line_up_to_limit(
    filtered: tuple[FilteredFile, Path],
) -> None:
    """Beyond the limit, the line's end is still examined."""
    file, path = filtered
    each = LineFilter(file, b"[p]:")
    for _ in range(400):
        each.feed(b"x" * 65536)
    assert len(each._rest) == log_filters._LONGEST_LINE
    each.feed(b"apple\n")
    assert path.stat().st_size == len(b"[p]:") + log_filters._LONGEST_LINE + len(b"apple\n")


def test_filters_keep_working_after_console_is_closed(
    loop: FastLoop, screen: Screen, tmp_path: Path
) -> None:  # fmt: skip
    """The filtered file is still complete."""
    path = tmp_path / "stdout.log"
    path.touch()
    got: list[bytes] = []
    tails = FileTails(loop)
    tails.add(FileTail(str(path), ConsoleStream(screen.console), got.append), str(path))
    screen.close_reader()
    for number in range(3):
        with path.open("ab") as file:
            file.write(b"line %d\n" % number)
        loop.until(lambda n=number: b"".join(got).endswith(b"line %d\n" % n))
    assert screen.console.broken
    tails.finish()
    loop.until(lambda: tails.done)
    tails.drop()
    assert b"".join(got) == b"line 0\nline 1\nline 2\n"


def test_channel_descriptors_are_closed_on_exec() -> None:
    """This holds for both ends."""
    ours, theirs = channel(-1)
    try:
        for fd in (ours, theirs):
            assert not os.get_inheritable(fd)
            assert stat.S_ISFIFO(os.fstat(fd).st_mode)
    finally:
        os.close(ours)
        os.close(theirs)
