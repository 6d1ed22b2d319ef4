"""Copies workers' output lines that contain given strings to a file
(--duplicate-stdout-filters).
"""

import os
from collections.abc import Callable

_LONGEST_LINE = 16 * 1024 * 1024
"""If a line is longer than this, filters only search this many bytes at its end."""


class FilteredFile:
    """A file that collects the lines that contain one of the strings, from all workers.

    Args:
        texts: strings to search for.
        path: the file, to which lines are appended.
        say: prints a line to the user.

    Raises:
        OSError: if the file can't be opened.
    """

    def __init__(self, texts: tuple[str, ...], path: str, say: Callable[[str], None]) -> None:
        self._path, self._say = path, say
        self._texts = [text.encode(errors="surrogateescape") for text in texts]
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)

    def wants(self, text: bytes | bytearray) -> bool:
        """Return whether a piece of output contains one of the strings."""
        return any(wanted in text for wanted in self._texts)

    def write(self, lines: bytes) -> None:
        """Append lines to the file. After an error, such as a full disk, the file is closed."""
        try:
            while lines and self._fd >= 0:
                lines = lines[os.write(self._fd, lines) :]
        except OSError as error:
            self._say(f"relight: no more lines are written to {self._path}: {error.strerror}")
            self.close()

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class LineFilter:
    """Copies matching lines from one worker's output as a whole, no matter how the output is split
    into pieces.

    Args:
        file: receives the lines that match.
        prefix: the prefix of each line in the file.
    """

    def __init__(self, file: FilteredFile, prefix: bytes) -> None:
        self._file = file
        self._prefix = prefix
        self._rest = bytearray()

    def feed(self, data: bytes) -> None:
        """Accept a piece of output."""
        end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1)) + 1
        if not end:
            self._rest += data
            del self._rest[:-_LONGEST_LINE]
            return
        lines = self._rest + data[:end]
        self._rest = bytearray(data[end:])
        if self._file.wants(lines):
            self._file.write(
                b"".join(
                    self._prefix + line + b"\n"
                    for line in lines.splitlines()
                    if self._file.wants(line)
                )
            )

    def end(self) -> None:
        """Handle the worker's last line if it does not end with a newline."""
        if self._rest:
            self.feed(b"\n")
