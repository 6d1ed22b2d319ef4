"""Handles a job's workspace: determines which files to copy from the working directory, and reads
the directory's git state.

Files that match a pattern in `.relightignore` are not copied. If `.relightignore` does not exist,
`.torchxignore` or `.dockerignore` is used instead. The syntax of the three files is that of
.gitignore (`patterns`), TorchX (`torchxignore`) and Docker (`dockerignore`), respectively. `.git`,
`.venv` and `__pycache__` are not copied either, unless the ignore file re-includes them with `!`.

A workspace consists of one or more directories, each with its target directory in the copy. The
syntax is TorchX's: `a;b:sub`, or `{a: , b: sub}`, or one `b: sub` line per directory. A file may be
given instead of a directory. Its target is its path in the copy, or a directory if the target ends
with a slash.
"""

import io
import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Callable, Collection, Iterator, Mapping
from types import ModuleType
from typing import IO, Any, NamedTuple

from relight.base.errors import MachineError, UsageError
from relight.job import dockerignore, patterns, records, torchxignore

IGNORED_BY_DEFAULT = (".git", ".venv/", "__pycache__/")
GIT_LIMIT_S = 2.0
_SYNTAXES: Mapping[str, ModuleType] = {
    ".relightignore": patterns, ".torchxignore": torchxignore, ".dockerignore": dockerignore,
}  # fmt: skip
"""The modules that implement the ignore files. The first file that exists is used."""
IsIgnored = Callable[[str, bool], bool]
"""A function that returns whether a path is ignored. Its second argument says whether the path is a
directory.
"""


class Entry(NamedTuple):
    """A file, directory or symbolic link to copy. The `path` field is its path in the copy, and
    `here` is its source.
    """

    path: str
    status: os.stat_result
    here: str


class Project(NamedTuple):
    """A directory of a workspace and its target directory in the copy (empty for the root), or a
    file and its path in the copy.
    """

    directory: str
    below: str


def projects(text: str) -> list[Project]:
    """Return the absolute directories of a workspace.

    Raises:
        UsageError: if a path is not a directory, or its target is outside the copy.
    """
    found = []
    for path, below in pairs(text):
        folder = os.path.abspath(os.path.expanduser(path.removeprefix("file://")))
        if not os.path.isdir(folder) and not os.path.isfile(folder):
            raise UsageError(f"workspace {path} is not a directory")
        if os.path.isfile(folder) and (not below or below.endswith("/")):
            below += os.path.basename(folder)
        inside = os.path.normpath(below) if below else ""
        if os.path.isabs(inside) or inside.split("/")[0] == "..":
            raise UsageError(f"workspace {path}:{below} would lie outside the copy")
        found.append(Project(folder, inside.removeprefix(".")))
    if not found:
        raise UsageError(f"workspace {text!r} does not name a directory")
    return found


def absolute(text: str) -> str:
    """Return the workspace with absolute directories, so that it is independent of the working
    directory.

    Raises:
        UsageError: as for `projects`.
    """
    return ";".join(f"{path}:{below}" if below else path for path, below in projects(text))


def find(text: str, path: str) -> str | None:
    """Return the current path of a file, given its path in the copy, or None if the file does not
    exist.
    """
    for folder, below in reversed(projects(text)):
        inside = os.path.relpath(path, below) if below else path
        if inside == "." and os.path.isfile(folder):
            return folder
        if not inside.startswith("..") and os.path.exists(os.path.join(folder, inside)):
            return os.path.join(folder, inside)
    return None


def pairs(text: str) -> list[tuple[str, str]]:
    """Return the directories of a workspace as written, each with its target."""
    plain = text.removeprefix("file://")
    if os.path.exists(os.path.expanduser(plain)) or not any(mark in plain for mark in ";:{\n"):
        return [(plain, "")]
    text = text.strip()
    if text.startswith("{") and text.endswith("}"):  # a YAML mapping, as in TorchX
        parts = [part.partition(": " if ": " in part else ":") for part in text[1:-1].split(",")]
    elif "\n" in text:  # the same, one line per entry
        # YAML has comments.
        lines = [f" {line}".partition(" #")[0].strip() for line in text.split("\n")]
        parts = [line.rpartition(": " if ": " in line else ":") for line in lines if line]
        parts = [each if each[1] else (each[2], "", "") for each in parts]
    else:
        parts = [
            (part, "", "") if part.startswith("file://") else part.partition(":")
            for part in text.split(";")
        ]
    found = [(name.strip(" \n'\""), below.strip(" \n'\"")) for name, _, below in parts]
    return [(name, below) for name, below in found if name]


def entries(source: str) -> Iterator[Entry]:
    """Yield the workspace's entries to copy in sorted order, each directory before its contents.

    Sockets, pipes and devices are skipped, as are relight's own job records.

    Raises:
        UsageError: if `source` is not a directory.
        MachineError: if a file or directory can't be read.
    """
    jobs = records.root()
    state = os.path.dirname(jobs)
    own = [_file(each) for each in (state, jobs, os.path.join(state, "token"))]
    for folder, below in projects(source):
        parts = below.split("/") if below else []
        if os.path.isfile(folder):
            *parts, _ = parts
        parent = os.path.dirname(folder) if os.path.isfile(folder) else folder
        for depth in range(len(parts)):
            yield Entry("/".join(parts[: depth + 1]), os.stat(parent), parent)
        if parent != folder:
            yield Entry(below, os.stat(folder), folder)
            continue
        for path, status, here in _below(folder, "", _ignored_below(folder), own):
            yield Entry(os.path.join(below, path), status, here)


def pack(source: str, destination: str) -> None:
    """Copy a workspace without its ignored files, preserving modes, times and symbolic links.

    Args:
        source: a directory.
        destination: a directory, created if necessary. It may be inside `source`.

    Raises:
        UsageError: if `source` is not a directory.
        MachineError: if a file can't be read or written.
    """
    own = os.path.realpath(destination)
    directories = []
    found = [each for each in entries(source) if not _is_in(own, each.here)]
    try:
        os.makedirs(destination, exist_ok=True)
        for path, status, here in found:
            there = os.path.join(destination, path)
            if stat.S_ISDIR(status.st_mode):
                os.makedirs(there, exist_ok=True)
                directories.append((here, there))
            else:
                _copy(here, there)
        for here, there in reversed(directories):  # last, because some may be read-only
            shutil.copystat(here, there)
    except OSError as error:
        raise _unreadable(source, error) from None


def archive(
    source: str, file: IO[bytes], prefix: str = "", more: Mapping[str, bytes] | None = None
) -> None:
    """Write a workspace without its ignored files as a tar archive. In the archive, root owns all
    files.

    Args:
        source: a directory.
        file: a file that is open for writing.
        prefix: the directory for the files within the archive.
        more: additional files to add to the archive, by name.

    Raises:
        UsageError: if `source` is not a directory.
        MachineError: if a file can't be read or written.
    """
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for name, contents in (more or {}).items():
            member = tarfile.TarInfo(name)
            member.size = len(contents)
            tar.addfile(member, io.BytesIO(contents))
        if prefix:  # created even if no file is copied
            directory = tarfile.TarInfo(prefix)
            directory.type, directory.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(directory)
        for path, _, here in entries(source):
            try:
                _add(tar, here, os.path.join(prefix, path))
            except FileNotFoundError:
                pass  # for example an editor's temporary file that has been removed
            except OSError as error:
                raise _unreadable(source, error) from None


def git_state(path: str) -> dict[str, Any]:
    """Return the `commit`, `branch` and `dirty` state of the git work tree that contains a path.

    `branch` is empty if no branch is checked out, and `commit` is empty before the first commit.
    Untracked files make the tree dirty. The result is empty if git is not installed, if the path is
    outside a work tree, or if git takes more than 2 seconds.
    """
    # Don't take any locks, and don't start programs named in the repository's configuration.
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", path]
    command += ["status", "--porcelain=v2", "--branch"]
    try:
        said = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_LIMIT_S,
            check=True,
        ).stdout.decode(errors="replace")
    except (OSError, subprocess.SubprocessError):
        return {}
    lines = said.splitlines()
    facts = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch."))
    commit, branch = facts.get("branch.oid", ""), facts.get("branch.head", "")
    return {
        "commit": "" if commit == "(initial)" else commit,
        "branch": "" if branch == "(detached)" else branch,
        "dirty": any(not line.startswith("#") for line in lines),
    }


def _ignored_below(source: str) -> IsIgnored:
    syntax: ModuleType = patterns
    lines: list[str] = []
    for name in _SYNTAXES:
        path = os.path.join(source, name)
        try:
            with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
                syntax, lines = _SYNTAXES[name], file.read().split("\n")
            break
        except FileNotFoundError:
            continue
        except OSError as error:
            raise _unreadable(source, error) from None
    rules, usual = syntax.parse(lines), patterns.parse(IGNORED_BY_DEFAULT)

    def is_ignored(path: str, is_directory: bool) -> bool:
        found = syntax.verdict(rules, path, is_directory)
        return bool(patterns.verdict(usual, path, is_directory) if found is None else found)

    return is_ignored


def _file(path: str) -> tuple[int, int] | None:
    """Return a file's device and inode, which are the same for all paths to the file, or None if
    the file doesn't exist.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _below(
    source: str,
    directory: str,
    is_ignored: IsIgnored,
    own: Collection[tuple[int, int] | None],
) -> Iterator[Entry]:
    try:
        names = sorted(os.listdir(os.path.join(source, directory)))
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unreadable(source, error) from None
    for name in names:
        path = os.path.join(directory, name)
        here = os.path.join(source, path)
        try:
            status = os.lstat(here)
        except FileNotFoundError:
            continue
        is_directory = stat.S_ISDIR(status.st_mode)
        if (status.st_dev, status.st_ino) in own or is_ignored(path, is_directory):
            continue
        if is_directory or stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
            yield Entry(path, status, here)
        if is_directory:
            yield from _below(source, path, is_ignored, own)


def _is_in(own: str, here: str) -> bool:
    """Return whether a path is the destination directory itself or is inside it."""
    real = os.path.join(os.path.realpath(os.path.dirname(here)), os.path.basename(here))
    return real == own or real.startswith(own + os.sep)


def _copy(here: str, there: str) -> None:
    try:
        if os.path.lexists(there):
            os.unlink(there)  # never write through an existing link
        shutil.copy2(here, there, follow_symlinks=False)
    except FileNotFoundError:
        if os.path.lexists(here):
            raise


def _add(tar: tarfile.TarFile, here: str, name: str) -> None:
    if stat.S_ISREG(os.lstat(here).st_mode):
        with open(here, "rb") as file:
            member = _anonymous(tar.gettarinfo(arcname=name, fileobj=file))
            # A hard link becomes a separate file in the archive.
            member.type, member.size = tarfile.REGTYPE, os.fstat(file.fileno()).st_size
            tar.addfile(member, file)
    else:
        tar.addfile(_anonymous(tar.gettarinfo(here, name)))


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _unreadable(source: str, error: OSError) -> MachineError:
    return MachineError(
        f"can't copy the workspace {source}: {error}",
        hint="exclude files in .relightignore",
    )
