"""Collects relight's messages from its source code.

    python -m tests.messages.collect      # writes tests/messages/messages.txt

When a message is shown, `{name}` is replaced with the value of that expression.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src" / "relight"
RECORDED = HERE / "messages.txt"
ERRORS = {"UsageError", "MachineError", "InternalError", "WorkersFailedError"}
SPEAKERS = {"say", "say_once", "say_with_traceback", "tell", "note", "warn", "remark"}
TEXTS = ("events/event_text.py", "core/diagnosis/failure_text.py", "core/diagnosis/hang_text.py",
         "core/group/group_messages.py", "core/group/restart_budget.py")  # fmt: skip
"""Modules in which every string is shown to users."""


def template(node: ast.expr) -> str:
    """Return a message with placeholders for its expressions and ` | ` between alternatives."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(template, parts))
        case ast.FormattedValue(value=value):
            return "{" + ast.unparse(value) + "}"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return template(left) + template(right)
        case ast.IfExp(body=body, orelse=other):
            return " | ".join(filter(None, (template(body), template(other))))
        case ast.Constant():
            return ""
    return "{" + ast.unparse(node) + "}"


def is_words(text: str) -> bool:
    """Return whether text is meaningful on its own."""
    return sum(word.strip("…:;,.()'`").isalpha() for word in text.split()) >= 2


@cache
def messages(path: Path) -> tuple[str, ...]:
    """Return the messages of a module in its order, each with the hint that follows it."""
    return tuple(_messages(path))


def _messages(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    docs = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    all_strings = str(path.relative_to(SOURCE)) in TEXTS
    inner = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in ERRORS | SPEAKERS:
                inner |= {id(part) for part in ast.walk(node)}
                text = template(node.args[0])
                hints = [template(word.value) for word in node.keywords if word.arg == "hint"]
                if is_words(text):
                    yield "\n  hint: ".join([text, *filter(None, hints)])
        if isinstance(node, ast.JoinedStr):
            inner |= {id(part) for part in node.values}
        if (
            all_strings
            and isinstance(node, ast.Constant | ast.JoinedStr)
            and id(node) not in inner | docs
            and is_words(text := template(node))
        ):
            yield text


def text() -> str:
    """Return all messages, grouped by module."""
    parts = []
    for path in sorted(SOURCE.rglob("*.py")):
        found = list(dict.fromkeys(messages(path)))
        if found:
            parts.append("\n".join([f"# {path.relative_to(SOURCE)}", *found]))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    RECORDED.write_text(text())
