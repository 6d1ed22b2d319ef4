"""`relight status`: shows a job's state or, without a job, lists the agents on this machine."""

from typing import Any

from relight.base.env import Environment
from relight.base.errors import EXIT_OK, UsageError
from relight.base.fields import printable
from relight.base.text import format_duration, pluralize
from relight.base.values import Endpoint, PageAddress, parse_page
from relight.cli.jobs.common import (
    HANDLE,
    JSON,
    Page,
    print_json,
    read_arguments,
    say,
    status_object,
    switch,
    table,
)
from relight.core.status import preload_status
from relight.core.status.goodput import format_account, is_worth_telling
from relight.flags.arguments import parse
from relight.flags.spec import Flag
from relight.inspect.gpus import Gpus
from relight.inspect.top_rows import gpus_line, number_lines
from relight.job import handles
from relight.processes import agent_processes
from relight.processes.agent_processes import Running, arguments
from relight.runner import agent_reports, event_log
from relight.runner.lookup import run_jobs
from relight.runner.runner import Runner

PAGE = Page(
    "status [flags] [JOB]",
    (
        "Shows the state of a job and its replicas. JOB is its handle, id or name; for relight run",
        "on this machine also the pid of its agent.",
        "Without JOB: your agents (relight run) on this machine, with the memory used by each and",
        "its workers. PRELOADED is the share of preloaded modules. With --watch-slow-ranks,",
        "stragglers are named if an agent of the job runs on this machine. --web serves a status",
        "page and metrics for a job of relight run until ctrl-C.",
    ),
    (
        Flag("roles", str, "", "A,B", "only these roles"),
        switch("web", "serve a status page for the job and print its address"),
        Flag(
            "listen",
            parse_page,
            PageAddress(Endpoint("127.0.0.1", 0)),
            "[HOST:]PORT[,public]",
            "address of the page; port 0 means any free port; public: no token is needed to view "
            "it",
        ),
        switch("until-end", "stop serving when the job ends"),
        JSON,
    ),
    (
        "relight status",
        f"relight status {HANDLE}",
        "relight status --json train-x3bk9qwz | jq -r .state",
        "relight status --web --listen 8080 train",
    ),
    "exit code: 0 if the job exists, in any state; 2 if it does not",
)


def main(argv: list[str]) -> int:
    """Run `relight status`.

    Raises:
        RelightError: if the job does not exist.
    """
    parsed = read_arguments(argv, PAGE, 0, 1, "one job")
    if parsed.values["web"] or parsed.given & {"listen", "until-end"}:
        from relight.cli.inspect import status_page

        return status_page.main(parsed)
    if not parsed.command:
        if parsed.values["roles"]:
            raise UsageError("--roles needs a job", hint=f"relight {PAGE.usage}")
        return _print_agents(as_json=parsed.values["json"])
    with Runner() as runner:
        handle = runner.find(parsed.command[0])
        found = runner.status(handle)
        if handle.scheduler != handles.RUN:
            logs = event_log.agents(handle, found)
            found = agent_reports.with_reports(handle, found)
            found = found._replace(
                account=found.account or event_log.account(logs, is_over=found.state.is_over),
                replicas=event_log.with_lost(logs, found.replicas),
            )
        if handle.role:
            part = set(runner.replicas(handle))
            replicas = tuple(each for each in found.replicas if (each.role, each.replica) in part)
            found = found._replace(replicas=replicas)
        wanted = [role for role in parsed.values["roles"].split(",") if role]
        if wanted:
            known = {role for role, _ in runner.replicas(handle._replace(role="", replicas=()))}
            for role in wanted:
                if role not in known:
                    raise UsageError(
                        f"{handle} has no role {role}", hint=f"it has {', '.join(sorted(known))}"
                    )
            replicas = tuple(each for each in found.replicas if each.role in wanted)
            found = found._replace(replicas=replicas)
    slow_ranks = [] if found.state.is_over else _slow_ranks(handle)
    if parsed.values["json"]:
        print_json({**status_object(handle, found), "slow_ranks": slow_ranks})
        return EXIT_OK
    lines = [*filter(None, [found.message]), *slow_ranks]
    if found.restarts:
        lines.append(f"restarted {pluralize(found.restarts, 'time')}")
    lines += number_lines(found)
    if found.account is not None and is_worth_telling(found.account):
        lines += format_account(found.account)
    if found.preload is not None:
        lines += map(printable, preload_status.describe(found.preload))
    if found.url:
        lines.append(f"{'logs' if found.url.startswith('file:') else 'URL'}: {found.url}")
    print(f"{handle} {found.state.name}", *(f"  {line}" for line in lines), sep="\n")
    by_topology = any(each.topology for each in found.replicas)
    rows = [
        (
            handles.shown_replica(handle.scheduler, each.role, each.replica),
            each.state.name,
            "" if each.exitcode is None else str(each.exitcode),
            each.host,
            *([each.topology] if by_topology else []),
            each.error or printable(each.last_line),
        )
        for each in found.replicas
    ]
    if rows:
        last = "LAST LINE" if any(each.last_line for each in found.replicas) else "ERROR"
        where = ("HOST", "TOPOLOGY") if by_topology else ("HOST",)
        print()
        print("\n".join(table(rows, ("REPLICA", "STATE", "EXIT", *where, last))))
    is_here = handle.scheduler in (handles.RUN, "local") and not found.state.is_over
    if is_here and (text := gpus_line(Gpus().look())):
        print(f"\n{text}")
    return EXIT_OK


def _print_agents(*, as_json: bool) -> int:
    found = [
        agent._replace(run_id=agent.run_id or _requested_run_id(agent))
        for agent in agent_processes.running()
    ]
    names = _names() if found else {}
    if as_json:
        print_json([{**_as_object(agent), "name": names.get(agent.pid)} for agent in found])
        return EXIT_OK
    if not found:
        say("you have no agents (relight run) on this machine")
        return EXIT_OK
    rows = [
        (
            str(agent.pid),
            names.get(agent.pid, ""),
            _line(agent.run_id),
            str(len(agent.workers)) if agent.workers else "none",
            format_duration(agent.seconds),
            _mib(agent.memory),
            _mib(agent.warm_memory) if agent.warm_pid else "",
        )
        for agent in found
    ]
    heads = ("PID", "NAME", "RUN ID", "WORKERS", "SINCE", "MEMORY", "PRELOADED")
    print("\n".join(table(rows, heads)))
    for agent in found:
        if agent.slow_ranks:
            print(f"\n{agent.pid}: {_line(agent.slow_ranks)}")
    return EXIT_OK


def _names() -> dict[int, str]:
    """Return the agents' job names, keyed by pid."""
    jobs = run_jobs()
    return {} if jobs is None else {job.pid: job.name for job in jobs.running()}


def _slow_ranks(job: handles.Handle) -> list[str]:
    """Return the job's slow ranks, as reported by the agents on this machine."""
    try:
        running = agent_processes.running()
    except UsageError:  # the system does not show processes
        return []
    own = [
        each
        for each in running
        if each.job == str(job)
        or (job.scheduler == handles.RUN and job.app_id.endswith(f"-{each.pid}"))
    ]
    return sorted({_line(each.slow_ranks) for each in own} - {""})


def _line(text: str) -> str:
    return printable(text).replace("\n", " ")


def _requested_run_id(agent: Running) -> str:
    """Return the `--rdzv-id` on the command line of an agent whose workers have not started yet."""
    try:
        parsed = parse(arguments(agent.command) or [], Environment({}))
    except UsageError:
        return ""
    return str(parsed.values["rdzv_id"]) if "rdzv-id" in parsed.given else ""


def _as_object(agent: Running) -> dict[str, Any]:
    warm = {"pid": agent.warm_pid, "memory": agent.warm_memory} if agent.warm_pid else None
    fields = agent._asdict()
    del fields["warm_pid"], fields["warm_memory"]
    return {**fields, "seconds": round(agent.seconds, 1), "warm_spawner": warm}


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
