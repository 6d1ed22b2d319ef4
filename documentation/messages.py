"""Finds the messages in relight's source that are raised, returned, or reported as the reason why a
job ended.

In a message, `…` replaces the parts that vary.
"""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from documentation.blocks import ROOT

SOURCE = ROOT / "src" / "relight"
ERRORS = {"UsageError": "2", "MachineError": "4", "InternalError": "70"}
"""The error classes that commands end with, and their exit codes."""
_HEAD = """\
# All messages

Every error with which a command of relight ends before or while it works, from its source, with the
hint that follows it. `…` replaces a name or a number. A job whose *workers* failed is in the
[failure guide](docs/failure-guide.md).

"""


def text_of(node: ast.expr | None) -> str:
    """Return the text of a string expression, with `…` for inserted values, or an empty string."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(
                text_of(part) if isinstance(part, ast.Constant) else "…" for part in parts
            )
        case ast.BinOp(left=left, right=right):
            return text_of(left) + text_of(right)
        case ast.IfExp(body=body, orelse=orelse):
            return " or ".join(filter(None, (text_of(body), text_of(orelse))))
        case ast.Name() | ast.Call() | ast.Attribute():
            return "…"
    return ""


def raised(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the exit code, message and hint of each error that a module raises."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(func=ast.Name(id=name), args=[message, *_], keywords=named):
                if name in ERRORS:
                    hints = [text_of(word.value) for word in named if word.arg == "hint"]
                    yield ERRORS[name], text_of(message), "".join(hints)


def texts_of(path: Path, names: Iterable[str]) -> Iterator[str]:
    """Yield the strings in functions, assignments and calls with these names, except docstrings."""
    wanted = set(names)
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.FunctionDef(name=name, body=body) if name in wanted:
                first = body[0]
                if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                    body = body[1:]
                yield from _within(body)
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in wanted:
                yield from _within([value])
            case ast.Call(func=ast.Name(id=name)) if name in wanted:
                yield from _within([*node.args, *(word.value for word in node.keywords)])


def _within(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant | ast.JoinedStr):
            yield text_of(node)
        else:
            yield from _within(ast.iter_child_nodes(node))


def is_words(text: str) -> bool:
    """Return whether text has at least two words, which makes it meaningful on its own."""
    return sum(word.strip("…:;,.()").isalpha() for word in text.split()) >= 2


def page() -> str:
    """Return a page with all errors, grouped by the part of relight that raises them."""
    parts: dict[str, dict[tuple[str, str], str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for code, message, hint in raised(path):
            if is_words(message):
                parts.setdefault(part, {}).setdefault((code, message), hint)
    lines = []
    for part, found in parts.items():
        lines += [f"## {part}", "", "| message | what to do | exit code |", "|---|---|---|"]
        lines += [
            f"| {_cell(message)} | {_cell(hint)} | {code} |"
            for (code, message), hint in found.items()
        ]
        lines.append("")
    return _HEAD + "\n".join(lines)


def _cell(text: str) -> str:
    for character in "\\`*_[]<|":
        text = text.replace(character, f"\\{character}" if character != "<" else "&lt;")
    return " ".join(text.split())
