"""Finds evidence on this machine that explains why a worker exited, such as a full file system, a
limit, or a missing interpreter.

This module is loaded only after a failure. Each function returns a sentence for the failure report,
or an empty string. If there is no proof, the sentence contains the word "perhaps".
"""

import os
import re
import resource
import signal
from collections.abc import Iterable

from relight.base.env import Environment
from relight.base.fields import fit
from relight.base.text import format_size
from relight.core.failure import ErrorReport
from relight.core.workers.worker_command import (
    Command,
    same_local_rank,
    suggest_replacement,
    suggest_use_env,
)

_SHM = "/dev/shm"  # noqa: S108
_ELF = b"\x7fELF"
_SMALL = 64 << 20
"""Docker's default size of /dev/shm."""
_CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv")
_NEARLY = 16 << 10
"""A file system with less free space than this counts as full, because a file needs whole
blocks.
"""
_ROOM = 1 << 30
"""A file system with more free space than this was not full."""
_TORCH_SAVE = r"unexpected pos \d+ vs \d+|iostream error|PytorchStreamWriter failed"
_NO_ROOM = re.compile(
    r"No space left on device|Errno 28\b|ENOSPC|disk (?:is )?full|database or disk is full"
    rf"|{_TORCH_SAVE}|disk I/O error"
    r"|(?:failed|unable|short|error)[\w ]{0,20} writ(?:e|ing)|write (?:error|failed)",
    re.IGNORECASE,
)
"""Messages from programs that can't write to a file. torch.save does not report the reason."""
_UNEXPLAINED = re.compile(_TORCH_SAVE)
_PATH = re.compile(r"(?<![\w.:/-])/(?:[\w.+@=-]+/)*[\w.+@=-]*")
_MAX_PATHS = 50
_UNKNOWN_LOCAL_RANK = re.compile(
    r"(?:unrecognized arguments:|[Nn]o such option|unknown (?:option|flag)).*--local-rank"
)
_UNDERSCORE = "--local_rank"
_LACKS_LOCAL_RANK = re.compile(
    r"(?:arguments are required:|[Mm]issing (?:required )?(?:option|argument)).*(--local[-_]rank)\b"
)
"""Messages from argparse, click and others about a missing flag."""
_NO_PACKAGE = "attempted relative import with no known parent package"
_NO_MODULE = re.compile(r"^No module named '(\w+)'$")
_TAKEN = re.compile(r"[Aa]ddress already in use|EADDRINUSE|Duplicate GPU|out of memory")
"""Messages about conflicts between workers that use the same local rank."""
_LOCAL = ("btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "vfat", "xfs", "zfs")
"""File systems for which statvfs(3) never waits for another machine."""


def full_disks(texts: Iterable[str], folders: Iterable[str], mounts: str = "/proc/mounts") -> str:
    """Name the file systems that are full and may therefore explain an error.

    Args:
        texts: the worker's output. The paths that it contains are checked first.
        folders: directories that the worker may have written to.
        mounts: the path of the mount table (proc(5)). If none of the paths and directories above is
            on a full file system, the local file systems in the mount table are checked, because
            most scripts don't print the paths that they write to.
    """
    lines = list(texts)
    if not any(_NO_ROOM.search(line) for line in lines):
        return ""
    seen: set[int] = set()
    found = [_full(path, seen) for path in (*_paths(lines), *folders)]
    if not any(found):
        found = [_full(path, seen) for path in _writable(mounts)]
    return "; ".join(list(dict.fromkeys(filter(None, found)))[:2])


def file_size_limit(texts: Iterable[str]) -> str:
    """Explain a write error that torch.save does not explain, if no file system is full. The script
    may have set the limit itself.

    Args:
        texts: the worker's output.
    """
    lines = list(texts)
    if not any(_UNEXPLAINED.search(line) for line in lines):
        return ""
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft != resource.RLIM_INFINITY:
        return f"perhaps the file reached its size limit (ulimit -f, {format_size(soft)})"
    for folder in map(os.path.dirname, _paths(lines)):
        free, _ = space(folder)
        if folder != "/" and os.path.isdir(folder) and free >= _ROOM:
            room = f"the file system of {folder} has {format_size(free)} free"
            return f"perhaps a file size limit (ulimit -f) or a quota: {room}"
    return ""


def bus_error(env: Environment, shm: str = _SHM) -> str:
    """Explain a SIGBUS. This signal means that the worker accessed mapped memory beyond the end of
    the mapped file, or that no space was left.

    The kernel has already freed the worker's own files in `shm`, so `shm` may have been full
    before.
    """
    remedy = _shm_remedy(env)
    full = _full(shm, set())
    if full:
        return f"{full}{remedy}"
    _, size = space(shm)
    if 0 < size <= _SMALL:
        small = f"{shm}, which has only {format_size(size)}, was full{remedy}"
        return f"perhaps {small}, or a memory-mapped file was truncated"
    return "perhaps a memory-mapped file was truncated"


def full_shared_memory(texts: Iterable[str], env: Environment, shm: str = _SHM) -> str:
    """Report the size of `shm` if torch ran out of space there. The worker's own files have already
    been freed.

    Args:
        texts: the worker's output.
        env: the worker's environment.
        shm: the file system for shared memory.
    """
    if not any("shared memory" in text and _NO_ROOM.search(text) for text in texts):
        return ""
    _, size = space(shm)
    return _full(shm, set()) or (f"{shm} has {format_size(size)}{_shm_remedy(env)}" if size else "")


def cpu_limit() -> str:
    """Explain a SIGXCPU, sent at the CPU time limit (setrlimit(2)). The script may have set the
    limit itself.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_CPU)
    limit = f", {soft} s" if soft != resource.RLIM_INFINITY else ""
    return f"it used up its CPU time limit (ulimit -t{limit})"


def hard_cpu_limit() -> str:
    """Explain a SIGKILL that is sent at the hard CPU time limit (setrlimit(2))."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard == resource.RLIM_INFINITY:
        return ""
    return (
        f"perhaps it used up its CPU time limit (ulimit -t, {hard} s) and was killed by the kernel"
    )


def missing_interpreter(program: str, env: Environment) -> str:
    """Explain that a program exists but could not be started because a file that it requires is
    missing (execve(2)).

    Args:
        program: the program's path, or its name on PATH.
        env: the worker's environment.
    """
    path, first = _first_line(program, env)
    if not first.startswith(b"#!"):
        return f"{path} needs a dynamic loader that is missing" if first[:4] == _ELF else ""
    named = re.split(rb"[ \t]", first[2:].strip(b" \t\n"), maxsplit=1)[0]
    if not named or os.path.exists(named):
        return ""
    if named.endswith(b"\r"):
        return f"the first line of {path} ends with a carriage return: dos2unix {path}"
    interpreter = fit(os.fsdecode(named))
    return f"the interpreter on the first line of {path}, {interpreter}, does not exist"


def is_binary(program: str, env: Environment) -> bool:
    """Return whether a program is compiled. The arguments are those of `missing_interpreter`."""
    return _first_line(program, env)[1].startswith(_ELF)


def unknown_format(program: str, env: Environment) -> str:
    """Explain that the kernel can't execute a program. The arguments are those of
    `missing_interpreter`.
    """
    path, first = _first_line(program, env)
    if first.startswith(_ELF):
        return f"{path} was built for another type of processor"
    return "" if first.startswith(b"#!") else f"{path} needs a first line such as #!/bin/sh"


def _first_line(program: str, env: Environment) -> tuple[str, bytes]:
    """Return a program's path and the beginning of its first line. The line is empty if it can't be
    read.
    """
    import shutil

    path = program if "/" in program else shutil.which(program, path=env.get("PATH", os.defpath))
    try:
        with open(path or "", "rb") as file:
            return path or "", file.readline(512)
    except OSError:
        return path or "", b""


def closed_output(report: ErrorReport | None, exitcode: int, *, is_closed: bool) -> str:
    """Explain a broken pipe if the process that reads the launcher's output has exited."""
    pipe = getattr(signal, "SIGPIPE", 0)
    broken = exitcode in (-pipe, 128 + pipe) or (
        report is not None and report.type == "BrokenPipeError"
    )
    reader = "the process reading the launcher's output has exited, as with `| head`"
    return reader if broken and is_closed else ""


def unsearched_folder(report: ErrorReport, command: Command) -> str:
    """Explain a failed import of the user's own code. Python searches the directory of a script,
    but neither the current directory nor the one above the script.
    """
    try:
        here = os.getcwd()
    except OSError:  # it was deleted
        return ""
    if command.module or command.no_python:
        return ""
    script = os.path.normpath(os.path.join(here, command.script))
    module = os.path.relpath(script, here).removesuffix(".py").replace("/", ".")
    is_module = "." in module and all(map(str.isidentifier, module.split(".")))
    if report.message == _NO_PACKAGE:
        return fit(f"a script has no package; use -m {module}") if is_module else ""
    lacked, folder = _NO_MODULE.match(report.message), os.path.dirname(script)
    for place in (here, os.path.dirname(folder)):
        if lacked is not None and place != folder and _has_source(os.path.join(place, lacked[1])):
            instead = f", or use -m {module}" if is_module and place == here else ""
            where = f"Python searches {folder}, but {lacked[1]} is in {place}"
            return fit(f"{where}; set PYTHONPATH={place}{instead}")
    return ""


def _has_source(module: str) -> bool:
    """Return whether there is a module or package at a path without an extension. wandb and others
    create directories with their own names, which contain no source.
    """
    try:
        return any(name.endswith(".py") for name in os.listdir(module))
    except OSError:
        return os.path.isfile(f"{module}.py")


def local_rank(texts: Iterable[str], command: Command, local_world_size: int) -> str:
    """Explain the failure of a script that expects torch.distributed.launch to pass it the
    `--local-rank` argument.

    Args:
        texts: the worker's output.
        command: the workers' command line.
        local_world_size: the number of workers.
    """
    lines = list(texts)
    passed, given = command.local_rank_argument, same_local_rank(command.script_args)
    lacked = next(filter(None, map(_LACKS_LOCAL_RANK.search, lines)), None)
    if lacked is not None:
        return (suggest_use_env if passed else suggest_replacement)(lacked[1])
    if passed and any(_UNKNOWN_LOCAL_RANK.search(line) for line in lines):
        return suggest_use_env(_UNDERSCORE if any(_UNDERSCORE in line for line in lines) else "")
    if given and local_world_size > 1 and any(_TAKEN.search(line) for line in lines):
        return f"all {local_world_size} workers on this node were passed {given}"
    return ""


def space(path: str) -> tuple[int, int]:
    """Return the free bytes and the size of the file system that contains a path, or 0 for both if
    they are unknown.
    """
    try:
        disk = os.statvfs(path)
    except OSError:
        return 0, 0
    free = disk.f_bavail if os.geteuid() else disk.f_bfree
    return free * disk.f_frsize, disk.f_blocks * disk.f_frsize


def _shm_remedy(env: Environment) -> str:
    contained = any(map(os.path.exists, _CONTAINER_FILES)) or env.get("KUBERNETES_SERVICE_HOST")
    return " (enlarge it with --shm-size)" if contained else ""


def _full(path: str, seen: set[int]) -> str:
    """Describe the file system that contains a path if the file system is full. The result is empty
    if it isn't full, or if that is unknown.
    """
    path = os.path.abspath(path)
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    try:
        device = os.stat(path).st_dev
        disk = os.statvfs(path)
    except OSError:
        return ""
    if device in seen:
        return ""
    seen.add(device)
    free, size = space(path)
    if disk.f_flag & os.ST_RDONLY or not size:  # some file systems don't report any blocks
        return ""
    if free < _NEARLY:
        return (
            f"the file system of {path} is full ({format_size(free)} free of {format_size(size)})"
        )
    if disk.f_files and not disk.f_ffree:
        return f"the file system of {path} has no inodes left (df -i)"
    return ""


def _writable(mounts: str) -> list[str]:
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            rows = [line.split() for line in file.read(1 << 20).splitlines()]
    except OSError:
        return []
    local = [row for row in rows if len(row) > 3 and row[2] in _LOCAL]
    return [row[1] for row in local if "rw" in row[3].split(",")][:_MAX_PATHS]


def _paths(lines: Iterable[str]) -> list[str]:
    """Return the first paths in a worker's output, without the paths of its frames."""
    said = (line for line in lines if not line.lstrip(" |").startswith('File "'))
    return [path for line in said for path in _PATH.findall(line)][:_MAX_PATHS]
