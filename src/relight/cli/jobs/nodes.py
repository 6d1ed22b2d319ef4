"""`relight nodes`: manages the list of nodes with failed hardware, which new jobs exclude
(`--bad-nodes`).
"""

import sys

from relight.base import env
from relight.base.errors import EXIT_OK, MachineError, UsageError
from relight.base.text import did_you_mean
from relight.base.values import BadNodesDirectory
from relight.cli.jobs.common import JSON, Page, print_json, read_arguments, say, table
from relight.flags import site
from relight.health import bad_nodes

VERBS = ("list", "forget")
PAGE = Page(
    "nodes [list|forget] …",
    (
        "Nodes whose hardware has failed are remembered in a shared directory",
        "(relight run --bad-nodes=DIR, or RELIGHT_BAD_NODES); jobs are submitted without them.",
        "",
        "  nodes [list]                     list the nodes that are currently remembered",
        "  nodes forget NODE …              let jobs use these nodes again, such as after a repair",
    ),
    (JSON,),
    ("relight nodes", "relight nodes forget gpu-17"),
    "exit code: 0 even if there is no such node",
)


def main(argv: list[str]) -> int:
    """Run `relight nodes`.

    Raises:
        UsageError: if the verb is unknown, or no directory is configured.
        MachineError: if the directory can't be read, or a record can't be removed.
    """
    parsed = read_arguments(argv, PAGE, 0, 1 << 16, "")
    verb, *names = parsed.command or ("list",)
    as_json = parsed.values["json"]
    if verb not in VERBS:
        hint = did_you_mean(verb, VERBS, f"relight {PAGE.usage}")
        raise UsageError(f"relight nodes has no verb {verb}", hint=hint)
    if (verb == "forget") != bool(names):
        raise UsageError(f"relight nodes {verb} does not take node names; only forget does",
                         hint="relight nodes forget gpu-17")  # fmt: skip
    if verb == "forget" and as_json:
        raise UsageError("relight nodes forget prints no JSON")
    found = env.read()
    place = bad_nodes.directory(found, site.load(found))
    if place is None:
        raise UsageError(
            "no bad-nodes directory is configured",
            hint=f"{bad_nodes.FLAG.variable}=DIR, or bad-nodes in the site's configuration",
        )
    try:
        return _forget(place, names) if verb == "forget" else _list(place, as_json)
    except OSError as error:
        raise MachineError(
            f"can't use {error.filename or place.path}: {error.strerror}",
            hint="the directory must exist; a record can be removed only by its owner, the owner "
            "of the directory, or root",
        ) from None


def _list(place: BadNodesDirectory, as_json: bool) -> int:
    found, notes = bad_nodes.current(place)
    for note in notes:
        say(note)
    if as_json:
        print_json([each._asdict() for each in found])
        return EXIT_OK
    if not found:
        say(f"no node is remembered as bad in {place.path}")
        return EXIT_OK
    rows = [
        (each.name, each.expiry_text(), each.scheduler or "-", each.user, each.job, each.reason)
        for each in found
    ]
    print("\n".join(table(rows, ("NODE", "UNTIL", "SCHEDULER", "USER", "JOB", "REASON"))))
    sys.stdout.flush()
    return EXIT_OK


def _forget(place: BadNodesDirectory, names: list[str]) -> int:
    removed = bad_nodes.forget(place, names)
    for name in dict.fromkeys(names):
        say(f"forgot {name}" if name in removed else f"{name} was not recorded as bad")
    return EXIT_OK
