"""`relight components`: lists the components that can be submitted."""

import ast
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from relight.base.errors import EXIT_OK, UsageError
from relight.cli.jobs.common import JSON, Page, print_json, read_arguments, switch, table
from relight.job import components
from relight.job.components import arguments, loading
from relight.job.components.arguments import Signature

PAGE = Page(
    "components [flags] [COMPONENT]",
    ("Lists all components, or the flags of one component.",),
    (
        switch("print", "print its source code, as a template for your own component"),
        JSON,
    ),
    (
        "relight components",
        "relight components dist.ddp",
        "relight components --print utils.sh > mine.py",
    ),
)


def main(argv: list[str]) -> int:
    """Run `relight components`.

    Raises:
        RelightError: if the component does not exist.
    """
    parsed = read_arguments(argv, PAGE, 0, 1, "one component")
    if parsed.command:
        name = parsed.command[0]
        function = loading.find(name)
        if parsed.values["print"]:
            print(_source(function))
            return EXIT_OK
        signature = arguments.read_signature(name, function)
        if parsed.values["json"]:
            print_json(_object(signature))
        else:
            print(arguments.usage(signature, "relight submit [flags]"))
        return EXIT_OK
    found = {name: loading.find(name) for name in components.names()}
    signatures = [arguments.read_signature(name, each) for name, each in found.items()]
    for name, each in loading.registered().items():
        with suppress(UsageError):  # a function in the same module that is not a component
            signatures.append(arguments.read_signature(name, each))
    if parsed.values["json"]:
        print_json([_object(signature) for signature in signatures])
        return EXIT_OK
    rows = [(each.name, each.description.partition(". ")[0].rstrip(".")) for each in signatures]
    print("\n".join(table(rows, ("COMPONENT", "WHAT IT DOES"))))
    return EXIT_OK


def _source(function: Callable[..., Any]) -> str:
    """Return a component's source, including the parts of its module that it uses."""
    module = inspect.getmodule(function)
    own = inspect.getsource(function).rstrip("\n")
    text = inspect.getsource(module) if module else own
    bound: dict[str, ast.stmt] = {}
    for each in ast.parse(text).body:
        if isinstance(each, ast.FunctionDef | ast.ClassDef):
            bound[each.name] = each
        elif isinstance(each, ast.Import | ast.ImportFrom):
            bound |= {alias.asname or alias.name.partition(".")[0]: each for alias in each.names}
        else:
            names = [node for node in ast.walk(each) if isinstance(node, ast.Name)]
            bound |= {node.id: each for node in names if isinstance(node.ctx, ast.Store)}
    if function.__name__ not in bound:
        return own
    used = [bound["annotations"]] if "from __future__ import annotations" in text else []
    left = {function.__name__}
    while left:
        found = bound.get(left.pop())
        if found is not None and found not in used:
            used.append(found)
            left |= {node.id for node in ast.walk(found) if isinstance(node, ast.Name)}
    lines, parts = text.splitlines(), list[str]()
    for each in sorted(used, key=lambda each: each.lineno):
        first = min([each.lineno, *(d.lineno for d in getattr(each, "decorator_list", ()))])
        is_definition = isinstance(each, ast.FunctionDef | ast.ClassDef)
        parts += ["", ""] * is_definition + lines[first - 1 : each.end_lineno]
    return "\n".join(parts).strip("\n")


def _object(signature: Signature) -> dict[str, object]:
    return {
        "name": signature.name,
        "description": signature.description,
        "parameters": [
            {
                "name": parameter.name,
                "flags": list(parameter.names),
                "type": str(parameter.kind),
                "required": parameter.required,
                "default": None if parameter.required else parameter.default,
                "help": parameter.help,
            }
            for parameter in signature.parameters
            if parameter.names
        ],
        "rest": signature.rest or None,
    }
