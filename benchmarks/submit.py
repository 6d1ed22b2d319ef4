"""How long whole job commands take: `python -m benchmarks.submit [--torchx PATH] [--rounds 15]`.

    dry run      submit --dryrun of dist.ddp, for this machine and for Slurm
    no-op        submit `true` to this machine and follow its output to the end
    status       status of a job that does not exist
    help         help of the command

PATH is the `torchx` command in a separate environment; without it, only relight is measured. Both
commands start with compiled bytecode from a warm-up run and an empty home directory, and alternate.
Results are medians. Writes `submit.json` and `submit.md` to `benchmarks/results/` (use `--out` for
another directory).
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks import results

LIMIT_S = 120.0
RELIGHT = (sys.executable, "-m", "relight")
_DDP = ("dist.ddp", "-j", "1x2", "--script", "train.py")
_TRUE = ("utils.binary", "--entrypoint", "true")
_IN_PLACE = ("--workspace", "")  # otherwise torchx would build an image, or copy files


class Case(NamedTuple):
    """The command lines for each launcher; `code` is the expected exit code."""

    title: str
    relight: tuple[str, ...]
    torchx: tuple[str, ...]
    code: tuple[int, ...] = (0,)


class Sample(NamedTuple):
    """One run: elapsed seconds, and CPU seconds."""

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
        "a job that runs `true` once on this machine, launch to exit",
        ("submit", "-s", "local", *_TRUE),
        ("run", *_IN_PLACE, "-s", "local_cwd", *_TRUE),
    ),
    "status": Case(
        "status of a nonexistent job",
        ("status", "local://relight/nothing"),
        ("status", "local_cwd://torchx/nothing"),
        (1, 2),
    ),
    "help": Case("`--help`", ("--help",), ("--help",)),
}
Samples = dict[str, dict[str, list[Sample]]]


def sample(command: tuple[str, ...], case: Case, folder: str) -> Sample:
    """Run a command once in a directory, and return the time it took."""
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
    """Return samples by case and launcher; they alternate after a warm-up run each."""
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


def _as_text(samples: Samples, rounds: int) -> list[str]:
    launchers = list(next(iter(samples.values())))
    heads = ["", *launchers, *(f"{each}, CPU time" for each in launchers)]
    heads += ["relight is faster by"] if len(launchers) > 1 else []
    rows = []
    for name, by_launcher in samples.items():
        walls = [[1000 * each.wall_s for each in found] for found in by_launcher.values()]
        cpus = [statistics.median(each.cpu_s for each in found) for found in by_launcher.values()]
        cells = [CASES[name].title]
        cells += [results.spread(values, "{:.0f}".format, " ms") for values in walls]
        cells += [f"{1000 * value:.0f} ms" for value in cpus]
        if len(walls) > 1:
            ours, theirs = map(statistics.median, walls)
            cells.append(f"{theirs / ours:.1f} times")
        rows.append(" | ".join(cells))
    return [
        f"Medians of {rounds} samples, in turns; in brackets, least and most on the clock. "
        f"{results.machine(torch=False)}",
        "",
        *results.table(" | ".join(heads), rows),
    ]


def main() -> None:
    """Run the benchmarks, print the table, and write the results."""
    parser = results.arguments("Measure relight's commands beside torchx's.")
    parser.add_argument("--torchx", default="", metavar="PATH", help="the command to compare with")
    parser.add_argument("--rounds", type=int, default=15, help="samples of each; default 15")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        samples = measure(options.torchx, options.rounds, options.only, folder)
    plain = {
        name: {launcher: [each._asdict() for each in found] for launcher, found in group.items()}
        for name, group in samples.items()
    }
    text = results.write(options.out, "submit", plain, _as_text(samples, options.rounds))
    print(f"{text}\nwritten to {options.out}")


if __name__ == "__main__":
    main()
