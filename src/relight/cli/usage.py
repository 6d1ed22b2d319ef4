"""The help of commands that take flags, made from their table."""

from collections.abc import Iterable

from relight.spec import Flag

_WIDTH = 34


def flag_lines(flags: Iterable[Flag]) -> list[str]:
    """Return a line a flag: its names, what it takes, its help."""
    lines = []
    for flag in flags:
        name = f"-{flag.short}, --{flag.name}" if flag.short else f"    --{flag.name}"
        left = f"  {name} {flag.metavar}".rstrip()
        lines.append(f"{left}{' ' * max(2, _WIDTH - len(left))}{flag.help}")
    return lines


def run_help(flags: Iterable[Flag], command: str = "run") -> str:
    """Return the help of `relight run` or `relight launch`."""
    lines = [
        f"usage: relight {command} [flags] SCRIPT [arguments of the script]",
        "",
        "Starts the workers of this node and keeps them alive. Flags have torchrun's names and",
        "meanings; dashes and underscores are the same. PET_<FLAG> variables give defaults, as",
        "there; RELIGHT_PRELOAD gives that of --preload.",
        "",
    ]
    lines += flag_lines(flags)
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


def coordinator_help(flags: Iterable[Flag]) -> str:
    """Return the help of `relight coordinator`."""
    return "\n".join([
        "usage: relight coordinator [flags]",
        "",
        "Coordinates jobs of several nodes from a machine that need not train. The jobs name it in",
        "--rdzv-endpoint. Killed and started again, it finds them as they are; no worker notices.",
        "",
        *flag_lines(flags),
        "",
        "examples:",
        "  relight coordinator --bind head-node:29400",
        "  relight run --nnodes=4 --rdzv-backend=c10d --rdzv-endpoint=head-node --rdzv-id=7 …",
        "  relight coordinator --rdzv-backend=etcd --rdzv-endpoint=etcd:2379 --rdzv-id=7",
        "",
        "It ends on SIGTERM or SIGINT, exit code 0.",
    ])  # fmt: skip
