"""Finds what sets a locked option in another way: words for sbatch, and sbatch's variables, which
take precedence over the options in a script.

Source: sbatch(1).
"""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from relight.schedulers.api import Locks

_FLAGS: Mapping[str, tuple[str, ...]] = {
    "partition": ("partition", "p"),
    "time": ("time", "t", "time-min"),
    "account": ("account", "A"),
    "qos": ("qos", "q"),
    "constraint": ("constraint", "C", "cluster-constraint"),
    "comment": ("comment",),
    "mail-user": ("mail-user",),
    "mail-type": ("mail-type",),
    "nodelist": ("nodelist", "w", "nodefile", "F"),
    "exclude": ("exclude", "x"),
    "exclusive": ("exclusive", "oversubscribe", "s"),
    "mem": ("mem", "mem-per-cpu", "mem-per-gpu"),
    "gpus": ("gpus", "G", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "gres"),
    "gpu_type": ("gpus", "G", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "gres"),
    "signal": ("signal",),
    "image": ("container", "container-id", "container-image"),
    "container": ("container", "container-id", "container-image"),
    "requeue": ("requeue", "no-requeue"),
    "array": ("array", "a"),
}  # fmt: skip
"""The flags of sbatch that set the same thing as an option. An option's flag is the first one."""
_VARIABLES = {
    "partition": ("SBATCH_PARTITION",),
    "time": ("SBATCH_TIMELIMIT",),
    "account": ("SBATCH_ACCOUNT",),
    "qos": ("SBATCH_QOS",),
    "constraint": ("SBATCH_CONSTRAINT", "SBATCH_CLUSTER_CONSTRAINT"),
    "exclusive": ("SBATCH_EXCLUSIVE",),
    "mem": ("SBATCH_MEM_PER_NODE", "SBATCH_MEM_PER_CPU", "SBATCH_MEM_PER_GPU"),
    "gpus": ("SBATCH_GPUS", "SBATCH_GPUS_PER_NODE", "SBATCH_GPUS_PER_TASK", "SBATCH_GRES"),
    "gpu_type": ("SBATCH_GPUS", "SBATCH_GPUS_PER_NODE", "SBATCH_GPUS_PER_TASK", "SBATCH_GRES"),
    "signal": ("SBATCH_SIGNAL",),
    "image": ("SBATCH_CONTAINER", "SBATCH_CONTAINER_ID"),
    "container": ("SBATCH_CONTAINER", "SBATCH_CONTAINER_ID"),
    "requeue": ("SBATCH_REQUEUE", "SBATCH_NO_REQUEUE"),
    "array": ("SBATCH_ARRAY_INX",),
}
_WITHOUT_VALUE = "HIKOQVWhksv"
"""sbatch's short flags without a value, which can precede another one in a word: -Hp gpu."""


def bypasses(
    cfg: Mapping[str, Any], locks: Locks, variables: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield what sets a locked option in another way, and the option's name.

    Args:
        cfg: the scheduler's options.
        locks: the locked options.
        variables: the environment in which sbatch runs.
    """
    words = () if locks.sets("sbatch", cfg) else cfg.get("sbatch") or ()
    for option in locks.names:
        for word in words:
            if any(_is_meant(given, flag) for given in _words(word) for flag in _flags(option)):
                yield f"-cfg sbatch={word}", option
        for name in _VARIABLES.get(option, ()):
            if name in variables and variables[name] != str(cfg.get(option)):
                yield f"{name}={variables[name]}", option


def _flags(option: str) -> tuple[str, ...]:
    return _FLAGS.get(option, ())


def _words(text: str) -> list[str]:
    """Return the words of a line after #SBATCH, which may contain several options."""
    try:
        return shlex.split(text)
    except ValueError:  # sbatch rejects it
        return text.split()


def _is_meant(word: str, flag: str) -> bool:
    """Return whether a word sets a flag. As getopt_long does, sbatch accepts a long flag's first
    letters.
    """
    if len(flag) == 1:
        short = word[1:] if word.startswith("-") and not word.startswith("--") else ""
        return flag in short[: len(short) - len(short.lstrip(_WITHOUT_VALUE)) + 1]
    name = word.removeprefix("--").partition("=")[0]
    return word.startswith("--") and bool(name) and flag.startswith(name)
