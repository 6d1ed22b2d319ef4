"""What the events and their fields mean: docs/events.md is made from this and from
events/event_types.py.

relight events --schema > docs/events.md
"""

from types import UnionType
from typing import Any

from relight.events import event_types

FIELDS = {
    "after_s": "for how long it was there before it was noticed, in seconds",
    "age_s": "seconds since the process was made",
    "after": "its state now",
    "asked": "whether the user named the modules; false with `auto`",
    "before": "its state before",
    "cause": "why, in words",
    "StateChanged.cause": "why, in words; or what it took (a message, an event, or Tick for a "
    "deadline), and the reason that came with it",
    "core": "which part, see below",
    "during": "the input that led to it",
    "effects": "what was decided: messages to nodes, as they go over the network, and nodes that "
    "are dropped",
    "error": "the exception, and its place in relight's code",
    "exit_code": "exit code of the agent, from 0 to 255",
    "exitcode": "exit code of the process; below 0, the number of the signal that ended it",
    "failed_host": "name of the node; empty if there was no failure, or its node is not known",
    "first": "when a worker has called progress() first, on the clock of `t`",
    "frozen": "whether they are frozen, or run again",
    "generation": "number of the generation, from 0",
    "group_rank": "number of this node in the generation, from 0",
    "host": "name of this node",
    "hosts": "names of the nodes",
    "input": "what it took: a message with its node, a node that was lost, or a tick",
    "job": "id of the job; empty in a job of one node",
    "StateChanged.job": "id of the job whose group it is; empty in a job of one node, and if it is "
    "no group",
    "last": "when a worker has called progress() last, on the clock of `t`",
    "left_out": "packages of workers that are not installed, with `auto`; separated by spaces",
    "FailureNoticed.local_rank": "number of the worker on its node, from 0; -1 for all of them",
    "local_rank": "number of the worker on its node, from 0",
    "master_addr": "address of the workers' store",
    "master_port": "port of the workers' store",
    "mib": "memory of the process in MiB",
    "module": "name of the module",
    "modules": "how many modules are imported",
    "nodes": "number of nodes of the generation",
    "now": "the coordinator's monotonic clock, in seconds",
    "number": "number of the signal",
    "of": "how many restarts are allowed",
    "origin": "a random text, part of the ids of the generations that are formed here",
    "pid": "process id",
    "PreloadStarted.modules": "names of the modules, separated by commas",
    "name": "short name of the program, as ps shows it",
    "user": "name of the user whose process it is",
    "refused": "whether SIGKILL was refused, as it is another user's process",
    "rank": "number of the worker in the job, from 0",
    "ranks": "numbers of the workers in the job; none: no rank is slow any more",
    "reason": "why, in words",
    "HealthChecked.reason": "why the node leaves the job; empty if it passed",
    "WorkersWarm.reason": "why they are not warm; empty if they are",
    "restart": "how many restarts after failures there were so far",
    "saved": "when that was, in seconds since 1970 by the clock of the file system",
    "seconds": "how long it took, in seconds",
    "PreloadWithout.seconds": "how long the import took until it failed, in this job or in the one "
    "that learned it, in seconds",
    "settings": "what the user asked for: numbers of nodes, restarts, times in seconds",
    "since": "since when, in seconds since 1970",
    "slower": "by which share of their time the slowest node's ranks are slower (0.2: a fifth)",
    "step": "highest step that a worker has reported",
    "text": "the same in words",
    "uses": "how many jobs have used it before",
    "waited": "share of the time in which the others wait for the slowest node, from 0 to 1",
    "warm": "whether the workers are forked from a process that has imported modules",
    "workers": "how many connections the store has: a worker has one, or later more",
    "world_size": "number of workers of the generation",
}
"""What a field means, with its unit, by its name; `Event.name` where it differs in one event."""
STATES = {
    "supervision": {
        "about": "the workers of a generation on this node",
        "running": "none has failed or was asked to stop",
        "saving": "they were told to save a checkpoint and leave",
        "stopping": "they were asked to end, and have the grace time",
        "killing": "they were sent SIGKILL",
        "ended": "all have exited, or can't be killed",
    },
    "link": {
        "about": "from this node to the coordinator, in a job of several nodes",
        "seeking": "no coordinator is known",
        "joining": "one has answered, and has not said yet that workers may run here",
        "connected": "it has said so",
        "hosting": "this process is the coordinator",
        "over": "this node has left the job, or gives up",
    },
    "membership": {
        "about": "the nodes of a job, in the process that coordinates it",
        "gathering": "no workers run, and nodes join",
        "running": "a generation runs",
        "stopping": "the workers of all nodes are stopped",
        "recovering": "the coordinator is new, and nodes tell what runs",
        "ended": "the job has ended, and the nodes are told",
    },
    "agreement": {
        "about": "of the nodes of a job, on when their workers save a checkpoint and leave",
        "idle": "there is nothing to agree on, or they have agreed",
        "counting": "they tell how often their workers have called `should_checkpoint`",
    },
    "reachability": {
        "about": "between the nodes of a job, with --health-check=network",
        "idle": "nothing is known of the nodes of the next generation",
        "trying": "each node connects to the others",
        "known": "it is known which nodes reach each other",
    },
    "election": {
        "about": "of the coordinator, on a host of an endpoint that lists several",
        "follower": "a coordinator was seen lately, or the process has just begun",
        "candidate": "none was seen, and it asks for votes",
        "coordinator": "a majority has voted for this host",
    },
    "candidacy": {
        "about": "for a register (etcd, a file, a plug-in), which names the coordinator",
        "waiting": "the register does not name this process, or that is no longer certain",
        "holding": "it names this process",
    },
    "activity": {
        "about": "of the workers of a generation on this node, with --hang-timeout",
        "active": "one of them does something",
        "quiet": "none has done anything for too long",
    },
}
"""The states of `StateChanged`, by core; `about` is what the core decides on."""
_KINDS = {
    "bool": "true or false", "int": "integer", "float": "number", "str": "text", "tuple": "list",
    "list": "list", "dict": "object",
}  # fmt: skip
_HEAD = f"""\
# The event log

`relight events JOB` shows what has happened in a job: [see the jobs on this machine](watching.md).
The same lines are in `events.jsonl` in the run directory (with `--log-dir`, `--redirects` or
`--tee`), and go to stderr with `--event-log-handler=console`. Each line is one JSON object, with

| key | | |
|---|---|---|
| `v` | integer | version of this format, now {event_types.SCHEMA}; it rises when a field or an event is removed, or means something else |
| `n` | integer | number of the event in the log of this agent, from 1 |
| `t` | number | the machine's monotonic clock, in seconds |
| `time` | number | the time, in seconds since 1970 |
| `event` | text | which event it is |

and the fields of the event. A reader should ignore events and keys that it does not know. Of a
submitted job, `relight events` begins each line with `log`, the name of the agent's run directory,
`host`, and `node`: the agent's `group_rank` in the generation that its log has reached. Until that
is known, `host` is empty and `node` is -1.

## A handler of your own

`--event-log-handler=NAME` also takes a plug-in: an entry point of the group `relight.events`, in a
package that is installed for the Python that runs relight.

```toml
[project.entry-points."relight.events"]
ours = "our_package:handle"
```

```python
def handle(event):  # a dict, as in the log
    if event["event"] == "WorkerExited":
        ...
```

It may also be a `logging.Handler`, or a class of one: then it gets a record with each line. It runs
in a process of its own, which starts once the job has run for a second and gets what happened before
as well. The job does not wait for it: if it raises, its first error is told; if it can't keep up, up
to 1 MiB of events wait for it; at the end of the job it has 2 s for the last ones.
"""  # noqa: E501


def kinds() -> dict[str, Any]:
    """Return the events that are written, by name."""
    return {
        kind.__name__: kind for kind in event_types.Event.__args__ if kind is not event_types.Tick
    }


def meaning(event: str, field: str) -> str:
    """Return what a field means.

    Raises:
        KeyError: nothing says so.
    """
    return FIELDS.get(f"{event}.{field}") or FIELDS[field]


def page() -> str:
    """Return docs/events.md."""
    parts = [_HEAD]
    for name, kind in kinds().items():
        about = " ".join((kind.__doc__ or "").split())
        rows = [
            f"| `{field}` | {_kind_of(annotation)} | {meaning(name, field)} |"
            for field, annotation in kind.__annotations__.items()
        ]
        parts.append(
            "\n".join([f"## {name}", "", about, "", "| field | | |", "|---|---|---|", *rows])
        )
        if kind is event_types.StateChanged:
            parts.append(_states())
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _states() -> str:
    rows = ["| core | state | |", "|---|---|---|"]
    for core, states in STATES.items():
        rows.append(f"| `{core}` | | {states['about']} |")
        rows += [f"| | `{name}` | {text} |" for name, text in states.items() if name != "about"]
    return "\n".join(rows)


def _kind_of(annotation: Any) -> str:
    assert not isinstance(annotation, UnionType), annotation
    return _KINDS[getattr(annotation, "__origin__", annotation).__name__]
