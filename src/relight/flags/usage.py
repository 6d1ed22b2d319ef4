"""Generates the help texts of commands from their flag tables."""

import textwrap
from collections.abc import Iterable

from relight.base.errors import signal_name
from relight.base.values import StreamChoice, parse_signals
from relight.flags.spec import UNSET_RUN_ID, Flag

_WIDTH = 34
_SCREEN = 80
_GROUPS = {
    "nnodes": "size",
    "rdzv-backend": "rendezvous",
    "max-restarts": "failures and restarts",
    "role": "job and script",
    "signals-to-handle": "starting and stopping workers",
    "log-dir": "output",
    "help": "other",
}
"""Maps the first flag of each group to the group's title. The groups are in the order of the flag
table.
"""
_EMPTY = {"local-ranks-filter": "all"}
"""The meaning of an empty tuple as a default value."""


def flag_lines(flags: Iterable[Flag]) -> list[str]:
    """Return the help lines for these flags, with their names, values, help texts and defaults."""
    lines = []
    for flag in flags:
        name = f"-{flag.short}, --{flag.name}" if flag.short else f"    --{flag.name}"
        value = f"[={flag.metavar}]" if flag.implied else f" {flag.metavar}"
        left = f"  {name}{value}".rstrip()
        default = shown_default(flag)
        text = f"{flag.help} [{default}]" if default else flag.help
        rows = textwrap.wrap(text, _SCREEN - _WIDTH, break_on_hyphens=False)
        if len(left) > _WIDTH - 2:
            rows.insert(0, "")
        lines += [(left.ljust(_WIDTH) + rows[0]).rstrip()]
        lines += [" " * _WIDTH + row for row in rows[1:]]
    return lines


def _grouped(flags: Iterable[Flag]) -> list[str]:
    """Return the help lines for these flags, under the titles of their groups."""
    lines = []
    for flag in flags:
        if flag.name in _GROUPS:
            lines += ["", f"{_GROUPS[flag.name]}:"]
        lines += flag_lines([flag])
    return lines


def shown_default(flag: Flag) -> str:
    """Return a flag's default as a user would type it, or an empty string if it isn't worth
    showing.
    """
    value = flag.default
    if flag.parse is None or value is None or value == UNSET_RUN_ID:
        return ""
    if flag.parse is parse_signals:
        return ",".join(map(signal_name, value))
    if isinstance(value, StreamChoice):
        return str(value.default)
    if isinstance(value, float):
        return f"{value:g}"
    if flag.name == "preload":
        return ",".join(value)
    return _EMPTY.get(flag.name, "") if value == () else str(value)


def run_help(flags: Iterable[Flag], command: str = "run") -> str:
    """Return the help text for `relight run` or `relight launch`."""
    flags = list(flags)
    *most, last = [flag.variable for flag in flags if flag.variable.startswith("RELIGHT_")]
    lines = [
        f"usage: relight {command} [flags] SCRIPT [arguments of the script]",
        "",
        "Starts this node's workers and supervises them. Flags have torchrun's",
        "names and meanings; dashes and underscores are interchangeable, and any",
        "unique prefix of a name is accepted. Put them before SCRIPT. Defaults are in",
        "brackets; PET_<FLAG> variables change them, as with torchrun, and so do",
        *textwrap.wrap(f"{', '.join(most)} and {last}.", _SCREEN),
    ]
    lines += _grouped(flags)
    lines += [
        "",
        "examples:",
        f"  relight {command} --nproc-per-node=4 train.py --epochs 3",
        f"  relight {command} --nproc-per-node=gpu --max-restarts=3 --tee=3 train.py",
        f"  relight {command} --nproc-per-node=2 -m package.train",
        "",
        "exit code: 0 on success; after a failure, that of the root cause (128 + n",
        "for signal n); 2 wrong usage",
    ]
    return "\n".join(lines)


def coordinator_help(flags: Iterable[Flag]) -> str:
    """Return the help text for `relight coordinator`."""
    return "\n".join([
        "usage: relight coordinator [flags]",
        "",
        "Coordinates multi-node jobs from a machine without workers. Jobs point --rdzv-endpoint",
        "at it. If the coordinator restarts, jobs reconnect and their workers keep running.",
        "",
        *flag_lines(flags),
        "",
        "examples:",
        "  relight coordinator --bind head-node:29400",
        "  relight run --nnodes=4 --rdzv-backend=c10d --rdzv-endpoint=head-node --rdzv-id=7 …",
        "  relight coordinator --rdzv-backend=etcd --rdzv-endpoint=etcd:2379 --rdzv-id=7",
        "",
        "It exits with 0 on SIGTERM or SIGINT.",
    ])  # fmt: skip
