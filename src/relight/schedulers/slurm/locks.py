"""Finds what sets a locked option in another way: words for sbatch, and sbatch's variables, which
take precedence over the options in a script.

Source: sbatch(1), and Slurm's slurm_opt.c.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from relight.schedulers.api import Locks

_GPUS = ("gpus", "G", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "gres", "tres-per-task")
_GPU_VARIABLES = ("SBATCH_GPUS", "SBATCH_GPUS_PER_NODE", "SBATCH_GPUS_PER_TASK",
                  "SBATCH_GPUS_PER_SOCKET", "SBATCH_GRES", "SBATCH_TRES_PER_TASK")  # fmt: skip
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
    "gpus": _GPUS,
    "gpu_type": _GPUS,
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
    "gpus": _GPU_VARIABLES,
    "gpu_type": _GPU_VARIABLES,
    "signal": ("SBATCH_SIGNAL",),
    "image": ("SBATCH_CONTAINER", "SBATCH_CONTAINER_ID"),
    "container": ("SBATCH_CONTAINER", "SBATCH_CONTAINER_ID"),
    "requeue": ("SBATCH_REQUEUE", "SBATCH_NO_REQUEUE"),
    "array": ("SBATCH_ARRAY_INX",),
}
_OF_ANY_KIND = ("gres", "tres-per-task", "SBATCH_GRES", "SBATCH_TRES_PER_TASK")
"""The flags and variables whose value lists resources of any kind, not only GPUs."""
_WITHOUT_VALUE = "HIKOQVWhksv"
"""sbatch's short flags without a value, which can precede another one in a word: -Hp gpu."""
_TEXTS = ("--comment", "--extra", "--job-name", "-J", "--wrap")
"""sbatch's flags whose value may look like a flag."""


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
    # sbatch's last --gres replaces the others, including the one in the script.
    replaced = "gres" if cfg.get("gpus") == "gres" else ""
    for option in locks.names:
        for word in words:
            flags = _FLAGS.get(option, ())
            if any(sets_flag(word, flag, of_any_kind=flag == replaced) for flag in flags):
                yield f"-cfg sbatch={word}", option
        for name in _VARIABLES.get(option, ()):
            if name in variables and _changes(name, variables[name], cfg.get(option)):
                yield f"{name}={variables[name]}", option


def _changes(name: str, value: str, locked: Any) -> bool:
    """Return whether a variable changes an option's value."""
    if name in ("SBATCH_REQUEUE", "SBATCH_NO_REQUEUE"):  # the value has no effect
        return bool(locked) is (name == "SBATCH_NO_REQUEUE")
    if name == "SBATCH_EXCLUSIVE":
        return not locked or value.lower() not in ("", "exclusive")
    return _concerns(name, value) and value != str(locked)


def _concerns(name: str, value: str) -> bool:
    """Return whether a value may change a request for GPUs. Shards and `mps` are parts of GPUs, and
    `none` cancels a request.
    """
    return name not in _OF_ANY_KIND or bool(re.search(r"\b(?:gpu|shard|mps|none)\b", value))


def sets_flag(text: str, flag: str, *, of_any_kind: bool = False) -> bool:
    """Return whether a line of sbatch options sets a flag. With `of_any_kind`, values that don't
    concern GPUs count as well.
    """
    words = _words(text)
    return any(
        _is_meant(word, flag)
        and (of_any_kind or _concerns(flag, word.partition("=")[2] or following))
        for word, following in zip(words, [*words[1:], ""], strict=True)
    )


def sets_output(text: str) -> bool:
    """Return whether a line of sbatch options names a file for the output. Text that only looks
    like a flag doesn't count. Locks can't ignore it, since `--mail-user --comment -p gpu` sets -p.
    """
    words = _words(text)
    pairs = zip(["", *words], words, strict=False)
    flags = [word for before, word in pairs if before not in _TEXTS]
    return any(_is_meant(word, flag) for word in flags for flag in ("output", "o"))


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
