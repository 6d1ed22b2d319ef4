"""Suggests corrections for an invalid command line. This module is imported only after an error."""

import os
import re
import shlex
from collections.abc import Collection, Sequence

from relight.base.errors import UsageError
from relight.base.text import closest_match
from relight.flags.spec import Flag

_PER_NODE = "did you mean --nproc-per-node? It is the number of workers per node, not in total"
_NODES = "did you mean --nnodes?"
_HOSTS = (
    "start the same command on every host, with --nnodes and --rdzv-endpoint, or use relight "
    "submit -s ssh -cfg 'hosts=node1;node2' to start it on all of them"
)
_SUBMIT = "relight run starts workers here; relight submit submits a job to a scheduler"
_DEVICES = "select GPUs with CUDA_VISIBLE_DEVICES"
_OTHER_LAUNCHERS = {
    **dict.fromkeys(
        ("n", "np", "nprocs", "nproc", "num-processes", "num-procs", "ntasks", "workers",
         "num-workers", "num-proc"), _PER_NODE,
    ),
    **dict.fromkeys(
        ("g", "gpus", "gpu", "num-gpus", "ngpus", "gpus-per-node", "num-gpus-per-node",
         "ntasks-per-node", "procs-per-node", "nproc-per-gpu", "devices", "multi-gpu"),
        "did you mean --nproc-per-node? --nproc-per-node=gpu starts one worker per GPU",
    ),
    **dict.fromkeys(("N", "nodes", "num-nodes", "num-machines", "nnode"), _NODES),
    **dict.fromkeys(("machine-rank", "noderank", "node-id"), "did you mean --node-rank?"),
    **dict.fromkeys(("main-process-ip", "main-address"), "did you mean --master-addr?"),
    **dict.fromkeys(("main-process-port", "port"), "did you mean --master-port?"),
    **dict.fromkeys(("H", "host", "hosts", "hostfile", "machinefile", "hostname"), _HOSTS),
    **dict.fromkeys(("gpu-ids", "include", "exclude"), _DEVICES),
    **dict.fromkeys(("s", "scheduler", "cfg", "j", "workspace", "dryrun"), _SUBMIT),
    "rdzv-timeout": "did you mean --rdzv-conf join_timeout=SECONDS?",
    "use-env": "relight run always behaves as with --use-env; relight launch has the flag",
    "world-size": "the world size is --nnodes times --nproc-per-node",
    "rank": "ranks are derived from --node-rank and --nproc-per-node",
    "local-rank": "each worker has LOCAL_RANK set; relight launch also passes --local-rank",
}  # fmt: skip
"""Maps flags of mpirun, srun, accelerate, deepspeed, horovodrun and TorchX to relight's
equivalents.
"""
CARRIAGE_RETURN = "a carriage return is in it: sed -i 's/\\r$//' on the file that it comes from"
EXAMPLES = {
    "nnodes": ("2", "2:4"),
    "nproc-per-node": ("8", "gpu"),
    "rdzv-endpoint": ("gpu-01", "gpu-01:29400"),
    "rdzv-conf": ("join_timeout=600,read_timeout=60",),
    "master-addr": ("gpu-01",),
    "master-port": ("29500",),
    "max-restarts": ("3",),
    "bad-nodes": ("/shared/bad-nodes", "/shared/bad-nodes,7d"),
    "restart-on": ("75,SIGKILL",),
    "fail-on": ("2,SIGXCPU",),
    "signals-to-handle": ("SIGTERM,SIGUSR1",),
    "shutdown-timeout": ("60",),
}
"""Examples of valid values, for flags whose help text would add nothing to the error message."""
_TIME = r"(\d{1,6}(?:\.\d{1,3})?) ?(s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?)"
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_OTHER_COMMANDS = {
    "log": "logs", "runopts": "schedulers", "builtins": "components", "ls": "list",
    "squeue": "list", "ps": "status", "kill": "cancel", "stop": "cancel", "scancel": "cancel",
    "rm": "delete", "sbatch": "submit", "torchrun": "run", "start": "run", "exec": "run",
}  # fmt: skip
"""Maps commands of TorchX and other tools to relight's commands."""


def unknown_flag(word: str, known: Collection[str]) -> UsageError:
    """Return the error for an unknown flag.

    Args:
        word: the flag as it was typed.
        known: the flags of the command, without dashes.
    """
    name = word.lstrip("-").partition("=")[0].replace("_", "-")
    if not word.startswith("--"):
        name = name.rstrip("0123456789")
    if " " in word and name.partition(" ")[0] in known:
        return UsageError(f"unknown flag: {word}", hint="don't quote a flag and its value together")
    hint = _OTHER_LAUNCHERS.get(name) if "nproc-per-node" in known else None
    meant = "" if hint else closest_match(name.lower(), list(known))
    if not hint:
        after = "; put the script's own flags after it" if "nproc-per-node" in known else ""
        hint = f"did you mean --{meant}?" if meant else f"--help lists the flags{after}"
    return UsageError(f"unknown flag: {word}", hint=hint)


def bad_value(flag: Flag, source: str, error: ValueError) -> str:
    """Return the hint for an invalid value: a valid example, or the flag's help.

    Args:
        flag: the flag.
        source: the flag or variable with the value, as `NAME=VALUE`.
        error: why the value is invalid.
    """
    name, _, value = source.partition("=")
    if "number of seconds" in str(error) and (found := re.fullmatch(_TIME, value.strip())):
        return f"type {name}={float(found[1]) * _SECONDS[found[2][0]]:g}"
    if flag.name == "nproc-per-node" and (meant := _explain_workers(value)):
        what, count = meant
        return f"{what}; type {name}={count}, or {name}=gpu for one worker per GPU"
    examples = f"--{flag.name}: {flag.help}"
    if flag.name in EXAMPLES:
        examples = "for example: " + ", ".join(f"{name}={each}" for each in EXAMPLES[flag.name])
    what = _cause(value)
    return f"{what}; {examples}" if what else examples


def _cause(value: str) -> str:
    """Return how a shell may have mangled a value, or an empty string if the value looks intact."""
    if not value.strip():
        return "the value is empty, perhaps because a variable is unset"
    if "\r" in value:
        return CARRIAGE_RETURN
    if re.search(r"\s\S*\.py\b", value):
        return "the quotes probably join several arguments"
    if value.endswith(".py"):
        return f"{value} was taken as the value, perhaps because a variable is unset"
    if re.search(r"\$[A-Za-z_{]", value):
        return "the shell doesn't replace variables in single quotes"
    if value[0] in "'\"" or value[-1] in "'\"":
        return "the quotes are part of the value"
    return ""


def _explain_workers(text: str) -> tuple[str, str] | None:
    """Recognize a worker count in another tool's syntax. Return an explanation and the number."""
    text = text.strip()
    if found := re.fullmatch(r"([\w.-]+:)+(\d+)(\(.*\))?", text):
        return f"{text} has the form TYPE:COUNT, as in SLURM_GPUS_PER_NODE", found[2]
    if found := re.fullmatch(r"(\d+)\(x\d+\)", text):
        return f"{text} has the form COUNT(xNODES), as in SLURM_TASKS_PER_NODE", found[1]
    if re.fullmatch(r"\d+(,\d+)+", text):
        return f"{text} is a list, as in CUDA_VISIBLE_DEVICES", str(text.count(",") + 1)
    return None


def blank(what: str, word: str) -> UsageError:
    """Return the error for a blank argument, usually caused by an empty shell variable.

    Args:
        what: the expected argument, such as `the script`.
        word: the argument.
    """
    hint = "delete the space or carriage return after a backslash at the end of a line"
    if not word:
        hint = (
            "the command line contains an empty argument, perhaps a quoted variable that is unset"
        )
    return UsageError(f"{what} is blank: {word!r}", hint=hint)


def unknown_command(argv: Sequence[str], commands: Sequence[str]) -> UsageError:
    """Return the error for a command line whose first word is not a command.

    Args:
        argv: the whole command line.
        commands: all commands.
    """
    word = argv[0]
    if not word.strip():
        return blank("the command", word)
    meant = (
        closest_match(word, ["--version", "--help"])
        if word.startswith("--") and not argv[1:]
        else ""
    )
    if meant:
        return UsageError(f"unknown flag: {word}", hint=f"did you mean relight {meant}?")
    if word.startswith("-") or word.endswith(".py") or os.path.isfile(word):
        line = shlex.join(argv[:4]) + (" …" if len(argv) > 4 else "")
        return UsageError(f"{word} is not a command", hint=f"did you mean relight run {line}?")
    meant = _OTHER_COMMANDS.get(word) or closest_match(word, list(commands))
    hint = f"did you mean relight {meant}?" if meant else f"commands: {', '.join(commands)}"
    return UsageError(f"unknown command: {word}", hint=hint)
