"""The `fsspec` tracker, which stores runs in a directory on any file system that fsspec supports.

The layout is the same as in TorchX (torchx.tracker.backend.fsspec, 0.7), so relight and TorchX can
read each other's files:

    ROOT/RUN/metadata/TIME      {"metadata": {…}}, one file per call
    ROOT/RUN/artifacts/TIME     {"name": …, "path": …, "metadata": …}
    ROOT/RUN/sources/RUN        one line per artifact used; an empty line for the whole run

RUN is the base32 encoding of a run id. TIME is in nanoseconds since 1970. relight adds a random
suffix, because several ranks may record something at the same time.
"""

import base64
import binascii
import contextlib
import errno
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from relight.base.errors import MachineError, UsageError
from relight.base.fields import printable
from relight.tracker.api import TrackerArtifact, TrackerBase, TrackerSource


class FileSystemTracker(TrackerBase):
    """Stores runs in a directory.

    Args:
        files: an fsspec file system.
        root: the directory, created when the first record is written.

    All methods raise MachineError if the directory can't be read or written.
    """

    def __init__(self, files: Any, root: str) -> None:
        self._files = files
        self._root = root.rstrip("/") or "/"

    def __str__(self) -> str:
        return self._root

    def add_artifact(
        self, run_id: str, name: str, path: str, metadata: Mapping[str, object] | None = None
    ) -> None:
        """Record an artifact. The file itself is not copied."""
        self._add(run_id, "artifacts", {"name": name, "path": path, "metadata": metadata})

    def artifacts(self, run_id: str) -> dict[str, TrackerArtifact]:
        """Return the artifacts of a run, keyed by name."""
        return {
            str(each["name"]): TrackerArtifact(
                str(each["name"]), str(each["path"]), each.get("metadata")
            )
            for each in self._entries(run_id, "artifacts")
        }

    def add_metadata(self, run_id: str, **kwargs: object) -> None:
        """Record JSON-serializable values."""
        self._add(run_id, "metadata", {"metadata": kwargs})

    def metadata(self, run_id: str) -> dict[str, object]:
        """Return a run's values, by name."""
        found: dict[str, object] = {}
        for each in self._entries(run_id, "metadata"):
            found.update(each["metadata"])
        return found

    def add_source(self, run_id: str, source_id: str, artifact_name: str | None = None) -> None:
        """Record that a run is derived from another run."""
        directory = self._path(run_id, "sources")
        path = f"{directory}/{_encoded(source_id)}"
        lines = self._lines(path) if self._files.exists(path) else []
        if (artifact_name or "") not in lines:
            text = "".join(f"{line}\n" for line in [*lines, artifact_name or ""])
            self._write(directory, _encoded(source_id), text)

    def sources(self, run_id: str, artifact_name: str | None = None) -> list[TrackerSource]:
        """Return a run's sources. If an artifact name is given, return only the sources from which
        that artifact was used.
        """
        return [
            TrackerSource(source, line or None)
            for path, source in self._runs(self._path(run_id, "sources"))
            for line in self._lines(path) or [""]
            if artifact_name is None or line == artifact_name
        ]

    def run_ids(self, parent_run_id: str | None = None, **kwargs: str) -> list[str]:
        """Return the ids of all runs or, with `parent_run_id`, of the runs that are derived from
        this parent.
        """
        del kwargs
        of_parent = f"sources/{_encoded(parent_run_id)}" if parent_run_id else ""
        return [
            run
            for path, run in self._runs(self._root)
            if not of_parent or self._files.exists(f"{path}/{of_parent}")
        ]

    def _path(self, run_id: str, kind: str) -> str:
        return f"{self._root}/{_encoded(run_id)}/{kind}"

    def _add(self, run_id: str, kind: str, entry: Mapping[str, object]) -> None:
        try:
            text = json.dumps(entry)
        except (TypeError, ValueError) as error:
            raise UsageError(f"{kind} must be JSON-serializable: {error}") from None
        self._write(self._path(run_id, kind), f"{time.time_ns()}_{os.urandom(4).hex()}", text)

    def _write(self, directory: str, name: str, text: str) -> None:
        with self._root_named("written"):
            self._files.makedirs(directory, exist_ok=True)
            with self._files.open(f"{directory}/{name}", "wb") as file:
                file.write(text.encode())

    def _read(self, path: str) -> bytes:
        with self._root_named("read"), self._files.open(path, "rb") as file:
            content: bytes = file.read()
        return content

    def _lines(self, path: str) -> list[str]:
        return self._read(path).decode().splitlines()

    def _entries(self, run_id: str, kind: str) -> Iterator[dict[str, Any]]:
        """Yield records, oldest first. Incomplete records are skipped."""
        for path in self._listed(self._path(run_id, kind)):
            content = self._read(path)
            try:
                yield json.loads(content)
            except ValueError:
                continue

    def _runs(self, directory: str) -> Iterator[tuple[str, str]]:
        """Yield each path in a directory whose name is an encoded run id, along with the id."""
        for path in self._listed(directory):
            try:
                yield path, base64.b32decode(os.path.basename(path)).decode()
            except (binascii.Error, UnicodeDecodeError):
                continue  # the name is not a run id

    def _listed(self, directory: str) -> list[str]:
        with self._root_named("read"):
            try:
                found = sorted(each.rstrip("/") for each in self._files.ls(directory, detail=False))
            except FileNotFoundError:
                return []
            if len(found) == 1 and self._files.isfile(directory):  # listing a file yields itself
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory)
            return found

    @contextlib.contextmanager
    def _root_named(self, done: str) -> Iterator[None]:
        """Convert file system errors to errors that name the root directory and contain a hint."""
        try:
            yield
        except OSError as error:
            why = " ".join((error.strerror or f"{type(error).__name__}: {error}").split())
            at = f" ({error.filename})" if error.filename else ""
            hint = "root_path in the tracker's configuration must be a usable directory"
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                hint = (
                    "free space there, or choose another root_path in the tracker's configuration"
                )
            raise MachineError(
                f"tracker root {self._root} can't be {done}: {printable(f'{why}{at}')}",
                hint=hint,
            ) from error


def create(config: str | None) -> FileSystemTracker:
    """Return the tracker that a configuration file describes.

    Args:
        config: the path or the fsspec URL of a file with `KEY = VALUE` lines. The keys are
            `protocol` (`file`, `s3`, …), `root_path`, and arguments for the file system. If an
            argument is a mapping, a key such as `client_kwargs.endpoint_url` sets one of its keys.
            A line that begins with `#` is a comment.

    Raises:
        UsageError: if fsspec is not installed, or the file is invalid.
    """
    try:
        import fsspec
    except ImportError:
        raise UsageError(
            "tracker fsspec requires the fsspec package", hint="pip install 'fsspec>=2024.2'"
        ) from None
    if not config:
        raise UsageError(
            "tracker fsspec has no configuration file",
            hint=(
                "set config = FILE under [tracker:fsspec] in .relightconfig or .torchxconfig; "
                "FILE contains protocol = file and root_path = DIRECTORY"
            ),
        )
    try:
        with fsspec.open(config, "rt") as file:
            pairs = dict(_pairs(file))
    except (OSError, ValueError, ImportError) as error:
        raise UsageError(f"tracker fsspec can't read config={config}: {error}") from None
    missing = [key for key in ("protocol", "root_path") if key not in pairs]
    if missing:
        raise UsageError(
            f"{config} has no {missing[0]}", hint="for example protocol = file, root_path = /runs"
        )
    root = pairs.pop("root_path")
    return FileSystemTracker(fsspec.filesystem(pairs.pop("protocol"), **_nested(pairs)), root)


def _pairs(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        key, equals, value = (part.strip() for part in line.partition("="))
        if key and equals and value and not key.startswith("#"):
            yield key, value


def _nested(pairs: Mapping[str, str]) -> dict[str, Any]:
    """Convert keys such as `client_kwargs.endpoint_url` to nested arguments."""
    found: dict[str, Any] = {}
    for key, value in pairs.items():
        *outer, last = key.split(".")
        inner = found
        for name in outer:
            inner = inner.setdefault(name, {})
        if not last or not isinstance(inner, dict):
            raise UsageError(f"tracker fsspec: key {key} has no name after its dot")
        inner[last] = value
    return found


def _encoded(run_id: str) -> str:
    return base64.b32encode(run_id.encode()).decode()
