"""The launcher as one file, for machines and images without relight: `relight run` from a zip.

The file is a shell script that looks for a Python, followed by a zip archive of the modules that
`relight run` needs, which that Python runs (https://docs.python.org/3/library/zipapp.html). It is
built from the installed package, without docstrings and comments, and the same package gives the
same bytes.

A scheduler puts the file, named `relight`, into a directory of the replica, and starts the role's
command by `wrapped`, which adds this directory to PATH (over ssh, the file also runs the process
that starts this command):

    --launcher=auto       behind the others: a relight that the image has is preferred
    --launcher=travels    before the others
    --launcher=installed  not at all; the file is not sent
"""

import ast
import functools
import hashlib
import io
import os
import re
from collections.abc import Iterator
from dataclasses import replace

import relight
from relight.base.errors import EXIT_MACHINE
from relight.job.app import AppDef, Role

NAME = "relight"
"""The name of the file."""
VARIABLE = "RELIGHT_LAUNCHER"
"""The variable of a role that holds the value of `--launcher`, if one was given."""
INSTALLED, TRAVELS = "installed", "travels"
ELSEWHERE = frozenset({
    "api", "inspect", "job", "pytest_plugin", "runner", "sandbox", "schedulers", "shim", "tracker",
})  # fmt: skip
"""Packages that `relight run` does not need."""
FOR_SSH = frozenset({
    "job/__init__.py", "job/app.py", "job/handles.py", "job/macros.py", "job/records.py",
    "schedulers/__init__.py", "schedulers/ssh/__init__.py", "schedulers/ssh/frames.py",
    "schedulers/ssh/hosts.py", "schedulers/ssh/orders.py", "schedulers/ssh/replica.py",
})  # fmt: skip
"""Modules of these packages that a host needs to run a replica for ssh."""
_CLI = frozenset({"__init__", "coordinator", "doctor", "launch", "main", "run",
                   "torchrun_completion"})  # fmt: skip
"""The modules of `relight.cli` that it needs."""
_FOR_COMMANDS = frozenset({
    "core/status/rates.py", "core/status/timeline.py", "torch_launcher.py",
})  # fmt: skip
"""Files needed only by other commands and Python programs."""
_SCRIPT = f"""\
#!/bin/sh
# relight {relight.__version__}, the launcher in one file. Behind these lines is a zip archive for Python.
for python in python3 python; do
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && exec "$python" "$0" "$@"
done
found=$(python3 --version 2>&1) || found=$(python --version 2>&1) || found='no Python'
echo "relight: error: the launcher needs Python 3.11 or newer on PATH, and here is $found" >&2
echo "hint: use an image with Python 3.11 or newer, or --launcher=torchrun" >&2
exit {EXIT_MACHINE}
"""  # noqa: E501
_MAIN = "from relight.__main__ import entry\n\nentry()\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first moment that a zip archive can name
_WORD = re.compile(r"(?:^|[\s;&|(])relight\s+(?:run|launch)\b")


@functools.cache
def build() -> bytes:
    """Return the file, to be stored with mode 0555 as `NAME`.

    Raises:
        OSError: if the installed package can't be read.
    """
    import zipfile  # 10 ms

    packed = io.BytesIO()
    packed.write(_SCRIPT.encode())  # readers of zip archives look from the end
    with zipfile.ZipFile(packed, "a", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, source in (("__main__.py", _MAIN.encode()), *_sources()):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, source)
    return packed.getvalue()


@functools.cache
def digest() -> str:
    """Return the first 12 hexadecimal digits of the file's SHA-256."""
    return hashlib.sha256(build()).hexdigest()[:12]


def modules() -> Iterator[str]:
    """Yield the paths of the modules in the archive, relative to the package, in order."""
    top = os.path.dirname(relight.__file__)
    for directory, folders, files in os.walk(top):
        folders.sort()
        inside = os.path.relpath(directory, top)
        for file in sorted(files):
            name, extension = os.path.splitext(file)
            path = os.path.normpath(os.path.join(inside, file))
            if inside.split(os.sep)[0] in ELSEWHERE:
                is_there = path in FOR_SSH
            elif inside.split(os.sep)[0] == "cli":
                is_there = inside == "cli" and name in _CLI
            else:
                is_there = path not in _FOR_COMMANDS
            if extension == ".py" and is_there:
                yield path


def with_bundled_launcher(app: AppDef, launcher: str) -> AppDef:
    """Return the app with the value of `--launcher` in its roles, if this module defines it."""
    if launcher not in (INSTALLED, TRAVELS):
        return app
    roles = [replace(role, env={**role.env, VARIABLE: launcher}) for role in app.roles]
    return replace(app, roles=roles)


def needed(role: Role) -> bool:
    """Return whether a role's command starts `relight run` and may have to bring it."""
    return starts_relight(role) and role.env.get(VARIABLE) != INSTALLED


def starts_relight(role: Role) -> bool:
    """Return whether a role's command starts `relight run` or `relight launch`."""
    words = (role.entrypoint, *role.args)
    return role.entrypoint == NAME or any(map(_WORD.search, words))


def wrapped(role: Role, directory: str) -> Role:
    """Return the role with a command that finds the launcher in a directory of the replica.

    Args:
        role: one for which `needed` is true.
        directory: without characters that mean something to a shell.
    """
    first = role.env.get(VARIABLE) == TRAVELS
    path = f"{directory}:$PATH" if first else f"$PATH:{directory}"
    words = ["-c", f'PATH="{path}" exec "$@"', "sh", role.entrypoint, *role.args]
    return replace(role, entrypoint="sh", args=words)


def _sources() -> Iterator[tuple[str, bytes]]:
    top = os.path.dirname(relight.__file__)
    for path in modules():
        with open(os.path.join(top, path), "rb") as file:
            yield f"{NAME}/{path}", stripped(file.read().decode()).encode()


def stripped(source: str) -> str:
    """Return a module without docstrings and comment lines. Statements keep their line numbers, so
    that a traceback of the file matches the package.
    """
    lines, kept = source.split("\n"), set[int]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            documents = [each for each in node.body if _is_text(each)]
            for each in documents:
                lines[each.lineno - 1 : each.end_lineno] = [""] * _height(each)
            if documents and len(documents) == len(node.body):
                lines[documents[0].lineno - 1] = " " * documents[0].col_offset + "pass"
        elif isinstance(node, (ast.Constant, ast.JoinedStr)):
            kept.update(range(node.lineno, node.lineno + _height(node) - 1))
    return "\n".join(
        "" if line.lstrip().startswith("#") and number not in kept else line
        for number, line in enumerate(lines)
    )


def _is_text(statement: ast.stmt) -> bool:
    """Return whether a statement is only a text, as docstrings and those of attributes are."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _height(node: ast.stmt | ast.expr) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1
