"""`relight tracker`: shows job records, like `torchx tracker`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from relight.base import plugins
from relight.base import trackers as names
from relight.base.errors import EXIT_OK, MachineError, RelightError, UsageError
from relight.base.fields import printable
from relight.base.text import did_you_mean
from relight.base.values import parse_trackers
from relight.cli.jobs.common import JSON, Page, print_json, read_arguments, say, switch, table
from relight.flags.arguments import ParsedFlags
from relight.flags.spec import Flag
from relight.job.handles import SESSION
from relight.runner.job_env import trackers
from relight.runner.runner import Runner
from relight.tracker import backends

PAGE = Page(
    "tracker list jobs|metadata|artifacts|lineage [flags] [RUN_ID]",
    (
        "Shows what jobs have recorded with relight.tracker or torchx.tracker. Uses the tracker",
        "given by --tracker, or the first one in [torchx:tracker] in .relightconfig or",
        ".torchxconfig, or in TORCHX_TRACKERS.",
        "",
        "  tracker list jobs                  the runs",
        "  tracker list metadata RUN_ID       the metadata of a run",
        "  tracker list artifacts RUN_ID      the run's artifacts",
        "  tracker list lineage RUN_ID        the run's ancestors and descendants",
        "",
        "RUN_ID is a job's handle, or the last part of it.",
    ),
    (
        Flag("tracker", parse_trackers, (), "NAME[=CONFIG]", "use this tracker, as in relight run"),
        Flag("parent-run-id", str, "", "ID", "jobs: only descendants of this run"),
        Flag("artifact", str, "", "NAME", "artifacts, lineage: only this one"),
        switch("sources-only", "lineage: only its ancestors"),
        switch("descendants-only", "lineage: only its descendants"),
        JSON,
    ),
    (
        "relight tracker list jobs --parent-run-id slurm://torchx/1234",
        "relight tracker list metadata slurm://relight/1235",
        "relight tracker list artifacts 1235 --artifact model",
    ),
)  # fmt: skip
VERBS = ("list",)


def main(argv: list[str]) -> int:
    """Run `relight tracker`.

    Raises:
        UsageError: if an argument is invalid, or no tracker is configured.
        MachineError: if the tracker's data can't be read.
    """
    parsed = read_arguments(argv, PAGE, 0, 3, "list, what and a RUN_ID")
    verb, what, *run = (*parsed.command, "", "")[: max(2, len(parsed.command))]
    if verb not in VERBS or what not in _LISTED:
        known = VERBS if verb not in VERBS else tuple(_LISTED)
        word = verb if verb not in VERBS else what
        said = f"has no subcommand {word}" if word else "needs a subcommand: what to list"
        raise UsageError(
            f"relight tracker {said}", hint=did_you_mean(word, known, f"relight {PAGE.usage}")
        )
    if bool(run) == (what == "jobs"):
        raise UsageError(
            f"relight tracker list {what} {'does not take a' if run else 'needs a'} RUN_ID",
            hint=f"relight {PAGE.usage}",
        )
    name, tracker = _tracker(dict(parsed.values["tracker"]))
    try:
        rows, heads = _LISTED[what](
            tracker, _find_run(name, tracker, run[0]) if run else "", parsed
        )
    except RelightError:
        raise
    except Exception as error:  # raised by a file system, a server or another package
        raise MachineError(f"can't read {name}: {plugins.one_line(error)}") from None
    if parsed.values["json"]:
        print_json([dict(zip(map(str.lower, heads), row, strict=True)) for row in rows])
    elif rows:
        print("\n".join(table([[_text(each) for each in row] for row in rows], heads)))
    else:
        parent = parsed.values["parent_run_id"]
        of = f" of {run[0]}" if run else f" descended from {parent}" if parent else ""
        say(f"{name} has no {what}{of}")
    return EXIT_OK


def _tracker(chosen: Mapping[str, str]) -> tuple[str, Any]:
    """Return the selected tracker, or the first configured tracker if none is selected, and how
    messages refer to it.
    """
    with Runner() as runner:
        variables = names.variables(chosen) or trackers(runner.env, runner.settings)
    configs = backends.names_and_configs(variables)
    for name, config in configs.items():
        found = backends.load(name, config)
        text = str(found)
        return f"tracker {name}" if text == object.__repr__(found) else text, found
    raise UsageError(
        "no tracker is configured",
        hint="--tracker=NAME=CONFIG, or [torchx:tracker] in .relightconfig (docs/trackers.md)",
    )


def _find_run(name: str, tracker: Any, run_id: str) -> str:
    """Return a run's id. The user may give the handle, with relight's or TorchX's session, or only
    the handle's last part.

    Raises:
        UsageError: if the run does not exist, or is ambiguous.
    """
    runs = list(tracker.run_ids())
    theirs = run_id.replace(f"://{SESSION}/", f"://{names.SESSION}/")
    for each in (run_id, theirs):
        if each in runs:
            return each
    ends = [each for each in runs if each.rpartition("/")[2] == run_id]
    if len(ends) == 1:
        return str(ends[0])
    if ends:
        raise UsageError(f"several runs match {run_id}", hint=f"one of {', '.join(ends)}")
    raise UsageError(
        f"{name} has no run {run_id}",
        hint=did_you_mean(run_id, runs, "relight tracker list jobs"),
    )


Listed = tuple[list[tuple[object, ...]], Sequence[str]]


def _jobs(tracker: Any, _: str, parsed: ParsedFlags) -> Listed:
    parent = parsed.values["parent_run_id"]
    runs = tracker.run_ids(parent_run_id=parent) if parent else tracker.run_ids()
    return [(each,) for each in runs], ("JOB ID",)


def _metadata(tracker: Any, run: str, _: ParsedFlags) -> Listed:
    return list(tracker.metadata(run).items()), ("ID", "VALUE")


def _artifacts(tracker: Any, run: str, parsed: ParsedFlags) -> Listed:
    wanted = parsed.values["artifact"]
    found = [(each.name, each.path, each.metadata) for each in tracker.artifacts(run).values()]
    names = [str(name) for name, _, _ in found]
    if wanted and wanted not in names:
        known = f"it has {', '.join(names)}" if names else "it has none"
        raise UsageError(f"{run} has no artifact {wanted}", hint=did_you_mean(wanted, names, known))
    return [row for row in found if wanted in ("", row[0])], ("ARTIFACT", "PATH", "METADATA")


def _lineage(tracker: Any, run: str, parsed: ParsedFlags) -> Listed:
    rows: list[tuple[object, ...]] = []
    if not parsed.values["descendants_only"]:
        found = tracker.sources(run, parsed.values["artifact"] or None)
        rows += [("comes from", each.source_run_id, each.artifact_name) for each in found]
    if not parsed.values["sources_only"]:
        rows += [("led to", each, None) for each in tracker.run_ids(parent_run_id=run)]
    return rows, ("RELATION", "RUN", "ARTIFACT")


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{_text(key)}={_text(each)}" for key, each in value.items())
    return "" if value is None else printable(str(value), lines=False)


_LISTED: dict[str, Callable[[Any, str, ParsedFlags], Listed]] = {
    "jobs": _jobs,
    "metadata": _metadata,
    "artifacts": _artifacts,
    "lineage": _lineage,
}
