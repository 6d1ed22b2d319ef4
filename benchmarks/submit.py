"""Time of whole commands on jobs: `python -m benchmarks.submit [--torchx PATH] [--rounds 15]`.

    dry run      submit --dryrun of dist.ddp for this machine, and for Slurm
    no-op        submit of `true` to this machine, from start to end, output followed
    status       of a job that is not there
    help         of the command

PATH is the `torchx` command of an environment of its own; without it, relight is measured alone.
Both have their bytecode from a run that does not count, an empty home, and take turns; the medians
count. Writes `submit.json` and `submit.md` into `benchmarks/results/` (`--out` for elsewhere).
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

LIMIT_S = 120.0
RELIGHT = (sys.executable, "-m", "relight")
_DDP = ("dist.ddp", "-j", "1x2", "--script", "train.py")
_TRUE = ("utils.binary", "--entrypoint", "true")
_IN_PLACE = ("--workspace", "")  # torchx would otherwise build an image, or copy


class Case(NamedTuple):
    """One command line, for each launcher; `code` is how it has to end."""

    title: str
    relight: tuple[str, ...]
    torchx: tuple[str, ...]
    code: tuple[int, ...] = (0,)


class Sample(NamedTuple):
    """One run: seconds on the clock, and of processors."""

    wall_s: float
    cpu_s: float


CASES = {
    "dry-run": Case(
        "`--dryrun` of `dist.ddp -j 1x2`, this machine",
        ("submit", "--dryrun", "-s", "local", *_DDP),
        ("run", "--dryrun", *_IN_PLACE, "-s", "local_cwd", *_DDP),
    ),
    "dry-run-slurm": Case(
        "the same for Slurm",
        ("submit", "--dryrun", "-s", "slurm", *_DDP),
        ("run", "--dryrun", *_IN_PLACE, "-s", "slurm", *_DDP),
    ),
    "no-op": Case(
        "a job of one `true` on this machine, start to end",
        ("submit", "-s", "local", *_TRUE),
        ("run", *_IN_PLACE, "-s", "local_cwd", *_TRUE),
    ),
    "status": Case(
        "status of a job that is not there",
        ("status", "local://relight/nothing"),
        ("status", "local_cwd://torchx/nothing"),
        (1, 2),
    ),
    "help": Case("`--help`", ("--help",), ("--help",)),
}
Samples = dict[str, dict[str, list[Sample]]]


def sample(command: tuple[str, ...], case: Case, folder: str) -> Sample:
    """Run a command once in a directory and return what it took."""
    hidden = ("PYTHON", "RELIGHT", "TORCHX", "PET_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
    environment |= {
        "HOME": folder,
        "RELIGHT_STATE_DIR": os.path.join(folder, "state"),
        "PYTHONPYCACHEPREFIX": os.path.join(folder, "bytecode"),
    }
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    found = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=LIMIT_S,
        check=False,
    )
    wall, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if found.returncode not in case.code:
        said = found.stderr.decode(errors="replace").strip().splitlines()
        raise RuntimeError(f"{' '.join(command)}: {found.returncode}: {said[-1:]}")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Sample(wall, used)


def measure(torchx: str, rounds: int, names: list[str], folder: str) -> Samples:
    """Return samples by case and launcher, taken in turns after one that does not count."""
    Path(folder, "train.py").write_text("pass\n")
    launchers = {"relight": RELIGHT} | ({"torchx": (torchx,)} if torchx else {})
    samples: Samples = {name: {launcher: [] for launcher in launchers} for name in names}
    for number in range(rounds + 1):
        for name in names:
            for launcher in sorted(launchers, reverse=bool(number % 2)):
                words: tuple[str, ...] = getattr(CASES[name], launcher)
                found = sample((*launchers[launcher], *words), CASES[name], folder)
                if number:
                    samples[name][launcher].append(found)
    return samples


def table(samples: Samples, rounds: int) -> str:
    """Return the medians as Markdown."""
    lines = [
        f"Medians of {rounds} samples, in turns; in brackets, least and most on the clock. "
        f"{os.cpu_count()} processors, Linux {platform.release().partition('-')[0]}, "
        f"Python {platform.python_version()}.",
        "",
    ]
    launchers = list(next(iter(samples.values())))
    compared = len(launchers) > 1
    heads = [
        "",
        *launchers,
        *(f"{each}, processor" for each in launchers),
        *(["relight is faster by"] if compared else []),
    ]
    lines += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, by_launcher in samples.items():
        walls = [_milliseconds([found.wall_s for found in by_launcher[each]]) for each in launchers]
        cpus = [f"{_median(by_launcher[each], 'cpu_s') * 1e3:.0f} ms" for each in launchers]
        cells = [CASES[name].title, *walls, *cpus]
        if compared:
            ours, theirs = (_median(by_launcher[each], "wall_s") for each in launchers)
            cells.append(f"{theirs / ours:.1f} times")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _median(samples: list[Sample], field: str) -> float:
    return float(statistics.median(getattr(each, field) for each in samples))


def _milliseconds(values: list[float]) -> str:
    low, middle, high = (f(values) * 1e3 for f in (min, statistics.median, max))
    return f"{middle:.0f} ms ({low:.0f} … {high:.0f})"


def main() -> None:
    """Measure, print the table, write the results."""
    parser = argparse.ArgumentParser(description="Measure relight's commands beside torchx's.")
    parser.add_argument("--torchx", default="", metavar="PATH", help="the command to compare with")
    parser.add_argument("--rounds", type=int, default=15, help="samples of each; default 15")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--out", default=str(Path(__file__).with_name("results")))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        samples = measure(options.torchx, options.rounds, options.only, folder)
    text = table(samples, options.rounds)
    os.makedirs(options.out, exist_ok=True)
    Path(options.out, "submit.md").write_text(text)
    plain = {
        name: {launcher: [each._asdict() for each in found] for launcher, found in group.items()}
        for name, group in samples.items()
    }
    Path(options.out, "submit.json").write_text(json.dumps(plain, indent=1) + "\n")
    print(f"{text}\nwritten to {options.out}")


if __name__ == "__main__":
    main()
