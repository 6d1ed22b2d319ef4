"""`relight status`: how a job is."""

from relight.cli.jobs import HANDLE, HELP, JSON, Page, read, show, status_object, table
from relight.errors import EXIT_OK, UsageError, many
from relight.job import handles
from relight.job.runner import Runner
from relight.spec import Flag

PAGE = Page(
    "status [flags] JOB",
    ("Says how a job is, and each of its replicas. JOB is its handle, or its id alone.",),
    (
        Flag("roles", str, "", "A,B", "only these roles", from_env=False),
        JSON,
        HELP,
    ),
    (
        f"relight status {HANDLE}",
        "relight status --json train-x3bk9qwz | jq -r .state",
    ),
    "exit code: 0 there is such a job, however it is; 2 there is none",
)


def main(argv: list[str]) -> int:
    """Run `relight status`.

    Raises:
        RelightError: there is no such job.
    """
    parsed = read(argv, PAGE, 1, 1, "one job")
    if parsed is None:
        return EXIT_OK
    with Runner() as runner:
        handle = handles.parse(parsed.command[0])
        found = runner.status(handle)
        if handle.role:
            part = set(runner.replicas(handle))
            found = found._replace(
                replicas=tuple(e for e in found.replicas if (e.role, e.replica) in part)
            )
        wanted = [role for role in parsed.values["roles"].split(",") if role]
        if wanted:
            known = {role for role, _ in runner.replicas(handle._replace(role="", replicas=()))}
            for role in wanted:
                if role not in known:
                    raise UsageError(f"{handle} has no role {role}", hint=f"it has {_list(known)}")
            replicas = tuple(each for each in found.replicas if each.role in wanted)
            found = found._replace(replicas=replicas)
    if parsed.values["json"]:
        show(status_object(handle, found))
        return EXIT_OK
    print(f"{handle} {found.state.name}")
    if found.message:
        print(f"  {found.message}")
    if found.restarts:
        print(f"  started again {many(found.restarts, 'time')}")
    if found.url:
        print(f"  {found.url}")
    rows = [
        (
            f"{each.role}/{each.replica}",
            each.state.name,
            "" if each.exitcode is None else str(each.exitcode),
            each.host,
            each.error,
        )
        for each in found.replicas
    ]
    if rows:
        print()
        print("\n".join(table(rows, ("REPLICA", "STATE", "EXIT", "HOST", "ERROR"))))
    return EXIT_OK


def _list(names: set[str]) -> str:
    return ", ".join(sorted(names))
