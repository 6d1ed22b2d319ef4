"""`relight warm`: the state kept to make the next job of a script start sooner.

The processes with imported modules that outlive their jobs (`--keep-warm`), and the
imports that `--preload=auto` has learned.
"""

from collections.abc import Callable, Sequence
from functools import partial

from relight.base import env
from relight.base.errors import EXIT_OK, MachineError, UsageError
from relight.base.text import did_you_mean, format_duration, pluralize
from relight.base.values import whole
from relight.cli.jobs.common import HELP, JSON, Page, print_json, read_arguments, say, table
from relight.host import system
from relight.host.process_handle import ProcessHandle
from relight.warm import import_profile, silent_warm, warm_processes
from relight.warm.silent_warm import SilentProcess
from relight.warm.warm_sockets import Description, SocketDirectory

PAGE = Page(
    "warm [list|start|stop|forget] …",
    (
        "With relight run --keep-warm, a process that has imported a script's modules outlives",
        "its job, and the next job of that script forks its workers from it.",
        "",
        "  warm [list]                      your warm processes on this machine",
        "  warm start [flags of run] [SCRIPT]",
        "                                   start one in advance, for SCRIPT or relight.launch;",
        "                                   --preload=MODULE,… selects the modules",
        "                                   [those learned by auto; torch]",
        "  warm stop [PID …]                stop these, or all; a process in use stops after its",
        "                                   job; an unresponsive, unused one is killed",
        "  warm forget [SCRIPT]             forget the modules that --preload=auto has learned for",
        "                                   SCRIPT (for -m, the name of the module), or for all",
        "                                   scripts",
    ),
    (JSON, HELP),
    (
        "relight warm",
        "relight warm start --nproc-per-node=4 --preload=torch train.py",
        "relight warm stop",
        "relight warm forget train.py",
    ),
    "exit code: 0, also if there was nothing to stop or to forget",
)
_END_S = 2.0
_WIDTH = 40
_NAMES = {
    "-m relight.worker.call": "(relight.launch)",
    "-m relight.pytest_plugin.rank": "(pytest)",
}
"""Scripts that no user has written."""


def main(argv: list[str]) -> int:
    """Run `relight warm`.

    Raises:
        UsageError: if the verb is unknown, or an argument is wrong.
        MachineError: if a file can't be removed, or a process can't be started.
    """
    if argv[:1] == ["start"] and not {"-h", "--help"} & set(argv[1:2]):
        from relight.cli import warm_start

        return warm_start.main(argv[1:])
    parsed = read_arguments(argv, PAGE, 0, 1 << 16, "")
    verb, *rest = parsed.command or ("list",)
    if verb not in _VERBS:
        hint = did_you_mean(verb, VERBS, f"relight {PAGE.usage}")
        raise UsageError(f"unknown relight warm command: {verb}", hint=hint)
    if verb != "list" and parsed.values["json"]:
        raise UsageError(f"relight warm {verb} does not support --json")
    return _VERBS[verb](rest, parsed.values["json"])


def _list(words: Sequence[str], as_json: bool) -> int:
    if words:
        raise UsageError(f"relight warm list takes flags only, not {words[0]}")
    found, silent = _look()
    for hung in silent:
        say(_in_words(hung))
    if as_json:
        print_json([_as_object(each) for each in found.values()])
        return EXIT_OK
    being_made = _directory().being_made()
    for made in being_made:
        say(f"{made.guard} is starting for {made.script}: importing modules")
    if not found:
        if not (being_made or silent):
            say("you have no warm processes on this machine")
        return EXIT_OK
    rows = [
        (
            str(each.pid),
            _name(each),
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


def _in_words(silent: SilentProcess) -> str:
    """Describe a process that does not answer, and the remedy."""
    pid = silent.pid
    if not silent.is_warm:
        return f"{pid} listens on {silent.path} but is not a warm process; end it yourself"
    why = "is stopped" if system.is_stopped(pid) else "does not answer"
    if silent.agents:
        jobs = ", ".join(map(str, silent.agents))
        return f"{pid} {why}; the job of agent {jobs} uses it: `relight warm stop` after that job"
    return f"{pid} {why}; end it with `relight warm stop {pid}`"


def _name(each: Description) -> str:
    return _NAMES.get(each.script, each.script)


def _shortened(names: Sequence[str]) -> str:
    """Return as many names as fit in a column."""
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


def _stop(words: Sequence[str], _: bool) -> int:
    wanted = set()
    for word in words:
        pid = whole(word)
        if pid is None:
            raise UsageError(
                f"relight warm stop takes pids, not {word}", hint="`relight warm` shows them"
            )
        wanted.add(pid)
    described, silent = _look()
    found: dict[int, Callable[[], object]] = {
        each.pid: partial(warm_processes.stop, path) for path, each in described.items()
    }
    found |= {
        made.guard: partial(warm_processes.stop_imports, made.guard)
        for made in _directory().being_made()
    }
    hung = {each.pid: each for each in silent}
    if unknown := wanted - found.keys() - hung.keys():
        known = ", ".join(map(str, (*found, *hung)))
        raise UsageError(
            f"{min(unknown)} is not a warm process of yours",
            hint=f"running: {known}" if known else "none is running",
        )
    for pid in sorted(wanted or {*found, *hung}):
        if pid in hung:
            _end_silent(hung[pid])
        elif _ends(pid, found[pid]):
            say(f"{pid} has ended")
        else:
            say(f"{pid} exits after the job that uses it")
    if not (found or hung):
        say("you have no warm processes on this machine")
    return EXIT_OK


def _end_silent(silent: SilentProcess) -> None:
    """Continue a process that does not answer, and let it end; kill it if that does not help.

    Raises:
        MachineError: if it can't be ended.
    """
    pid = silent.pid
    if not silent.is_warm:
        say(_in_words(silent))
        return
    silent.resume()
    if _ask(silent.path) is not None:
        ended = _ends(pid, partial(warm_processes.stop, silent.path))
        say(f"{pid} has ended" if ended else f"{pid} exits after the job that uses it")
    elif silent.agents:
        say(_in_words(silent))  # its jobs are fine, and would end with it
    elif _ends(pid, silent.kill):
        say(f"{pid} did not answer; killed")
    else:
        raise MachineError(
            f"warm process {pid} does not answer and survives SIGKILL",
            hint="it is blocked in the kernel, usually on a file system; check dmesg",
        )


def _ends(pid: int, end: Callable[[], object]) -> bool:
    """End a process; return whether it is gone after a short time."""
    try:
        process = ProcessHandle(pid)
    except ProcessLookupError:
        return True
    try:
        end()
        return process.wait(_END_S)
    finally:
        process.close()


def _look() -> tuple[dict[str, Description], list[SilentProcess]]:
    """Return the warm processes that answer, by their sockets, and the silent ones."""
    found, silent = {}, []
    for path in _paths():
        if (described := _ask(path)) is not None:
            found[path] = described
        elif (hung := silent_warm.find(path)) is not None:
            silent.append(hung)
    return found, silent


def _ask(path: str) -> Description | None:
    found = warm_processes.ask(path)
    if found is None:
        return None
    found.connection.close()
    return found.description


def _paths() -> list[str]:
    return _directory().sockets()


def _directory() -> SocketDirectory:
    try:
        return SocketDirectory(env.read().variables)
    except OSError as error:
        raise MachineError(
            f"can't search {error.filename} for warm processes: {error.strerror}"
        ) from None


def _forget(words: Sequence[str], _: bool) -> int:
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


_VERBS: dict[str, Callable[[Sequence[str], bool], int]] = {
    "list": _list,
    "stop": _stop,
    "forget": _forget,
}
VERBS = ("list", "start", "stop", "forget")
