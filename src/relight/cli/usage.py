"""The help of commands that take flags, made from their table."""

from collections.abc import Iterable

from relight.spec import Flag

_WIDTH = 34


def run_help(flags: Iterable[Flag], command: str = "run") -> str:
    """Return the help of `relight run` or `relight launch`."""
    lines = [
        f"usage: relight {command} [flags] SCRIPT [arguments of the script]",
        "",
        "Starts the workers of this node and keeps them alive. Flags have torchrun's names and",
        "meanings; dashes and underscores are the same. PET_<FLAG> variables give defaults.",
        "",
    ]
    for flag in flags:
        name = f"-{flag.short}, --{flag.name}" if flag.short else f"    --{flag.name}"
        left = f"  {name} {flag.metavar}".rstrip()
        gap = " " * max(2, _WIDTH - len(left))
        lines.append(f"{left}{gap}{flag.help}")
    lines += [
        "",
        "examples:",
        f"  relight {command} --nproc-per-node=4 train.py --epochs 3",
        f"  relight {command} --nproc-per-node=gpu --max-restarts=3 --tee=3 train.py",
        f"  relight {command} --nproc-per-node=2 -m package.train",
        "",
        "exit code: the root cause's own, 128 + n for a signal; 0 if all ended well; 2 wrong usage",
    ]
    return "\n".join(lines)
