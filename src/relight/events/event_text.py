"""Describes events in plain text for --verbose and `relight events`."""

from relight.base.errors import signal_name
from relight.base.text import format_ranks, pluralize
from relight.events import event_types
from relight.events.event_types import Event, ProcessRemains


def named(process: ProcessRemains) -> str:
    """Describe a process that remains."""
    return f"process {process.pid} ({process.name}, user {process.user})"


def describe(event: Event) -> str:
    """Describe an event, for `--verbose`."""
    match event:
        case event_types.Formed():
            return (
                f"generation {event.generation}: {pluralize(event.world_size, 'worker')} on "
                f"{pluralize(event.nodes, 'node')}; this is node {event.group_rank}; rendezvous at "
                f"{event.master_addr}:{event.master_port}"
            )
        case event_types.WorkerStarted():
            return f"rank {event.rank} (local rank {event.local_rank}) is pid {event.pid}"
        case event_types.WorkerExited():
            return f"local rank {event.local_rank} {_describe_exit(event.exitcode)}"
        case event_types.WorkersFrozen():
            what = "are frozen: lease expired" if event.frozen else "resume"
            return f"workers {what}"
        case event_types.SignalReceived():
            return f"agent received signal {event.number}"
        case event_types.GroupStopped():
            return f"stopping the workers in generation {event.generation}: {event.cause}"
        case event_types.ProcessRemains():
            return f"{named(event)} {_why_it_remains(event)}"
        case event_types.SpawnerLost():
            return f"the worker spawner {_describe_exit(event.exitcode)}"
        case event_types.PreloadStarted():
            return f"preload: pid {event.pid} is importing {event.modules}"
        case event_types.WarmProcessTaken():
            return (
                f"preload: using warm process {event.pid}: {event.modules} modules, imported "
                f"{event.age_s:.0f} s ago; {pluralize(event.uses, 'job')} used it before"
            )
        case event_types.WarmProcessUnfit():
            return f"preload: can't use warm process {event.pid}: {event.reason}"
        case event_types.PreloadReady():
            return (
                f"preload: pid {event.pid} is ready after {event.seconds:.1f} s: "
                f"{event.modules} modules, {event.mib:.0f} MiB"
                f"{_left_out(event.left_out.split())}"
            )
        case event_types.PreloadWithout():
            text = f"preload: {event.module} is not preloaded: {event.reason}"
            if event.reason.startswith("it can't be imported"):
                return text  # workers can't import it either
            return f"{text}; each worker imports it itself ({event.seconds:.1f} s)"
        case event_types.PreloadUnfit():
            return f"preload: not using the preloading process: {event.reason}"
        case event_types.WorkersForked():
            if event.warm:
                return "preload: workers start with preloaded modules"
            return f"preload: workers start without preloaded modules: {event.reason}"
        case event_types.InternalErrorEvent():
            return event.text
        case event_types.Restarting():
            budget = event.budget or f"restart {event.restart} of {event.of}"
            return f"{budget}: {event.reason}"
        case event_types.HealthChecked():
            result = f"failed: {event.reason}" if event.reason else "passed"
            return f"the health check {result} ({event.seconds:.1f} s)"
        case event_types.RanksSlow():
            return event.text
        case event_types.RanksReplaced(ranks=()):
            return (
                f"{pluralize(event.stayed, 'rank')} kept running; recovered in "
                f"{event.seconds:.2f} s"
            )
        case event_types.RanksReplaced():
            were = "were" if len(event.ranks) > 1 else "was"
            return (
                f"{format_ranks(event.ranks)} {were} replaced in {event.seconds:.2f} s; "
                f"{pluralize(event.stayed, 'rank')} kept running"
            )
        case event_types.NotRestarting():
            return f"no restart: {event.reason}"
        case event_types.StoreReached():
            return f"{event.workers} of {pluralize(event.world_size, 'worker')} reached the store"
        case event_types.FailureNoticed():
            what = (
                "the workers are hanging"
                if event.local_rank < 0
                else f"local rank {event.local_rank}"
            )
            return f"{what}: failure detected after {event.after_s:.3f} s"
        case event_types.StepsReported():
            took = event.last - event.first
            return f"the workers reached step {event.step}, {took:.1f} s after their first step"
        case event_types.CheckpointFound():
            return f"the workers in generation {event.generation} saved a checkpoint"
        case event_types.StateChanged():
            of = f" of {event.job}" if event.job else ""
            return f"{event.core}{of}: {event.before} -> {event.after} ({event.cause})"
        case event_types.GroupBegan():
            return f"this process coordinates group {event.job}".rstrip()
        case event_types.GroupStep():
            message = event.input.get("message")
            taken = message if isinstance(message, dict) else event.input
            return f"group input {taken.get('type')}: {pluralize(len(event.effects), 'effect')}"
        case event_types.Ended():
            return f"the job ended with exit code {event.exit_code}: {event.reason}"
        case event_types.Tick():
            return "deadline passed"


def _describe_exit(exitcode: int) -> str:
    if exitcode < 0:
        return f"was killed by {signal_name(-exitcode)}"
    return f"exited with code {exitcode}"


def _why_it_remains(process: ProcessRemains) -> str:
    if process.refused:
        return "can't be killed: owned by another user"
    return "still exists a second after SIGKILL; blocked in the kernel"


def _left_out(packages: list[str]) -> str:
    if not packages:
        return ""
    names = ", ".join(packages[:5]) + (" …" if len(packages) > 5 else "")
    return f"; not preloading {pluralize(len(packages), 'package')} outside site-packages: {names}"
