"""Lists and stops warm processes and forgets learned imports, for `relight warm`."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from relight.base import env
from relight.base.errors import EXIT_OK, MachineError, UsageError
from relight.base.text import format_duration, pluralize
from relight.base.values import whole
from relight.cli.jobs.common import print_json, say, table
from relight.host import system, user_sockets
from relight.host.process_handle import ProcessHandle
from relight.warm import import_profile
from relight.warm import warm_processes as processes
from relight.warm.warm_sockets import Description, SocketDirectory

_END_S = 2.0
_WIDTH = 40
_NAMES = {
    "-m relight.worker.call": "(relight.launch)",
    "-m relight.pytest_plugin.rank": "(pytest)",
}
"""Scripts that are part of relight rather than the user's own."""


def show(words: Sequence[str], *, as_json: bool) -> int:
    """Run `relight warm list`."""
    if words:
        raise UsageError(f"relight warm list takes flags only, not {words[0]}")
    found, silent = _query()
    _report(silent)
    if as_json:
        print_json([_as_object(each) for each in found.values()])
        return EXIT_OK
    being_made = _directory().all_being_made()
    for made in being_made:
        say(f"{made.guard} is starting for {made.script} and importing modules")
    if not found:
        if not (being_made or silent):
            say("you have no warm processes on this machine")
        return EXIT_OK
    rows = [
        (
            str(each.pid),
            _NAMES.get(each.script, each.script),
            each.facts.get("working directory", "").rpartition(" (")[0],
            "auto" if each.learned else _shortened(each.asked),
            str(each.modules),
            f"{system.memory(each.pid) / 2**20:.0f} MiB",
            format_duration(each.age_s),
            str(each.uses),
            pluralize(each.jobs, "job")
            if each.jobs
            else f"in {format_duration(each.stays_s - each.idle_s)}",
        )
        for each in found.values()
    ]
    heads = ("PID", "SCRIPT", "DIRECTORY", "PRELOAD", "MODULES", "MEMORY", "AGE", "USES", "ENDS")
    print("\n".join(table(rows, heads)))
    for each in found.values():
        if each.why_not:
            say(f"{each.pid} ends: {each.why_not}")
    return EXIT_OK


def _report(silent: Iterable[int]) -> None:
    for pid in silent:
        say(f"{pid} is not responding; `kill -9 {pid}` kills it and the jobs that use it")


def _shortened(names: Sequence[str]) -> str:
    """Join as many names as fit in a column."""
    text = ",".join(names)
    if len(text) <= _WIDTH:
        return text
    shown = text[:_WIDTH].count(",") or 1
    return f"{','.join(names[:shown])} and {len(names) - shown} more"


def _as_object(each: Description) -> dict[str, object]:
    return {
        "pid": each.pid,
        "script": each.script,
        "preload": "auto" if each.learned else ",".join(each.asked),
        "modules": each.modules,
        "memory": system.memory(each.pid),
        "age_s": round(each.age_s, 1),
        "uses": each.uses,
        "jobs": each.jobs,
        "idle_s": round(each.idle_s, 1),
        "stays_s": each.stays_s,
        "why_not": each.why_not,
    }


def stop(words: Sequence[str]) -> int:
    """Run `relight warm stop`."""
    wanted = set()
    for word in words:
        pid = whole(word)
        if pid is None:
            raise UsageError(
                f"relight warm stop takes pids, not {word}", hint="`relight warm` shows them"
            )
        wanted.add(pid)
    described, silent = _query()
    found: dict[int, Callable[[], object]] = {
        each.pid: partial(processes.stop, path) for path, each in described.items()
    }
    found |= {
        made.guard: partial(processes.stop_imports, made.guard)
        for made in _directory().all_being_made()
    }
    if unknown := wanted - found.keys() - {*silent}:
        known = ", ".join(map(str, (*found, *silent)))
        raise UsageError(
            f"{min(unknown)} is not one of your warm processes",
            hint=f"running: {known}" if known else "none is running",
        )
    _report(pid for pid in silent if pid in wanted or not wanted)
    for pid in sorted(found.keys() & wanted if wanted else found):
        if _ends(pid, found[pid]):
            say(f"{pid} has ended")
        else:
            say(f"{pid} will exit after the job that uses it")
    if not (found or silent):
        say("you have no warm processes on this machine")
    return EXIT_OK


def _ends(pid: int, end: Callable[[], object]) -> bool:
    """Stop a process, and return whether it exited in time."""
    try:
        process = ProcessHandle(pid)
    except ProcessLookupError:
        return True
    try:
        end()
        return process.wait(_END_S)
    finally:
        process.close()


def _query() -> tuple[dict[str, Description], list[int]]:
    """Return the warm processes that respond, keyed by socket, and the pids of processes that don't
    respond.
    """
    found, silent = {}, []
    for path in _directory().sockets():
        if (answer := processes.ask(path)) is not None:
            answer.connection.close()
            found[path] = answer.description
        elif (connection := user_sockets.connect(path, _END_S)) is not None:
            silent.append(user_sockets.peer(connection).pid)
            connection.close()
    return found, silent


def _directory() -> SocketDirectory:
    try:
        return SocketDirectory(env.read().variables)
    except OSError as error:
        raise MachineError(
            f"can't search {error.filename} for warm processes: {error.strerror}"
        ) from None


def forget(words: Sequence[str]) -> int:
    """Run `relight warm forget`."""
    if len(words) > 1:
        raise UsageError(f"relight warm forget takes at most one script, not {words[1]}")
    if words == [""]:
        raise UsageError("relight warm forget: empty SCRIPT", hint="relight warm forget [SCRIPT]")
    variables = env.read().variables
    if not import_profile.directory(variables):
        say("nothing recorded: neither XDG_CACHE_HOME nor HOME is an absolute path")
        return EXIT_OK
    try:
        forgotten = import_profile.forget(variables, *words)
    except OSError as error:
        raise MachineError(
            f"can't remove {error.filename}: {error.strerror}",
            hint="check the permissions of its directory",
        ) from None
    for script in forgotten:
        say(f"forgot {script}")
    if not forgotten:
        of = f" about {words[0]}" if words else ""
        say(f"nothing recorded{of} in {import_profile.directory(variables)}")
    elif not words:
        say(f"{pluralize(len(forgotten), 'script')} forgotten")
    return EXIT_OK
