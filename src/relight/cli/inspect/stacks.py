"""`relight stacks`: shows the stacks of a job's ranks, taken from outside the processes."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from relight.base.errors import EXIT_MACHINE, EXIT_OK
from relight.base.fields import printable
from relight.base.values import whole
from relight.cli.inspect import ranks
from relight.cli.jobs.common import HANDLE, JSON, Page, print_json, read_arguments, switch
from relight.core.diagnosis import stack_text
from relight.core.diagnosis.stack_text import ProcessStack, RankGroup, ThreadStack
from relight.core.status import node_stacks
from relight.job import handles
from relight.processes.running_jobs import JobDirectory
from relight.runner.lookup import run_jobs
from relight.runner.runner import Runner
from relight.stacks import py_spy, rank_processes
from relight.stacks.dump import take, take_all

PAGE = Page(
    "stacks [flags] PID|JOB",
    (
        "Shows where the ranks of a job are: one line per place, outliers first, then the Python",
        "stack of each group. Processes may be stopped, deadlocked or blocked: their memory is",
        "read from outside, without stopping them.",
        "PID is an agent (relight run) or any Python process. JOB is a handle, an id or a name:",
        "for relight run the ranks of all nodes, for other jobs those on this machine.",
        "--all, --native and --json are limited to this machine. --native adds C and C++",
        "functions, using py-spy, which stops each process for a moment.",
    ),
    (
        switch("all", "the stacks of all ranks and all their threads"),
        switch("native", "include C and C++ functions (needs py-spy)"),
        JSON,
    ),
    (
        "relight stacks 4711                                (relight status shows the pids)",
        f"relight stacks {HANDLE}",
        "relight stacks --json 4711 | jq -r '.groups[].text'",
    ),
    "exit code: 0 if a stack was read; 2 no such job or process; 4 no stack could be read",
)  # fmt: skip

_AT_ONCE = 8
_ALONE = -1
"""The rank number used for a process that is not a rank."""
Taken = Mapping[int, ProcessStack | str]
Naming = Callable[[Sequence[int]], str]
"""Formats the names of ranks."""


def main(argv: list[str]) -> int:
    """Run `relight stacks`.

    Raises:
        RelightError: if the job or process does not exist on this machine, or can't be read.
    """
    parsed = read_arguments(argv, PAGE, 1, 1, "the pid of a process, or a job")
    target, values = parsed.command[0], parsed.values
    process = whole(target)
    asks_agents = process is None and not (values["all"] or values["native"] or values["json"])
    if asks_agents:
        text, is_taken = _agent_stacks(target, nodes=2)
        if text:
            print(text)
            return EXIT_OK if is_taken else EXIT_MACHINE
    pids = ranks.resolve(target, "stacks")
    if not pids and process is not None:
        pids = {_ALONE: rank_processes.find_python(process)}
    found: Taken = {_ALONE: take(pids[_ALONE])} if _ALONE in pids else take_all(pids)
    if asks_agents and not _is_any_taken(found):
        # With ptrace_scope=1, only a process's ancestors may read it, and the agent is one.
        text, is_taken = _agent_stacks(target, nodes=1)
        if is_taken:
            print(text)
            return EXIT_OK
    if values["native"]:
        if not py_spy.is_installed():
            print("relight: py-spy is not on PATH; showing Python code only",
                  file=sys.stderr)  # fmt: skip
        found = _with_native(found)
    if values["json"]:
        print_json(_as_object(found, pids))
    else:
        print(_text(found, pids, every=values["all"]))
    return EXIT_OK if _is_any_taken(found) else EXIT_MACHINE


def job_stacks(jobs: JobDirectory, job: handles.Handle) -> str:
    """Return the output of `relight stacks JOB` for a job started with `relight run`. The output
    covers the ranks on all nodes or, if the job's agent does not respond, only the ranks on this
    machine.

    Args:
        jobs: the user's jobs.
        job: the job's handle.

    Raises:
        RelightError: if the job does not exist on this machine.
    """
    text, _ = _node_stacks(jobs, job.app_id)
    if text:
        return text
    pids = ranks.resolve(str(job), "stacks")
    return _text(take_all(pids), pids, every=False)


def _is_any_taken(found: Taken) -> bool:
    return any(isinstance(each, ProcessStack) for each in found.values())


def _agent_stacks(target: str, *, nodes: int) -> tuple[str, bool]:
    """Return the result of `_node_stacks` for a job that has at least this number of nodes. For
    other jobs, the text is empty.
    """
    with Runner() as runner:
        handle = runner.find(target)
    if handle.scheduler != handles.RUN or handle.role:
        return "", False
    jobs = run_jobs()
    own = None if jobs is None else jobs.ask(handle.app_id)
    if jobs is None or own is None or own.nodes < nodes:
        return "", False
    return _node_stacks(jobs, handle.app_id)


def _node_stacks(jobs: JobDirectory, job: str) -> tuple[str, bool]:
    """Return the stacks of the ranks on all nodes, and whether any stack was captured. The text is
    empty if no agent responds.
    """
    nodes = jobs.stacks(job)
    own = jobs.ask(job) if nodes else None
    if own is None:
        return "", False
    by_rank = node_stacks.by_rank(nodes)
    found: Taken = {rank: each.stack for rank, each in by_rank.items()}
    is_one = len(nodes) == 1
    named = stack_text.few_or_many if is_one else partial(node_stacks.named, by_rank)
    lines = list(_report(found, named))
    if not is_one or len(found) < own.world_size:
        told = node_stacks.lines_of_nodes(nodes, by_rank, own.nodes, own.world_size)
        lines += ["", *told] if lines else told
    text = "\n".join(printable(line, lines=False) for line in lines)
    return text, _is_any_taken(found)


def _text(found: Taken, pids: Mapping[int, int], *, every: bool) -> str:
    lines = _report(found, _naming(pids), every=every)
    return "\n".join(printable(line, lines=False) for line in lines)


def _with_native(found: Taken) -> Taken:
    """Add C and C++ frames to the stacks. The processes are read in parallel, because reading each
    one takes seconds.
    """
    stacks = {rank: stack for rank, stack in found.items() if isinstance(stack, ProcessStack)}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        native = pool.map(py_spy.native, [stack.pid for stack in stacks.values()])
        for (rank, stack), functions in zip(list(stacks.items()), native, strict=True):
            threads = (
                thread._replace(native=functions.get(thread.native_id, ()))
                for thread in stack.threads
            )
            stacks[rank] = stack._replace(threads=tuple(threads))
    return {**found, **stacks}


def _report(found: Taken, named: Naming, *, every: bool = False) -> Iterator[str]:
    groups = stack_text.groups(found)
    yield from stack_text.render(groups, named)
    for group in () if every else groups[: stack_text.MAX_LINES]:
        yield from _format_group(group, found, named)
    if every:
        for rank in sorted(found):
            yield from _format_rank(named([rank]), found[rank])


def _naming(pids: Mapping[int, int]) -> Naming:
    if _ALONE in pids:
        return lambda _: f"process {pids[_ALONE]}"
    return stack_text.few_or_many


def _format_group(group: RankGroup, found: Taken, named: Naming) -> Iterator[str]:
    """Yield the lines for a group of identical stacks, taken from its first rank."""
    rank = group.ranks[0]
    stack = found[rank]
    if isinstance(stack, str) or not group.has_stack:
        return
    thread = stack_text.main_thread(stack)
    if thread is None:
        return
    yield ""
    which = f", here {named([rank])}" if len(group.ranks) > 1 else ""
    pid = "" if rank == _ALONE else f", pid {stack.pid}"
    yield f"{named(group.ranks)}{which}{pid}:"
    yield from _frames(thread)


def _format_rank(name: str, stack: ProcessStack | str) -> Iterator[str]:
    """Yield the lines for all threads of a rank."""
    if isinstance(stack, str):
        return
    for thread in stack.threads:
        yield ""
        kind = "main thread" if thread.is_main else "thread"
        called = f" {thread.name}" if thread.name else ""
        waits = f", in {thread.waits_in}" if thread.waits_in else ""
        yield f"{name}, pid {stack.pid}, {kind} {thread.native_id or '?'}{called}{waits}:"
        yield from _frames(thread)


def _frames(thread: ThreadStack) -> list[str]:
    lines = [f"  {line}" for line in stack_text.traceback_lines(thread.frames)]
    lines += [f"  {line}" for line in stack_text.native_lines(thread.native)]
    return lines or ["  no Python code"]


def _as_object(found: Taken, pids: Mapping[int, int]) -> dict[str, Any]:
    def rank_of(number: int) -> int | None:
        return None if number == _ALONE else number

    named = _naming(pids)
    processes = []
    for rank, stack in sorted(found.items()):
        process: dict[str, Any] = {"rank": rank_of(rank), "pid": pids[rank]}
        if isinstance(stack, str):
            process |= {"state": None, "error": stack, "threads": []}
        else:
            threads = [
                {**thread._asdict(), "frames": [frame._asdict() for frame in thread.frames]}
                for thread in stack.threads
            ]
            process |= {"state": stack.state, "error": None, "threads": threads}
        processes.append(process)
    groups = [
        {"ranks": [rank_of(rank) for rank in group.ranks], "text": stack_text.line(group, named)}
        for group in stack_text.groups(found)
    ]
    return {"groups": groups, "processes": processes}
