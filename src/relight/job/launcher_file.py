"""Builds the launcher file, a single file that runs `relight run` from a zip archive on machines
and in images where relight isn't installed.

The file is a shell script that looks for a Python interpreter, followed by a zip archive
(https://docs.python.org/3/library/zipapp.html) that this interpreter runs. The archive contains the
modules that `relight run` needs, most of them in one member (`packed_modules.py`). The file is
built from the installed package, without docstrings, comments and annotations. The build is
reproducible: the same package always yields the same bytes.

A scheduler puts the file, under the name `relight`, into one of the replica's directories and
starts the role's command through `wrapped`, which adds this directory to PATH. Over ssh, the file
also runs the process that starts this command. The position in PATH depends on the flag:

    --launcher=auto       last, so that a relight in the image takes precedence
    --launcher=travels    first
    --launcher=installed  not in PATH; the file is not sent
"""

import ast
import bisect
import contextlib
import functools
import hashlib
import io
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from relight.base import env as environment
from relight.base import package
from relight.base.errors import EXIT_MACHINE
from relight.host import files
from relight.job import packed_modules
from relight.job.app import Role

NAME = "relight"
"""The name of the launcher file."""
VARIABLE = "RELIGHT_LAUNCHER"
"""The environment variable of a role that contains the value of `--launcher`, if that flag was
given.
"""
INSTALLED, TRAVELS = "installed", "travels"
ROOMS = frozenset({
    "base", "flags", "events", "core", "host", "processes", "output", "net", "rendezvous",
    "stacks", "health", "warm", "preload", "worker", "agent",
})  # fmt: skip
"""Packages that `relight run` needs. They form the launcher layer in tests/test_layers.py."""
FOR_SSH = frozenset({
    "job/__init__.py", "job/app.py", "job/handles.py", "job/macros.py", "job/records.py",
    "job/states.py",
    "schedulers/__init__.py", "schedulers/ssh/__init__.py", "schedulers/ssh/frames.py",
    "schedulers/ssh/hosts.py", "schedulers/ssh/orders.py", "schedulers/ssh/replica.py",
})  # fmt: skip
"""Modules from other packages that a host needs in order to run a replica of an ssh job."""
COMMANDS = frozenset({
    "__init__.py", "__main__.py", "cli/__init__.py", "cli/coordinator.py", "cli/launch.py",
    "cli/main.py", "cli/run.py", "cli/torchrun_completion.py",
})  # fmt: skip
"""The commands that run on a node, and the package's top-level modules."""
_FOR_OTHER_COMMANDS = frozenset({"core/status/rates.py", "core/status/timeline.py"})
"""Files in `ROOMS` that are only needed by commands that the launcher file doesn't contain."""
_BY_PATH = ("worker/hook/", "worker/path/", "worker/run_path.py")
"""Files that interpreters load by path before they import `relight`."""
_PACKED_MODULES = "job/packed_modules.py"
_HEAD = 2 * hashlib.sha256().digest_size
"""The cached file starts with the digests of the sources and of the launcher."""
_SCRIPT = f"""\
#!/bin/sh
# relight {package.__version__}, the launcher in one file. Behind these lines is a zip archive for Python.
for python in python3 python; do
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && exec "$python" "$0" "$@"
done
found=$(python3 --version 2>&1) || found=$(python --version 2>&1) || found='no Python'
echo "relight: error: the launcher needs Python 3.11 or newer on PATH, and here is $found" >&2
echo "hint: use an image with Python 3.11 or newer, or --launcher=torchrun" >&2
exit {EXIT_MACHINE}
"""  # noqa: E501
_MAIN = "from relight.__main__ import entry\n\nentry()\n"
_INSTALL = """
import sys
from relight import packed_modules
packed_modules.install(sys.modules[__name__])
"""
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip archive can store
_FOR_TYPES = ast.dump(ast.parse("TYPE_CHECKING", mode="eval").body)
_WITH_DOCUMENTS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_TEXT_OR_COMMENT = re.compile(
    rb"(?P<comment>[ \t]*#.*)"
    + b"".join(
        rb"|%b(?:[^\\%b%b]|\\(?s:.)%b)*%b" % (
            quotes, quotes[:1], b"\n" * (len(quotes) == 1), more, quotes
        )
        for quotes, more in (
            (b'"""', b'|"(?!"")'), (b"'''", b"|'(?!'')"), (b'"', b""), (b"'", b"")
        )
    )
)  # fmt: skip
_WORD = re.compile(r"(?:^|[\s;&|(])relight\s+(?:run|launch)\b")


@functools.cache
def build() -> bytes:
    """Return the content of the launcher file. Callers store it as `NAME`, with mode 0555.

    A build takes a second, so the user's cache directory keeps the latest one.

    Raises:
        OSError: if the installed package can't be read.
    """
    sources = {path: _read(path) for path in (*modules(), _PACKED_MODULES)}
    key = hashlib.sha256(repr((_SCRIPT, _read("job/launcher_file.py"), sources)).encode()).digest()
    directory = environment.cache_directory(environment.read().variables)
    path = os.path.join(directory, "launcher") if directory else ""
    found = _cached(path, key)
    if found is None:
        found = _built(sources)
        _cache(path, key, found)
    return found


def _cached(path: str, key: bytes) -> bytes | None:
    """Return the cached file if it is complete and has this key, or None otherwise. A file that
    another user could have written is not used, because it is executed on all nodes.
    """
    try:
        with files.opened(path) as file:
            found = os.fstat(file.fileno())
            if found.st_uid != os.geteuid() or found.st_mode & 0o022:
                return None
            content = file.read()
    except OSError:
        return None
    head, launcher = content[:_HEAD], content[_HEAD:]
    return launcher if head == key + hashlib.sha256(launcher).digest() else None


def _cache(path: str, key: bytes, content: bytes) -> None:
    with contextlib.suppress(OSError):  # the disk is full or read-only, or there is no home
        files.make_directories(os.path.dirname(path), 0o700)
        files.replace(path, key + hashlib.sha256(content).digest() + content)


@functools.cache
def split(most: int) -> Sequence[Mapping[str, bytes]]:
    """Return the launcher as several groups of files, for places that limit the size of an object.
    A replica needs the files of all groups in one directory.

    Args:
        most: the maximum size of a group in bytes.

    Raises:
        OSError: if the installed package can't be read.
    """
    import zipfile

    with zipfile.ZipFile(io.BytesIO(build())) as whole:
        members = {name: whole.read(name) for name in whole.namelist()}
    modules = zlib.compress(members.pop(packed_modules.MEMBER), 9)
    files, groups = {NAME: _archive(members.items())}, list[dict[str, bytes]]()
    while modules:
        room = most - sum(map(len, files.values()))
        files[packed_modules.part(NAME, len(groups))] = modules[:room]
        groups.append(files)
        files, modules = {}, modules[room:]
    return groups


def _built(sources: dict[str, bytes]) -> bytes:
    return _archive(_members(sources))


def _archive(members: Iterable[tuple[str, bytes]]) -> bytes:
    """Return an executable zip archive of these members."""
    import zipfile  # 10 ms

    packed = io.BytesIO()
    packed.write(_SCRIPT.encode())  # zip archives are read from the end
    with zipfile.ZipFile(packed, "a", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, source in members:
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, source)
    return packed.getvalue()


@functools.cache
def digest() -> str:
    """Return the first 12 hexadecimal digits of the launcher file's SHA-256."""
    return hashlib.sha256(build()).hexdigest()[:12]


def modules() -> Iterator[str]:
    """Yield the paths of the modules in the archive in order, relative to the package."""
    for directory, folders, names in os.walk(package.DIRECTORY):
        folders.sort()
        inside = os.path.relpath(directory, package.DIRECTORY)
        for file in sorted(names):
            path = os.path.normpath(os.path.join(inside, file))
            if path.endswith(".py") and (
                path in FOR_SSH | COMMANDS
                or (inside.split(os.sep)[0] in ROOMS and path not in _FOR_OTHER_COMMANDS)
            ):
                yield path


def needed(role: Role) -> bool:
    """Return whether a role's command starts `relight run` and may need the launcher file."""
    return starts_relight(role) and role.env.get(VARIABLE) != INSTALLED


def starts_relight(role: Role) -> bool:
    """Return whether a role's command starts `relight run` or `relight launch`."""
    words = (role.entrypoint, *role.args)
    return role.entrypoint == NAME or any(map(_WORD.search, words))


def wrapped(role: Role, directory: str) -> Role:
    """Return the role with its command wrapped so that it finds the launcher in one of the
    replica's directories.

    Args:
        role: a role for which `needed` is true.
        directory: a path without shell metacharacters.
    """
    first = role.env.get(VARIABLE) == TRAVELS
    path = f"{directory}:$PATH" if first else f"$PATH:{directory}"
    words = ["-c", f'PATH="{path}" exec "$@"', "sh", role.entrypoint, *role.args]
    return replace(role, entrypoint="sh", args=words)


def _read(path: str) -> bytes:
    with open(os.path.join(package.DIRECTORY, path), "rb") as file:
        return file.read()


def _members(sources: dict[str, bytes]) -> Iterator[tuple[str, bytes]]:
    small = {path: stripped(source.decode()).encode() for path, source in sources.items()}
    init = small.pop("__init__.py")
    yield "__main__.py", _MAIN.encode()
    yield f"{NAME}/__init__.py", init + _INSTALL.encode()
    yield f"{NAME}/packed_modules.py", small.pop(_PACKED_MODULES)
    for path in [path for path in small if path.startswith(_BY_PATH)]:
        yield f"{NAME}/{path}", small.pop(path)
    packed = packed_modules.pack((f"{NAME}/{path}", text) for path, text in small.items())
    yield packed_modules.MEMBER, packed


def stripped(source: str) -> str:
    """Return a module's source without docstrings, comments, function and variable annotations,
    imports for type checkers, and most of the indentation.

    Statements keep their line numbers, so that tracebacks from the file match the package.
    Annotations in classes are kept, because `base/fields.py` uses them to read records.
    """
    text = source.encode()
    starts = [0, *(match.end() for match in re.finditer(b"\n", text))]
    cuts, in_literal = dict[int, tuple[int, bytes]](), set[int]()

    def begin(node: ast.stmt | ast.expr | ast.arg) -> int:
        return starts[node.lineno - 1] + node.col_offset

    def end(node: ast.stmt | ast.expr | ast.arg) -> int:
        return starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    for node, holder in _statements(ast.parse(source)):
        body = node.body if isinstance(node, _WITH_DOCUMENTS) else []
        documents = [each for each in body if _is_text(each)]
        for each in documents:
            is_all = each is documents[0] and len(documents) == len(body)
            cuts[begin(each)] = end(each), b"pass" if is_all else b""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if node.returns:
                cuts[text.rindex(b"->", 0, begin(node.returns))] = end(node.returns), b""
            for arg in ast.walk(node.args):
                if isinstance(arg, ast.arg) and arg.annotation:
                    cuts[begin(arg) + len(arg.arg.encode())] = end(arg), b""
        elif isinstance(node, ast.AnnAssign):
            if node.value and not isinstance(holder, ast.ClassDef):
                cuts[end(node.target)] = end(node.annotation), b""
        elif isinstance(node, ast.If) and ast.dump(node.test) == _FOR_TYPES and not node.orelse:
            cuts[begin(node)] = end(node), b"pass"
    for match in _TEXT_OR_COMMENT.finditer(text):
        if match["comment"] is not None:
            cuts[match.start()] = match.end(), b""
        else:
            first = bisect.bisect(starts, match.start())
            in_literal.update(range(first, first + match[0].count(b"\n")))
    kept, place = list[bytes](), 0
    for first, (last, replacement) in sorted(cuts.items()):
        if first >= place:  # a cut inside another one is skipped
            kept += text[place:first], replacement, b"\n" * text.count(b"\n", first, last)
            place = last
    lines = (b"".join(kept) + text[place:]).decode().split("\n")
    return "\n".join(
        line if number in in_literal else _less_indented(line) for number, line in enumerate(lines)
    )


def _statements(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """Yield a module and all of its statements, each with the node that contains it. Visiting
    expressions as well would double the time.
    """
    found: list[tuple[ast.AST, ast.AST | None]] = [(tree, None)]
    for node, holder in found:
        yield node, holder
        for name in _BLOCKS:
            found += ((each, node) for each in getattr(node, name, ()))


def _less_indented(line: str) -> str:
    words = line.strip(" ")
    return " " * ((len(line.rstrip(" ")) - len(words)) // 4) + words


def _is_text(statement: ast.stmt) -> bool:
    """Return whether a statement is a bare string, such as the docstring of a function or an
    attribute.
    """
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
