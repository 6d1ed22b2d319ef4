"""`relight warm`: manages the state that makes the next start of a script faster.

This state consists of processes that have imported modules and outlive their jobs (`--keep-warm`),
and of the imports that `--preload=auto` has learned.
"""

from relight.base.errors import UsageError
from relight.base.text import did_you_mean
from relight.cli.jobs.common import JSON, Page, read_arguments
from relight.host import system

PAGE = Page(
    "warm [list|start|stop|forget] …",
    (
        "With relight run --keep-warm, a process that has imported a script's modules outlives",
        "its job, and the next job that runs the script forks its workers from it.",
        "",
        "  warm [list]                      your warm processes on this machine",
        "  warm start [flags of run] [SCRIPT]",
        "                                   start one in advance, for SCRIPT or relight.launch;",
        "                                   --preload=MODULE,… selects the modules",
        "                                   [those learned by auto; torch]",
        "  warm stop [PID …]                stop these, or all; a process in use stops after its",
        "                                   job",
        "  warm forget [SCRIPT]             forget the modules that --preload=auto has learned for",
        "                                   SCRIPT (for -m, the name of the module), or for all",
        "                                   scripts",
    ),
    (JSON,),
    (
        "relight warm",
        "relight warm start --nproc-per-node=4 --preload=torch train.py",
        "relight warm stop",
        "relight warm forget train.py",
    ),
    "exit code: 0, even if there was nothing to stop or forget",
)
VERBS = ("list", "start", "stop", "forget")


def main(argv: list[str]) -> int:
    """Run `relight warm`.

    Raises:
        UsageError: if the verb is unknown, or an argument is wrong.
        MachineError: if a file can't be removed, or a process can't be started.
    """
    starts = argv[:1] == ["start"] and not {"-h", "--help"} & set(argv[1:2])
    if not starts:
        parsed = read_arguments(argv, PAGE, 0, 1 << 16, "")
        verb, *rest = parsed.command or ("list",)
        if verb not in VERBS:
            hint = did_you_mean(verb, VERBS, f"relight {PAGE.usage}")
            raise UsageError(f"unknown relight warm command: {verb}", hint=hint)
        if verb != "list" and parsed.values["json"]:
            raise UsageError(f"relight warm {verb} does not support --json")
    system.require_linux("relight warm")
    if starts:
        from relight.cli import warm_start

        return warm_start.main(argv[1:])
    from relight.cli import warm_processes

    match verb:
        case "stop":
            return warm_processes.stop(rest)
        case "forget":
            return warm_processes.forget(rest)
        case _:
            return warm_processes.show(rest, as_json=parsed.values["json"])
