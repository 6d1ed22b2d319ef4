"""`relight schedulers`: lists the schedulers and their options."""

from collections.abc import Callable, Iterator
from typing import Any

from relight.base.errors import EXIT_OK, RelightError
from relight.cli.jobs.common import JSON, Page, print_json, read_arguments, table
from relight.runner.plugin_guard import guarded
from relight.schedulers import registry
from relight.schedulers.api import Option, Scheduler

PAGE = Page(
    "schedulers [flags] [SCHEDULER]",
    ("Lists the schedulers, or the options of one: -cfg NAME=VALUE,NAME2=A;B of relight submit.",),
    (JSON,),
    (
        "relight schedulers",
        "relight schedulers slurm",
        "relight schedulers --json | jq '.[].options[].name'",
    ),
)


def main(argv: list[str]) -> int:
    """Run `relight schedulers`.

    Raises:
        RelightError: if the scheduler does not exist.
    """
    parsed = read_arguments(argv, PAGE, 0, 1, "one scheduler")
    if parsed.command:
        name = parsed.command[0]
        found = guarded(name, registry.find(name))
        if parsed.values["json"]:
            print_json(_object(name, found))
        else:
            print("\n".join(option_lines(found)))
        return EXIT_OK
    if parsed.values["json"]:
        print_json(list(_each(_object, lambda name, why: {"name": name, "error": why})))
        return EXIT_OK
    rows = _each(_row, lambda name, why: (name, why, ""))
    print("\n".join(table(rows, ("SCHEDULER", "HERE", "CAN"))))
    return EXIT_OK


def _each(
    shown: Callable[[str, Scheduler], Any], unusable: Callable[[str, str], Any]
) -> Iterator[Any]:
    """Yield an entry for each scheduler. If a scheduler from another package fails to load, its
    entry contains the error instead.
    """
    for name in registry.names():
        try:
            yield shown(name, guarded(name, registry.find(name)))
        except (RelightError, ImportError) as error:
            yield unusable(name, str(error))


def _row(name: str, scheduler: Scheduler) -> tuple[str, str, str]:
    able = [word for word, value in scheduler.capabilities._asdict().items() if value]
    return name, _usable(scheduler), ", ".join(able)


def _usable(scheduler: Scheduler) -> str:
    try:
        affinity = scheduler.affinity()
    except RelightError:  # may be raised by a scheduler from another package
        return "no"
    return "no" if affinity <= 0 else "inside" if affinity >= 50 else "yes"


def _object(name: str, scheduler: Scheduler) -> dict[str, Any]:
    return {
        "name": name,
        "usable": _usable(scheduler) != "no",
        "capabilities": scheduler.capabilities._asdict(),
        "options": [
            {**option._asdict(), "kind": option.kind.__name__, "choices": list(option.choices)}
            for option in scheduler.options
        ],
    }


def option_lines(scheduler: Scheduler) -> list[str]:
    """Return a table of a scheduler's options: names, types, defaults and descriptions."""
    rows = [(option.name, option.kind.__name__, _default(option), _meaning(option))
            for option in scheduler.options]  # fmt: skip
    return table(rows, ("OPTION", "TYPE", "DEFAULT", "MEANING"))


def _meaning(option: Option) -> str:
    values = f" ({', '.join(option.choices)})" if option.choices else ""
    return f"{option.help}{values}"


def _default(option: Option) -> str:
    if option.required:
        return "required"
    return "" if option.default is None else str(option.default)
