"""Writes docs/events.md, which documents the events and their fields, and its copy in the package,
which `relight events --schema` prints.

    python -m documentation.events
"""

from types import UnionType
from typing import Any

from documentation.blocks import ROOT
from relight.events import event_types

PAGES = (ROOT / "docs" / "events.md", ROOT / "src" / "relight" / "events" / "events.md")

FIELDS = {
    "after_s": "delay until it was noticed, in seconds",
    "age_s": "seconds since the process was created",
    "after": "the new state",
    "asked": "whether the user named the modules; false with `auto`",
    "before": "the previous state",
    "budget": "number and limit of the restart, such as `restart 2 of 3`, and any wait before it; "
    "empty if unknown",
    "cause": "the reason",
    "StateChanged.cause": "the reason; or the input (a message, an event, or Tick for a deadline) "
    "and its reason",
    "core": "the state machine, see below",
    "during": "the input that led to it",
    "effects": "the decision: messages to nodes, as sent over the network, and dropped nodes",
    "error": "the exception, and where it occurred in relight's code",
    "exit_code": "exit code of the agent, from 0 to 255",
    "exitcode": "exit code of the process; below 0, the number of the signal that ended it",
    "failed_host": "name of the node; empty without a failure, or if the node is unknown",
    "first": "when a worker first called progress(), on the same clock as `t`",
    "frozen": "whether they are frozen or running again",
    "generation": "number of the generation, from 0",
    "group_rank": "number of this node in the generation, from 0",
    "host": "name of this node",
    "hosts": "names of the nodes",
    "input": "the input: a message and its node, a lost node, or a tick",
    "job": "id of the job; empty in a single-node job",
    "StateChanged.job": "id of the group's job; empty in a single-node job, and for other state "
    "machines",
    "last": "when a worker last called progress(), on the same clock as `t`",
    "left_out": "packages that workers import but that are not installed, with `auto`; separated "
    "by spaces",
    "FailureNoticed.local_rank": "number of the worker on its node, from 0; -1 for all of them",
    "local_rank": "number of the worker on its node, from 0",
    "master_addr": "address of the workers' store",
    "master_port": "port of the workers' store",
    "mib": "memory of the process in MiB",
    "module": "name of the module",
    "modules": "how many modules are imported",
    "nodes": "number of nodes in the generation",
    "now": "the coordinator's monotonic clock, in seconds",
    "number": "number of the signal",
    "of": "how many restarts are allowed",
    "origin": "a random string, part of the ids of the generations formed here",
    "pid": "process id",
    "PreloadStarted.modules": "names of the modules, separated by commas",
    "name": "short name of the program, as shown by ps",
    "user": "name of the user who owns the process",
    "refused": "whether SIGKILL was refused because the process belongs to another user",
    "rank": "rank of the worker in the job, from 0",
    "ranks": "ranks of the workers; empty when no rank is slow any longer",
    "RanksReplaced.ranks": "ranks of the workers that were restarted",
    "RanksReplaced.seconds": "seconds from the failure until all workers were running again",
    "reason": "the reason",
    "HealthChecked.reason": "why the node leaves the job; empty if it passed",
    "WorkersForked.reason": "why they are not warm; empty if they are",
    "restart": "number of restarts after failures so far",
    "saved": "time of the checkpoint, in seconds since 1970 by the clock of the file system",
    "seconds": "duration in seconds",
    "PreloadWithout.seconds": "duration of the import until it failed, in this job or in the "
    "earlier job that discovered it, in seconds",
    "settings": "the user's settings: numbers of nodes, restarts, times in seconds",
    "since": "start, in seconds since 1970",
    "slower": "how much slower the slowest node's ranks are, as a share of their time (0.2: a "
    "fifth)",
    "stayed": "how many workers on this node kept their process",
    "step": "highest step that a worker has reported",
    "text": "a description of the event",
    "uses": "number of jobs that used it before",
    "waited": "share of the time that the others wait for the slowest node, from 0 to 1",
    "warm": "whether the workers are forked from a process that has imported modules",
    "workers": "number of connections to the store: one per worker, later more",
    "world_size": "number of workers in the generation",
}
"""What each field means, with its unit, by name. `Event.name` is used if the meaning differs in one
event.
"""
STATES = {
    "supervision": {
        "about": "the workers of a generation on this node",
        "running": "none has failed or been asked to stop",
        "leaving": "one has failed, and the others leave its group and keep their process",
        "left": "they have left it and are waiting for the next generation",
        "saving": "they were asked to save a checkpoint and exit, or may do so after a preemption "
        "notice",
        "stopping": "they were asked to exit, and the grace period is running",
        "killing": "they were sent SIGKILL",
        "ended": "all have exited, or can't be killed",
    },
    "link": {
        "about": "the link from this node to the coordinator, in a multi-node job",
        "seeking": "no coordinator is known",
        "joining": "a coordinator has answered, but has not permitted this node to run workers yet",
        "connected": "the coordinator has permitted this node to run workers",
        "hosting": "this process is the coordinator",
        "over": "this node has left the job or given up",
    },
    "membership": {
        "about": "a job's nodes, in the process that coordinates them",
        "gathering": "no workers are running, and nodes are joining",
        "running": "a generation is running",
        "stopping": "the workers on all nodes are being stopped",
        "recovering": "the coordinator is new, and the nodes are reporting their workers",
        "ended": "the job has ended, and the nodes are being informed",
    },
    "agreement": {
        "about": "the agreement between a job's nodes on when their workers save a checkpoint and "
        "exit",
        "idle": "there is nothing to agree on, or they have agreed",
        "counting": "the nodes report how often their workers have called `should_checkpoint`",
    },
    "reachability": {
        "about": "the connections between a job's nodes, with --health-check=network",
        "idle": "nothing is known about the nodes in the next generation",
        "trying": "each node is connecting to the others",
        "known": "all results are in",
    },
    "election": {
        "about": "the election of the coordinator, on a host in an endpoint that lists several",
        "follower": "a coordinator was seen recently, or the process has just started",
        "candidate": "no coordinator was seen recently, and this host requests votes",
        "coordinator": "a majority has voted for this host",
    },
    "candidacy": {
        "about": "this process's candidacy in a registry (etcd, a file, a plug-in) that names the "
        "coordinator",
        "waiting": "the registry does not name this process, or that is no longer certain",
        "holding": "it names this process",
    },
    "activity": {
        "about": "the activity of a generation's workers on this node, with --hang-timeout",
        "active": "at least one of them makes progress",
        "quiet": "none has made progress for too long",
    },
}
"""The states in `StateChanged`, by state machine. `about` is what the state machine describes."""
_KINDS = {
    "bool": "true or false", "int": "integer", "float": "number", "str": "text", "tuple": "list",
    "list": "list", "dict": "object",
}  # fmt: skip
_HEAD = f"""\
# The event log

`relight events JOB` shows the history of a job: see [jobs on this machine](watching.md). The same
lines are in `events.jsonl` in the run directory (with `--log-dir`, `--redirects` or `--tee`), and go
to stderr with `--event-log-handler=console`. Each line is one JSON object, with

| key | | |
|---|---|---|
| `v` | integer | version of this format, now {
    event_types.SCHEMA
}; raised when a field or an event is removed or changes its meaning |
| `n` | integer | number of the event in the log of this agent, from 1 |
| `t` | number | the machine's monotonic clock, in seconds |
| `time` | number | the time, in seconds since 1970 |
| `stimulus` | text | id of the input that caused the event, see [causes](#causes) |
| `event` | text | the type of the event |

and the fields of the event. A reader should ignore events and keys that it does not know. For a
submitted job, `relight events --json` begins each line with three more keys: `log`, the name of the
agent's run directory; `host`; and `node`, the agent's `group_rank` in the generation that its log has
reached. Until it has reached one, `host` is empty and `node` is -1.

## Causes

`stimulus` is `HOST:PID:N`, the Nth input (a message, the exit of a process, a signal or a deadline)
of the agent PID on HOST. Messages between agents carry this id along, so an event on another node
that follows from the same input has the same `stimulus`. A later consequence, such as the exit of a
worker after SIGTERM, is an input of its own.

```console
$ relight events --json --name WorkerExited JOB | jq -r .stimulus
node1:71201:12
$ relight events --stimulus node1:71201:12 JOB
```

The second command prints everything that this exit caused, on all nodes and including internal
events.

## Writing an event handler

`--event-log-handler=NAME` also accepts a plug-in: an entry point in the group `relight.events`, in a
package that is installed for the Python interpreter that runs relight.

```toml
[project.entry-points."relight.events"]
ours = "our_package:handle"
```

```python
def handle(event):  # a dict, as in the log
    if event["event"] == "WorkerExited":
        ...
```

For a handler, each event also has a key `agent` with the `user`, the `host`, relight's `version`, the
`scheduler`, and the scheduler's job id, `scheduler_job`. The last two are empty without a scheduler.

The plug-in may also be an instance or a subclass of `logging.Handler`, which then receives one
record per line. It runs in a process of its own, which starts once the job has been running for a
second and also receives the earlier events. The job does not wait for it. If it raises an exception,
the first one is reported. If it can't keep up, up to 1 MiB of events are queued. At the end of the
job, it has 2 s to handle the last events.

## Audit log

After `relight submit`, `cancel`, `delete` and `debug`, and the corresponding Python functions, an
event is sent to the handler that is set with `PET_EVENT_LOG_HANDLER` or with `event-log-handler` in
the [site's configuration](site.md):

```text
{{"v": {
    event_types.SCHEMA
}, "n": 1, "t": 71201.2, "time": 1767323045.1, "event": "UserAction", "action": "submit",
 "job": "slurm://relight/7141", "detail": "dist.ddp", "agent": {{"user": "ada", "host": "login1",
 "version": "0.1.0", "scheduler": "", "scheduler_job": ""}}}}
```

`action` is `submit`, `cancel`, `delete` or `debug`; `detail` is the component, or the rank with its
pid. The handler runs in a process of its own and has 5 s to finish. If it fails, the command reports
that on stderr, but its result does not change. Users who call `sbatch`, `scancel` or `kubectl`
directly, or send a signal, bypass the handler: it shows what users do with relight, but does not
prevent anything.

For example, a handler that writes to syslog, in a package provided by the site
(`audit = "site_audit:handle"`):

```python
import json
import logging.handlers

SYSLOG = logging.handlers.SysLogHandler("/dev/log")


def handle(event):
    if event["event"] == "UserAction":
        text = "relight-audit: " + json.dumps(event)
        SYSLOG.emit(logging.LogRecord("relight", logging.INFO, "", 0, text, None, None))
```
"""  # noqa: E501


def kinds() -> dict[str, Any]:
    """Return the events that are written to the log, by name."""
    return {
        kind.__name__: kind for kind in event_types.Event.__args__ if kind is not event_types.Tick
    }


def meaning(event: str, field: str) -> str:
    """Return the meaning of a field.

    Raises:
        KeyError: if it is not documented.
    """
    return FIELDS.get(f"{event}.{field}") or FIELDS[field]


def page() -> str:
    """Return the page."""
    parts = [_HEAD]
    for name, kind in kinds().items():
        about = " ".join((kind.__doc__ or "").split())
        rows = [
            f"| `{field}` | {_schema_kind(annotation)} | {meaning(name, field)} |"
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


def _schema_kind(annotation: Any) -> str:
    assert not isinstance(annotation, UnionType), annotation
    return _KINDS[getattr(annotation, "__origin__", annotation).__name__]


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(page())
