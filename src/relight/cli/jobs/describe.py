"""`relight describe`: shows a job as it was submitted."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from relight.base.errors import EXIT_OK, MachineError, RelightError
from relight.base.text import pluralize
from relight.cli.jobs.common import HANDLE, JSON, Page, print_json, read_arguments, shown_time
from relight.job import macros
from relight.runner.runner import Runner

PAGE = Page(
    "describe [flags] JOB",
    (
        "Shows a job's submission: time, origin, command, roles, options, commit. Values whose",
        "names suggest secrets are hidden. JOB is a handle, id or name.",
    ),
    (JSON,),
    (
        f"relight describe {HANDLE}",
        "relight describe --json train-x3bk9qwz | jq .app > app.json",
    ),
)


def main(argv: list[str]) -> int:
    """Run `relight describe`.

    Raises:
        RelightError: if the job does not exist, or its record is corrupt.
    """
    parsed = read_arguments(argv, PAGE, 1, 1, "one job")
    with Runner() as runner:
        found = runner.describe(parsed.command[0])
        images = _has_images(runner, str(found.get("scheduler")))
    if parsed.values["json"]:
        print_json(found)
    else:
        try:
            lines = list(_lines(found, images))
        except (KeyError, TypeError, AttributeError):
            where = f"the record of {found['handle']} is damaged"
            raise MachineError(where, hint="--json prints the raw record") from None
        print("\n".join(lines))
    return EXIT_OK


def _has_images(runner: Runner, scheduler: str) -> bool:
    """Return whether the scheduler uses a job's image."""
    try:
        return runner.scheduler(scheduler).capabilities.images
    except RelightError:  # the scheduler is no longer installed
        return True


def _lines(found: dict[str, Any], images: bool) -> Iterator[str]:
    yield f"{found['handle']} {found['state']}"
    if found["app"] is None:
        for text in (found["message"], found["url"]):
            if text:
                yield f"  {text}"
        if not found["handle"].startswith("run:"):
            yield "  not submitted from this machine"
        return
    git = found["git"]
    if git:
        dirty = ", with changes" if git.get("dirty") else ""
        where = f" on {git['branch']}" if git.get("branch") else ""
        yield f"  commit     {git.get('commit', '')[:12]}{where}{dirty}"
    yield f"  submitted  {shown_time(found['submitted'])} by {found['user']} on {found['host']}"
    yield f"  directory  {found['directory']}"
    yield f"  command    {shlex.join(found['command'])}"
    said = {
        name: value
        for name, value in found["cfg"].items()
        if value is not None and value is not False
    }
    if said:
        yield "  options    " + ", ".join(f"{name}={value}" for name, value in said.items())
    versions = found["versions"]
    torch = versions["packages"].get("torch")
    yield f"  versions   relight {versions['relight']}, python {versions['python']}" + (
        f", torch {torch}" if torch else ""
    )
    known = {"app_id": str(found["app_id"]), "rank0_env": "RELIGHT_RANK0_HOST"}
    known |= {"img_root": found["directory"]} if not images else {}
    for role in found["app"]["roles"]:
        yield ""
        last = role["num_replicas"] - 1
        yield from _role(role, images, {**known, "replica_id": f"0..{last}" if last else "0"})


def _role(role: dict[str, Any], images: bool, macro: Mapping[str, str]) -> Iterator[str]:
    resource = role["resource"]
    yield f"role {role['name']}: {pluralize(role['num_replicas'], 'replica')}"
    if role["min_replicas"] not in (None, role["num_replicas"]):
        yield f"  at least   {role['min_replicas']}"
    if images and role["image"] not in ("", "<NONE>"):
        yield f"  image      {role['image']}"
    args = [macros.text(argument, macro) for argument in role["args"]]
    yield f"  runs       {shlex.join([role['entrypoint'], *args])}"
    sizes = {"cpu": "core", "gpu": "GPU"}
    said = [pluralize(resource[name], word) for name, word in sizes.items() if resource[name] >= 0]
    said += [f"{resource['memMB']} MiB"] if resource["memMB"] >= 0 else []
    if said:
        yield f"  each has   {', '.join(said)}"
    if role["max_retries"]:
        yield f"  retries    {role['max_retries']} ({role['retry_policy']})"
    for mount in role["mounts"]:
        yield f"  mount      {', '.join(f'{name}={value}' for name, value in mount.items())}"
    for name, value in role["env"].items():
        yield f"  {name}={shlex.quote(macros.text(value, macro))}"
