"""Routes the output of one generation's workers to files, to the console, or nowhere.

If a stream has a file, the worker writes to that file directly, so no output is lost when a process
is killed, and no console can block the worker. With `--tee`, the agent reads the stream back from
its file. A stream without a file reaches the console through a pipe, or through a pseudo-terminal
if the console is a terminal, so that progress bars and colours work. On a terminal, the traceback
of the exception that ends a worker is held back (output/traceback_stream). The end of each worker's
stderr is kept for the failure report. If a file can't be created, for example because the disk is
full, its stream goes to the console.

The layout is torchrun's: `<run directory>/attempt_<n>/<local rank>/{stdout.log, stderr.log,
error.json}` and `<run directory>/attempt_<n>/filtered_{stdout,stderr}.log`.
"""

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from relight.base.values import STDERR, STDOUT, StreamChoice
from relight.host.loop import Loop, Timer
from relight.output.console import Console, Consoles, ConsoleStream
from relight.output.pipe_reader import (
    HEAD_SIZE,
    TAIL_SIZE,
    TRACEBACK,
    LongOutput,
    PipeReader,
    channel,
    ends,
)

if TYPE_CHECKING:
    from relight.core.diagnosis.printed_traceback import PrintedTraceback, Program
    from relight.output.file_tails import FileTail, FileTails
    from relight.output.log_filters import FilteredFile, LineFilter
    from relight.output.traceback_stream import TracebackInspector, TracebackStream

_NAMES = {STDOUT: "stdout", STDERR: "stderr"}
_STDOUT_SIZE = 4 * 1024
"""How many bytes of a worker's stdout to read for its failure report."""
_STEP, _MAX_READ = 1 << 20, 8 << 20
"""How many bytes of a file to search for the beginning of a long traceback, in one read and in
total.
"""
_FRAME = '\n  File "'
_MAX_UNSHOWN = 3
"""For how many past generations to keep the output while the consoles are blocked."""
_SHOW_S = 5.0
"""How long to wait for the consoles after the agent has received a stop signal."""


class Destination(NamedTuple):
    """The destination of a worker's stdout or stderr."""

    file: bool
    console: bool


class LogSettings(NamedTuple):
    """The user's choices for the workers' output.

    The `may_write` field is False with `--log-dir=/dev/null`, where all output goes to the console.
    The `keeps_files` field is set if the files outlive the job. The `shown_ranks` field has the
    local ranks that `--local-ranks-filter` lists. The `filters` field has the texts of the lines
    that are copied to a file (`--duplicate-stdout-filters`), by stream.
    """

    may_write: bool
    keeps_files: bool
    redirects: StreamChoice
    tee: StreamChoice
    shown_ranks: tuple[int, ...]
    filters: Mapping[int, tuple[str, ...]]
    repeated_lines: str

    def destination(self, local_rank: int, stream: int) -> Destination:
        """Return the destination of a worker's stdout or stderr.

        The rules are the same as in torchrun. A stream goes to its file if it is redirected or
        teed. It goes to the console if it is teed or not redirected, unless the filter excludes it.
        """
        if not self.may_write:
            return Destination(file=False, console=True)
        tee = bool(self.tee.streams_of_rank(local_rank) & stream)
        redirect = bool(self.redirects.streams_of_rank(local_rank) & stream)
        shown = self.is_shown(local_rank)
        return Destination(file=tee or redirect, console=shown and (tee or not redirect))

    def is_shown(self, local_rank: int) -> bool:
        """Return whether a worker's output may appear on the console."""
        return not self.shown_ranks or local_rank in self.shown_ranks


class Logs:
    """The output of one generation's workers.

    Args:
        loop: the agent's loop.
        consoles: the agent's stdout and stderr.
        settings: the destinations of the output.
        directory: this generation's `attempt_<n>`, which is created here. If empty, no files are
            created.

    Raises:
        OSError: if no descriptor is left for a file.
    """

    def __init__(
        self, loop: Loop, consoles: Consoles, settings: LogSettings, directory: str
    ) -> None:
        self.inspect_program: Callable[[int], Program] | None = None
        """Returns a worker's state, by local rank."""
        self.on_late: Callable[[], None] = lambda: None
        """Called when a worker takes a long time to end while its traceback is held back. Must be
        set before `open` is called.
        """
        self._directories: dict[int, str] = {}
        """The directories of workers that replaced other workers, by local rank."""
        self._loop = loop
        self._consoles = consoles
        self._settings = settings
        self._tails: FileTails | None = None
        self._stderr_tails: dict[int, FileTail] = {}
        self._pipes: list[tuple[PipeReader, int]] = []
        self._stdout: dict[int, PipeReader | str] = {}
        self._stderr: dict[int, PipeReader | str] = {}
        self._terminals: dict[int, TracebackStream] = {}
        self._inspectors: dict[int, TracebackInspector] = {}
        self._files: list[str] = []
        self._to_pass_on: list[int] = []
        self._filtered: dict[int, FilteredFile] = {}
        self._filters: list[LineFilter] = []
        self._has_told = False
        for console in consoles:
            once = settings.repeated_lines
            console.shows_once = once == "always" or (once == "once" and os.isatty(console.fd))
        self._directory = self._created(directory)
        if self._directory:
            for stream, name in _NAMES.items():
                if texts := settings.filters[stream]:
                    self._filter_to(f"filtered_{name}.log", stream, texts)

    def error_file(self, local_rank: int) -> str:
        """Return the path of a worker's error file, written by `@record`, or an empty string."""
        return self._path(local_rank, "error.json") if self._has_files(local_rank) else ""

    def stderr_of(self, local_rank: int) -> str:
        """Return the end of a worker's stderr. If the last traceback doesn't fit into it, prepend
        the beginning of that traceback and a line with the number of omitted lines.
        """
        source = self._stderr.get(local_rank)
        if source is None:
            return ""
        if isinstance(source, PipeReader):
            source.read()
            found = source.end()
        else:
            found = _read_end(source)
        tail = found.tail.decode(errors="replace")
        if not found.head or _FRAME in tail:  # so the message itself isn't long
            return tail
        from relight.core.diagnosis.tracebacks import keep

        return keep(found.head.decode(errors="replace"), tail, found.newlines)

    def stdout_of(self, local_rank: int) -> str:
        """Return the end of a worker's stdout. The result is empty if that isn't available, or if
        stdout and stderr share a channel.
        """
        source = self._stdout.get(local_rank)
        if isinstance(source, PipeReader):
            source.read()
        return self.tail(local_rank, STDOUT, _STDOUT_SIZE).decode(errors="replace")

    def printed(self, local_rank: int) -> "PrintedTraceback | None":
        """Return the evidence about a worker's last traceback, or None if it has not printed
        one.
        """
        looks = self._inspectors.get(local_rank)
        return looks.core if looks is not None and looks.core.at is not None else None

    def inspect_before_stop(self, failed: int) -> None:
        """If the failed worker has printed a traceback, examine all other workers that have printed
        one, as long as they still exist.
        """
        if failed not in self._inspectors:
            return
        for source in self._stderr.values():
            if isinstance(source, PipeReader):
                source.read()
        for tail in self._stderr_tails.values():
            tail.read()
        for looks in self._inspectors.values():
            if looks.core.deadline() is not None:
                looks.look()

    def printed_late(self, local_rank: int) -> int:
        """Return how many bytes of a worker's stderr arrived after its program was observed to have
        ended, or 0 if that was not observed.
        """
        printed = self.printed(local_rank)
        if printed is None or printed.went_on is not False:
            return 0
        return max(0, self._written(local_rank) - printed.size)

    def _written(self, local_rank: int) -> int:
        """Return an upper bound on the number of bytes that a worker has written to stderr."""
        source = self._stderr.get(local_rank)
        if isinstance(source, PipeReader):
            return source.size + source.unread()
        try:
            return os.stat(source).st_size if source else 0
        except OSError:
            return 0  # the file was removed

    def path(self, local_rank: int, stream: int) -> str:
        """Return the path of the file for a worker's stream, or an empty string if there is
        none.
        """
        source = self._streams(stream).get(local_rank)
        return source if isinstance(source, str) else ""

    def tail(self, local_rank: int, stream: int, size: int = TAIL_SIZE) -> bytes:
        """Return at most `size` bytes from the end of a worker's stream. The result is empty if the
        stream is discarded or its file can't be read.
        """
        source = self._streams(stream).get(local_rank)
        if isinstance(source, PipeReader):
            return bytes(source.tail[-size:])
        if source is None:
            return b""
        try:
            with open(source, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - size))
                return file.read(size)
        except OSError:
            return b""  # the file was removed

    def size(self) -> int:
        """Return how many bytes the workers have written so far, to files or through the agent."""
        total = sum(pipe.size for pipe, _ in self._pipes)
        for path in self._files:
            try:
                total += os.stat(path).st_size
            except OSError:
                continue  # the file was removed
        return total

    def open(self, local_rank: int, rank: int, prefix: bytes) -> tuple[int, int]:
        """Open a worker's stdout and stderr, and return the two descriptors. `passed_on` later
        closes them in this process.

        Args:
            local_rank: the worker's local rank.
            rank: the worker's rank, for notes about lines that several workers print.
            prefix: the prefix of each line that is shown with `--tee`.

        Raises:
            OSError: if no descriptor is left.
        """
        directory = self._directories.get(local_rank, self._directory)
        if directory and self._settings.keeps_files:
            try:
                os.mkdir(os.path.join(directory, str(local_rank)))
            except OSError as error:
                self._do_without(error)
        raw = Destination(file=False, console=True)
        if self._consoles.stdout is self._consoles.stderr and all(
            self._settings.destination(local_rank, stream) == raw for stream in _NAMES
        ):
            # A shared channel preserves the order of stdout and stderr.
            both = self._open_stream(local_rank, rank, STDERR, prefix)
            return both, both
        return (
            self._open_stream(local_rank, rank, STDOUT, prefix),
            self._open_stream(local_rank, rank, STDERR, prefix),
        )

    def replace(self, local_ranks: Sequence[int], directory: str) -> None:
        """Prepare for new workers that replace ended ones. Call `open` afterwards for each new
        worker.

        Args:
            local_ranks: the local ranks of the workers.
            directory: their generation's `attempt_<n>`, which is created here. If empty, no files
                are created.
        """
        directory = self._created(directory)
        for local_rank in local_ranks:
            self._directories[local_rank] = directory
            for facts in (self._inspectors, self._terminals, self._stdout, self._stderr):
                facts.pop(local_rank, None)
            self._stderr_tails.pop(local_rank, None)

    def worker_ended(self, local_rank: int, *, failed: bool) -> bool:
        """Record that a worker has exited. Return whether its traceback is held back."""
        stream = self._terminals.get(local_rank)
        reader = self._stderr.get(local_rank)
        if isinstance(reader, PipeReader) and (failed or stream is not None):
            reader.read()
        elif failed and local_rank in self._stderr_tails:
            self._stderr_tails[local_rank].read()
        if local_rank in self._inspectors:
            self._inspectors[local_rank].worker_ended()
        if stream is None:
            return False
        stream.worker_ended(failed=failed)
        return bool(stream.held)

    def held(self) -> "dict[int, TracebackStream]":
        """Return the streams that are holding back a worker's final traceback, keyed by local
        rank.
        """
        return {rank: stream for rank, stream in self._terminals.items() if stream.held}

    def release(self) -> None:
        """Show the lines that are held back."""
        for stream in self._terminals.values():
            stream.release()

    def passed_on(self) -> None:
        """Close this process's copies of the workers' descriptors, because the workers now have
        their own copies.
        """
        for fd in self._to_pass_on:
            os.close(fd)
        self._to_pass_on.clear()

    def resize(self) -> None:
        """Pass the terminal's new size on to the workers."""
        for pipe, console_fd in self._pipes:
            if pipe.fd >= 0:
                pipe.copy_window_size(console_fd)

    def finish(self) -> None:
        """Show the remaining output as fast as the consoles accept it. Call this after all workers
        and their descendants have exited.
        """
        for source in self._sources:
            source.finish()
        if self._tails is None:
            self._end_filters()

    @property
    def reader_is_gone(self) -> bool:
        """Whether the reader of the agent's stdout or stderr has exited, for example because of
        `| head`.
        """
        return any(console.reader_is_gone for console in self._consoles)

    @property
    def done(self) -> bool:
        """Whether all output has been passed on to the consoles."""
        return all(source.done for source in self._sources)

    def drop(self) -> int:
        """Discard the output that has not been shown, and return the number of bytes. Log files
        still contain that output.
        """
        return sum(source.drop() for source in self._sources)

    @property
    def _sources(self) -> "list[PipeReader | FileTails]":
        pipes = [pipe for pipe, _ in self._pipes]
        return [*pipes, self._tails] if self._tails is not None else [*pipes]

    def _end_filters(self) -> None:
        for each in self._filters:
            each.end()
        for file in self._filtered.values():
            file.close()

    def _path(self, local_rank: int, name: str) -> str:
        # torchrun's layout is only used for logs that are kept, because creating a directory costs
        # 0.1 ms per worker.
        between = "/" if self._settings.keeps_files else "."
        directory = self._directories.get(local_rank, self._directory)
        return f"{directory}/{local_rank}{between}{name}"

    def _has_files(self, local_rank: int) -> bool:
        return bool(self._directories.get(local_rank, self._directory))

    def _open_stream(self, local_rank: int, rank: int, stream: int, prefix: bytes) -> int:
        to_file, to_console = self._settings.destination(local_rank, stream)
        console = self._consoles.stdout if stream == STDOUT else self._consoles.stderr
        path = self._path(local_rank, f"{_NAMES[stream]}.log")
        fd = self._make(path) if to_file and self._has_files(local_rank) else -1
        if to_file and fd < 0:
            to_console = self._settings.is_shown(local_rank)
        tell = partial(self._on_traceback, local_rank) if stream == STDERR else None
        if fd >= 0:
            self._files.append(path)
            self._streams(stream)[local_rank] = path
            if to_console:
                shown: ConsoleStream | None = ConsoleStream(console, prefix, rank)
                self._tail(local_rank, path, shown, self._filter(stream, prefix), tell)
            elif tell is not None:
                self._tail(local_rank, path, None, None, tell)
        elif not to_console and stream == STDOUT:
            fd = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        else:  # even if hidden, stderr is read for the failure report
            ours, fd = channel(console.fd if to_console else -1)
            if to_console and stream == STDERR and os.isatty(ours):
                shown = self._without_traceback(local_rank, rank, console)
            else:
                shown = ConsoleStream(console, rank=rank) if to_console else None
            pipe = PipeReader(self._loop, ours, shown, tell)
            pipe.copy_window_size(console.fd)
            self._pipes.append((pipe, console.fd))
            self._streams(stream)[local_rank] = pipe
        self._to_pass_on.append(fd)
        return fd

    def _created(self, directory: str) -> str:
        """Create a directory, and return its path, or an empty string on failure."""
        if directory:
            try:
                os.makedirs(directory)
            except OSError as error:
                self._do_without(error)
                return ""
        return directory

    def _make(self, path: str) -> int:
        """Create a file, and return its descriptor, or -1 on failure."""
        if not self._directory:
            return -1
        # O_APPEND prevents a hole in the file if somebody truncates it to save space while the
        # worker is writing.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        try:
            return os.open(path, flags, 0o666)
        except OSError as error:
            self._do_without(error)
            return -1

    def _do_without(self, error: OSError) -> None:
        """Report that a file can't be created.

        Raises:
            OSError: if descriptors are exhausted, which affects more than this file.
        """
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise error
        if self._settings.keeps_files and not self._has_told:
            self._has_told = True
            self._consoles.stderr.say(
                f"relight: can't write logs to {error.filename}: {error.strerror}; output goes to "
                "the console"
            )

    def _streams(self, stream: int) -> "dict[int, PipeReader | str]":
        return self._stdout if stream == STDOUT else self._stderr

    def _without_traceback(self, local_rank: int, rank: int, console: Console) -> "TracebackStream":
        from relight.output.traceback_stream import TracebackStream

        look = lambda: self._inspector(local_rank).look()  # noqa: E731
        stream = TracebackStream(console, look, self.on_late, rank)
        self._terminals[local_rank] = stream
        return stream

    def _on_traceback(self, local_rank: int) -> None:
        self._inspector(local_rank).on_traceback()

    def _inspector(self, local_rank: int) -> "TracebackInspector":
        looks = self._inspectors.get(local_rank)
        if looks is None:
            from relight.core.diagnosis.printed_traceback import Program
            from relight.output.traceback_stream import TracebackInspector

            inspect_program = self.inspect_program or (lambda _: Program.UNSEEN)
            on_terminal = local_rank in self._terminals
            looks = self._inspectors[local_rank] = TracebackInspector(
                self._loop,
                lambda: inspect_program(local_rank),
                lambda: self._written(local_rank),
                own_time=not on_terminal,
            )
        return looks

    def _tail(
        self,
        local_rank: int,
        path: str,
        shown: ConsoleStream | None,
        copy: Callable[[bytes], None] | None,
        tell: Callable[[], None] | None,
    ) -> None:
        """Read a file while it is being written."""
        from relight.output.file_tails import FileTail, FileTails

        if self._tails is None:
            self._tails = FileTails(self._loop)
            self._tails.on_end = self._end_filters
        tail = FileTail(path, shown, copy, tell)
        self._tails.add(tail, path)
        if tell is not None:
            self._stderr_tails[local_rank] = tail

    def _filter_to(self, name: str, stream: int, texts: tuple[str, ...]) -> None:
        from relight.output.log_filters import FilteredFile

        path = os.path.join(self._directory, name)
        try:
            self._filtered[stream] = FilteredFile(texts, path, self._consoles.stderr.say)
        except OSError as error:
            self._do_without(error)

    def _filter(self, stream: int, prefix: bytes) -> Callable[[bytes], None] | None:
        file = self._filtered.get(stream)
        if file is None:
            return None
        from relight.output.log_filters import LineFilter

        self._filters.append(LineFilter(file, prefix))
        return self._filters[-1].feed


class UnshownOutput:
    """The output of past generations that has not reached the consoles yet. Only the agent's exit
    waits for this output.

    Args:
        loop: the agent's loop.
        consoles: the agent's stdout and stderr.
        signals: the stop signals that the agent has received so far. The list may grow.
    """

    def __init__(self, loop: Loop, consoles: Consoles, signals: Sequence[int]) -> None:
        self._loop = loop
        self._consoles = consoles
        self._signals = signals
        self._logs: dict[int, Logs] = {}
        self._limit: Timer | None = None

    def add(self, logs: Logs, generation: int) -> None:
        """Add the output of a generation whose workers have exited. If the consoles are blocked,
        drop the output of older generations.
        """
        logs.finish()
        self._logs = {number: each for number, each in self._logs.items() if not each.done}
        self._logs[generation] = logs
        for number in list(self._logs)[:-_MAX_UNSHOWN]:
            self._say(self._logs.pop(number).drop(), f"worker output of generation {number}")

    def show(self) -> None:
        """Wait until all output has been written or the consoles' readers have exited. After a
        first signal, wait only for a limited time. After a second signal, return immediately.
        """
        old = self._logs.values()
        self._loop.run_until(lambda: all(each.done for each in old) or self._is_late())
        for console in self._consoles:
            console.flush(self._is_late)
        size = sum(logs.drop() for logs in old) + self._consoles.stdout.unwritten
        self._logs.clear()
        self._say(size, "worker output")

    def _is_late(self) -> bool:
        if self._signals and self._limit is None:
            self._limit = self._loop.call_after(_SHOW_S, lambda: None)
        over = self._limit is not None and self._loop.now() >= self._limit.when
        return over or len(self._signals) > 1

    def _say(self, size: int, what: str) -> None:
        if size:
            why = "the console is blocked"
            self._consoles.stderr.say(f"relight: {size} bytes of {what} were not shown: {why}")


def _read_end(path: str) -> LongOutput:
    """Return the end of a file, and the beginning of the last traceback in it if that isn't too far
    from the end.
    """
    with open(path, "rb") as file:
        tail_at = max(0, os.fstat(file.fileno()).st_size - TAIL_SIZE)
        file.seek(tail_at)
        tail = file.read()
        at, newlines = tail_at, tail.count(b"\n")
        while TRACEBACK not in tail and at > max(0, tail_at - _MAX_READ):
            before, at = at, max(0, at - _STEP)
            file.seek(at)
            part = file.read(before - at + len(TRACEBACK))  # the header may be split at this point
            found = part.rfind(TRACEBACK)
            if found < 0:
                newlines += part.count(b"\n", 0, before - at)
                continue
            newlines += part.count(b"\n", found, before - at)
            file.seek(at + found)
            return ends(file.read(HEAD_SIZE), at + found, tail, tail_at, newlines)
        return LongOutput(b"", 0, tail)
