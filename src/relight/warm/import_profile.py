"""Stores what `--preload=auto` has learned about a script, for the script's next start.

Each script has a file in the user's cache directory: `$XDG_CACHE_HOME/relight/learned`, or
`~/.cache/relight/learned`. The file records which modules the workers import, and which of these
can't be preloaded. The next job then doesn't have to wait until its workers have imported the
modules, and doesn't try to preload the unfit modules again. The file is valid as long as

- the same interpreter runs the same file, or the same module from the same directory,
- the import lines in the script, and in the modules next to it that it imports, are unchanged
  (`warm/script_scan.py`), and
- no package has been installed, upgraded or removed in the directories that were searched at the
  time. Such a change would be visible in the directory's modification time.

A file that is invalid or can't be read is ignored, and the profile is learned again. The values of
environment variables are never stored. No matter which names the file contains, only installed
modules are imported, and each import is checked as if nothing were known about it
(`preload/importer.py`). The cache keeps files for the 100 most recently used scripts.
"""

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from relight.base import env as environment
from relight.base import fields
from relight.host import files
from relight.host.devices import entries
from relight.warm import script_scan
from relight.warm.worker_program import WorkerProgram

_MAX_FILES = 100
_LONGEST = 4 << 20
_SUFFIX = ".json"


class UnfitModule(NamedTuple):
    """A module that can't be preloaded, along with the reason and the import time in seconds."""

    module: str
    reason: str
    seconds: float


class PackageDirectory(NamedTuple):
    """A directory that contains installed packages, with its modification time in nanoseconds."""

    path: str
    mtime_ns: int


class Learned(NamedTuple):
    """A script's profile.

    `script` is the script's path, or `-m MODULE in DIRECTORY`. The `imports` field is a digest of
    its import lines. The `modules` field contains the modules that workers imported or tried to
    find, in this order. The `culprits` field contains the modules that make the `unfit` modules
    unfit. The `writes` field contains the names of environment variables that the script sets. The
    `directories` field contains the directories in which packages are installed. The `import_s`
    field is the maximum duration of the imports in seconds, or 0.
    """

    script: str
    imports: str
    modules: tuple[str, ...] = ()
    unfit: tuple[UnfitModule, ...] = ()
    culprits: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    directories: tuple[PackageDirectory, ...] = ()
    import_s: float = 0.0

    @property
    def fit(self) -> list[str]:
        """The modules to preload."""
        return self.without_unfit(self.modules)

    def without_unfit(self, names: Iterable[str]) -> list[str]:
        """Return the given modules, except those that are known not to be preloadable."""
        unfit = {each.module for each in self.unfit}
        below = tuple(f"{name}." for name in unfit)
        return [x for x in names if x not in unfit and not x.startswith(below)]


class LearnedFile:
    """The file that stores a script's profile.

    Args:
        worker: the workers' program. Nothing is stored if the script is read from stdin or the user
            has no home directory.
    """

    def __init__(self, worker: WorkerProgram) -> None:
        folder, self._script = directory(worker.variables), _script(worker.argv)
        self._path = _path(folder, worker.program, self._script) if folder and self._script else ""
        # Workers search for packages in these directories, if they use the same Python interpreter
        # as this process.
        is_own = worker.program == sys.executable
        self._packages = [path for path in sys.path if is_own and path.endswith("-packages")]
        self._notes: dict[str, UnfitModule] = {}
        self._endless: UnfitModule | None = None
        self._installed: dict[str, bool] = {}
        self.known = self._read(script_scan.import_lines(worker.argv))
        """The script's profile, or an empty one if the stored profile is out of date."""
        self._import_s = self.known.import_s

    def note_unfit(self, module: str, reason: str, seconds: float) -> None:
        """Record why a module is not being preloaded, in case it turns out that the module can
        never be preloaded.
        """
        self._notes[module] = UnfitModule(module, reason, seconds)

    def note_endless(self, module: str, reason: str, seconds: float) -> None:
        """Record a module whose import is taking very long, in case it has not finished when the
        job ends.
        """
        self._endless = UnfitModule(module, reason, seconds)

    def note_seconds(self, seconds: float) -> None:
        """Record an upper bound for the import time. The lowest upper bound is kept."""
        self._import_s = min(seconds, self._import_s or seconds)

    def is_installed(self, name: str) -> bool:
        """Return whether a module's package appears to be in a directory of installed packages."""
        top = name.partition(".")[0]
        if top not in self._installed:
            places = [each.path for each in self.known.directories] or self._packages
            self._installed[top] = any(
                top == entry.partition(".")[0]
                for place in places
                if place.endswith("-packages")
                for entry in entries(place)
            )
        return self._installed[top]

    def write(
        self, modules: Sequence[str], unfit: Mapping[str, str], directories: Sequence[str]
    ) -> None:
        """Store the results of a job.

        Args:
            modules: the modules that the workers import or try to find.
            unfit: the modules that can never be preloaded, each with the module that is the cause.
            directories: the directories in which packages are installed.
        """
        known, self._endless = self.known, None
        found = {each.module: each for each in known.unfit}
        found |= {name: note for name, note in self._notes.items() if name in unfit}
        self._store(
            known._replace(
                modules=tuple(dict.fromkeys((*known.modules, *modules))),
                unfit=tuple(found.values()),
                culprits=tuple(sorted({*known.culprits, *unfit.values()})),
                directories=_directories(directories),
                import_s=self._import_s,
            )
        )

    def add(self, modules: Sequence[str], writes: Sequence[str], *, are_all: bool = True) -> None:
        """Add the final results at the end of the job.

        Args:
            modules: the modules that watched workers have imported.
            writes: the names of the variables that the script set.
            are_all: whether the list is complete, because a worker that started cold was watched.
        """
        known, endless = self.known, self._endless
        if not known.modules:
            known = known._replace(directories=_directories(self._packages if modules else ()))
        if not known.directories:
            return
        if not (modules and are_all):  # a variable may have been set without being noticed
            writes = sorted({*known.writes, *writes})
        known = known._replace(
            modules=tuple(dict.fromkeys((*known.modules, *modules))),
            writes=tuple(writes),
            import_s=self._import_s,
        )
        if endless is not None:
            unfit, culprits = (*known.unfit, endless), (*known.culprits, endless.module)
            known = known._replace(unfit=unfit, culprits=culprits)
        self._store(known)

    def _read(self, imports: str) -> Learned:
        nothing = Learned(self._script, imports)
        known = _read(self._path)
        if known is None or known[:2] != nothing[:2] or not known.directories:
            return nothing
        if known.directories != _directories([each.path for each in known.directories]):
            return nothing
        with contextlib.suppress(OSError):
            os.utime(self._path)  # mark the file as recently used
        return known

    def _store(self, known: Learned) -> None:
        if known == self.known:
            return
        self.known = known
        if not self._path:
            return
        # The disk is full or read-only, so the next job learns the profile again.
        with contextlib.suppress(OSError):
            folder = os.path.dirname(self._path)
            files.make_directories(folder, 0o700)
            files.replace(self._path, json.dumps(fields.plain(known)))
            _remove_oldest(folder)


def directory(variables: Mapping[str, str]) -> str:
    """Return the directory that contains all profiles, or an empty string if the user doesn't have
    a home directory.
    """
    base = environment.cache_directory(variables)
    return base and os.path.join(base, "learned")


def forget(variables: Mapping[str, str], script: str | None = None) -> list[str]:
    """Remove the profile of one script, or of all scripts. Return these scripts, without
    duplicates.

    Args:
        variables: the environment.
        script: the path of the script, the name of a module that is run with -m, or None for all
            scripts.

    Raises:
        OSError: if a file can't be removed. All other files are removed nevertheless.
    """
    forgotten, problem = set(), None
    wanted = None if script is None else (_real(script), f"-m {script} in ")
    for path in _files(directory(variables)):
        known = _read(path)
        name = known.script if known is not None else path  # None means that the file is damaged
        if wanted is None or name == wanted[0] or name.startswith(wanted[1]):
            try:
                os.unlink(path)
                forgotten.add(name)
            except FileNotFoundError:
                pass  # another process has already removed it
            except OSError as error:
                problem = error
    if problem is not None:
        raise problem
    return sorted(forgotten)


def _script(argv: Sequence[str]) -> str:
    """Return the workers' program in a human-readable form that also serves as a key. The result is
    empty if the program is read from stdin, or if the working directory has been removed.
    """
    try:
        if argv[2] == "-m":
            return f"-m {argv[3]} in {os.getcwd()}"
    except OSError:
        return ""
    return "" if argv[2] == "-" else _real(argv[2])


def _real(path: str) -> str:
    try:
        return os.path.realpath(path)
    except OSError:  # the path is relative, and the working directory was removed
        return path


def _path(folder: str, program: str, script: str) -> str:
    key = "\0".join((os.path.abspath(program), script)).encode(errors="surrogateescape")
    return os.path.join(folder, hashlib.sha256(key).hexdigest()[:32] + _SUFFIX)


def _directories(paths: Collection[str]) -> tuple[PackageDirectory, ...]:
    """Return the directories that exist, each with its modification time."""
    found = []
    for path in sorted(set(paths)):
        with contextlib.suppress(OSError):
            found.append(PackageDirectory(path, os.stat(path).st_mtime_ns))
    return tuple(found)


def _read(path: str) -> Learned | None:
    try:
        with files.opened(path) as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                return None  # the file belongs to another user
            known: Learned = fields.record(Learned, fields.decode(file.read(_LONGEST)))
    except (OSError, fields.Malformed):
        return None
    return known


def _files(folder: str) -> Iterator[str]:
    for name in entries(folder):
        if name.endswith(_SUFFIX):
            yield os.path.join(folder, name)


def _remove_oldest(folder: str) -> None:
    """Remove the least recently used profiles."""
    for path in files.newest_first(_files(folder))[_MAX_FILES:]:
        with contextlib.suppress(OSError):
            os.unlink(path)
