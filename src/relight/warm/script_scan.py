"""Scans a script's source code, before the script runs, for its imports, for writes to environment
variables, and for the source of its local rank.

The script and the modules next to it that it imports (at most 50 files) are scanned, but not
parsed. The result is a guess, but the scan works even if the syntax is invalid. The scan takes 0.5
ms for one small file, and 40 ms for 50 large files.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Sequence

from relight.host import files

_MAX_FILES = 50
_LONGEST = 1 << 20
_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+(\.*)((?:\w[\w.]*)?)[ \t]+import\b|import\b)(.*)$", re.MULTILINE
)
_NAME = re.compile(rb"[A-Za-z_][\w.]*")
_LOCAL_RANK = re.compile(rb"""["']--local([-_])rank["']""")
_REQUIRES_LOCAL_RANK = re.compile(rb"--local[-_]rank[^()]*\brequired *= *True")
_READS_LOCAL_RANK = (b"LOCAL_RANK", b"accelerate", b"deepspeed", b"lightning", b"transformers")
"""The environment variable itself, and the names of libraries that read it."""
_CALLS = (b"environ.setdefault(", b"environ.update(", b"putenv(")


def sets_variables(argv: Sequence[str]) -> bool:
    """Return whether a worker's program appears to write to its environment.

    Args:
        argv: a worker's command line. It consists of the interpreter, `-u`, and the script or `-m`
            and a module.
    """
    return any(map(_sets_variables, _texts(argv)))


def local_rank_flags(argv: Sequence[str]) -> tuple[tuple[str, ...], bool, bool]:
    """Return which of the flags `--local-rank` and `--local_rank` a worker's program appears to
    accept, whether the program may also get its local rank from LOCAL_RANK, and whether it requires
    one of these flags.
    """
    texts = list(_texts(argv))
    found = {match[1].decode() for text in texts for match in _LOCAL_RANK.finditer(text)}
    flags = tuple(f"--local{dash}rank" for dash in sorted(found))
    reads = any(name in text for text in texts for name in _READS_LOCAL_RANK)
    return flags, reads, any(map(_REQUIRES_LOCAL_RANK.search, texts))


def import_lines(argv: Sequence[str]) -> str:
    """Return a digest of the import lines in a worker's program."""
    lines = {
        line.strip() for text in _texts(argv) for line in text.splitlines() if b"import" in line
    }
    return hashlib.sha256(b"\n".join(sorted(lines))).hexdigest()


def _sets_variables(text: bytes) -> bool:
    ends = [part.partition(b"]")[2].lstrip()[:2] for part in text.split(b"environ[")[1:]]
    return any(x[:1] == b"=" != x[1:] for x in ends) or any(call in text for call in _CALLS)


def _texts(argv: Sequence[str]) -> Iterator[bytes]:
    """Yield the source code of the script, and of the modules next to the script that it
    imports.
    """
    folder, left = _start(argv)
    seen = set(left)
    read = 0
    while left and read < _MAX_FILES:
        path = left.pop()
        try:
            with files.opened(path) as file:
                text = file.read(_LONGEST)
        except OSError:
            continue
        read += 1
        yield text
        for other in _imported(text, folder, os.path.dirname(path)):
            if other not in seen:
                seen.add(other)
                left.append(other)


def _start(argv: Sequence[str]) -> tuple[str, list[str]]:
    """Return the first directory in which modules are searched for, and the possible locations of
    the program.
    """
    program = argv[2]
    if program == "-":
        return "", []
    if program == "-m":
        path = argv[3].replace(".", os.sep)
        return "", [f"{path}.py", os.path.join(path, "__main__.py")]
    if os.path.isdir(program):
        return program, [os.path.join(program, "__main__.py")]
    path = os.path.realpath(program)
    return os.path.dirname(path), [path]


def _imported(text: bytes, folder: str, own: str) -> Iterator[str]:
    """Yield the possible paths of the modules that a source file imports and that are next to the
    script.

    Args:
        text: the file's source code.
        folder: the directory for absolute imports.
        own: the directory for relative imports.
    """
    for match in _IMPORT.finditer(text):
        dots, module, rest = match.groups()
        names = [m[0] for part in rest.split(b",") if (m := _NAME.match(part.strip(b" \t()")))]
        if module:  # in `from a import b`, `b` may also be a module
            names = [module, *(module + b"." + name for name in names)]
        base = own if dots else folder
        for _ in (dots or b"")[1:]:
            base = os.path.dirname(base)
        for name in names:
            path = os.path.join(base, *name.decode().split("."))
            yield f"{path}.py"
            yield os.path.join(path, "__init__.py")
