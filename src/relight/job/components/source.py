"""Source locations in components, for error messages."""

import ast
import inspect
import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any


def source_location(function: Callable[..., Any], parameter: str = "") -> str:
    """Return the location of a function or of one of its parameters, as `file.py:12`."""
    code = getattr(inspect.unwrap(getattr(function, "func", function)), "__code__", None)
    if code is None:
        return getattr(function, "__module__", "") or "?"
    line = code.co_firstlineno
    node = _definition(code.co_filename, code.co_name, line)
    if node is not None:
        line = node.lineno
        spec = node.args
        every = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, spec.vararg, spec.kwarg]
        line = next((arg.lineno for arg in every if arg and arg.arg == parameter), line)
    return f"{shown(code.co_filename)}:{line}"


def source_file(function: Callable[..., Any]) -> str:
    """Return the file that defines a function or a class, which may be wrapped."""
    inner = inspect.unwrap(getattr(function, "func", function))
    module = sys.modules.get(getattr(inner, "__module__", ""))
    code = getattr(inner, "__code__", None)
    return code.co_filename if code else getattr(module, "__file__", None) or "?"


def shown(path: str) -> str:
    """Return a path in a form close to what the user wrote."""
    near = os.path.relpath(path)
    return path if near.startswith("..") else near


def error_location(error: BaseException, path: str) -> str:
    """Return the last line of this file in an exception's traceback, as `file.py:12`."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{shown(error.filename)}:{error.lineno}"
    line, traceback = 0, error.__traceback__
    while isinstance(traceback, TracebackType):
        if os.path.realpath(traceback.tb_frame.f_code.co_filename) == os.path.realpath(path):
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return f"{shown(path)}:{line}" if line else shown(path)


def _definition(path: str, name: str, line: int) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    try:
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return None
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name
    ]
    return min(found, key=lambda node: abs(node.lineno - line), default=None)
