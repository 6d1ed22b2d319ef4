"""Restarts and first launches with modules preloaded: `python -m benchmarks.warm [--rounds 5]`.

    restart   kill -9 of a worker to the first trained step of all workers of the next generation
              (DDP, gloo): torchrun at its best setting, relight cold, with named modules, auto
    launch    start to the first trained step of 4 workers, and the memory that all processes of
              the job take then (PSS): torchrun, relight cold, relight with named modules

The launchers take turns. Writes `warm.json` and `warm.md` into `benchmarks/results/`.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from benchmarks.jobs import family, pss

WORKER = str(Path(__file__).with_name("warm_worker.py"))
MODULES = "torch,torch.nn.parallel,torch.distributed,torch._dynamo"
_RELIGHT = [sys.executable, "-m", "relight", "run", "--log-dir=logs", "--shutdown-timeout=5"]
LAUNCHERS = {
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
    "cold": _RELIGHT,
    "named": [*_RELIGHT, f"--preload={MODULES}"],
    "auto": [*_RELIGHT, "--preload=auto"],
}
TITLES = {
    "torchrun": "torchrun",
    "cold": "relight",
    "named": f"relight --preload={MODULES}",
    "auto": "relight --preload=auto",
}


def restart_s(launcher: str, nproc: int) -> float:
    """Seconds from kill -9 of rank 0 to the first trained step of all of the next generation."""
    with _job(launcher, [f"--nproc-per-node={nproc}", "--max-restarts=1"], "stay") as (process, _):
        steps = [_step(process) for _ in range(nproc)]
        if launcher == "auto":
            _until(lambda: '"PreloadReady"' in _events())
        time.sleep(1)  # whatever was to be done after the launch is done
        pid = next(pid for _, rank, pid in steps if rank == 0)
        begin = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        for _ in range(nproc):
            restart, _, _ = _step(process)
            if restart != 1:
                raise RuntimeError("a step of the first generation after its end")
        seconds = time.monotonic() - begin
        if launcher in ("named", "auto") and '"WorkersWarm", "warm": true' not in _events():
            raise RuntimeError("the workers started cold:\n" + _events())
        return seconds


def launch(launcher: str, nproc: int) -> tuple[float, float]:
    """Seconds from the start of a job to the first trained step of all workers, and MiB then."""
    with _job(launcher, [f"--nproc-per-node={nproc}"], "stay") as (process, begin):
        for _ in range(nproc):
            _step(process)
        seconds = time.monotonic() - begin
        time.sleep(0.5)
        return seconds, sum(map(pss, family(process.pid))) / 1024


@contextmanager
def _job(
    launcher: str, flags: list[str], *arguments: str
) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    """Start a job in a directory of its own; yield it and the time of its start; end it."""
    before = os.getcwd()
    directory = tempfile.mkdtemp(prefix="relight-bench-")
    os.chdir(directory)
    variables = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    if launcher != "torchrun":
        del variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"]
    begin = time.monotonic()
    process = subprocess.Popen(
        [*LAUNCHERS[launcher], *flags, WORKER, *arguments],
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process, begin
        Path("stop").touch()
        process.communicate(timeout=60)
        if process.returncode:
            raise RuntimeError(f"{launcher} ended with {process.returncode}")
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        os.chdir(before)
        shutil.rmtree(directory)


def _step(process: subprocess.Popen[bytes]) -> tuple[int, int, int]:
    """Return the next worker that has made its first step: restart, rank, pid."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("the job ended before it should")
    restart, rank, pid = map(int, line.split())
    return restart, rank, pid


def _events() -> str:
    return "".join(path.read_text() for path in Path().glob("logs/*/events.jsonl"))


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("no warm spawner: " + _events())
        time.sleep(0.1)


def main() -> None:
    """Measure, print the table, write the results."""
    parser = argparse.ArgumentParser(description="Measure warm restarts and launches.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=["restart", "launch"])
    parser.add_argument("--without", nargs="+", choices=list(LAUNCHERS), default=[])
    parser.add_argument("--out", default=str(Path(__file__).with_name("results")))
    options = parser.parse_args()
    wanted = options.only or ["restart", "launch"]
    launchers = [name for name in LAUNCHERS if name not in options.without]
    samples: dict[str, dict[str, list[float]]] = {}

    def note(row: str, launcher: str, value: float) -> None:
        samples.setdefault(row, {}).setdefault(launcher, []).append(value)
        print(row, launcher, round(value, 3), flush=True)

    for number in range(options.rounds):
        for launcher in launchers[:: -1 if number % 2 else 1]:
            if "restart" in wanted:
                note("restart of 2 workers, s", launcher, restart_s(launcher, 2))
            if "launch" in wanted and launcher != "auto":
                seconds, mib = launch(launcher, 4)
                note("launch of 4 workers, s", launcher, seconds)
                note("memory of 4 workers and launcher, MiB", launcher, mib)
    lines = [
        f"Medians of {options.rounds}, in turns; in brackets, least and most. {os.cpu_count()} "
        f"processors, Python {platform.python_version()}, torch {version('torch')}.",
        "",
        "| | " + " | ".join(TITLES[name] for name in launchers) + " |",
        "|---" * (len(launchers) + 1) + "|",
    ]
    for row, values in samples.items():
        cells = [
            f"{statistics.median(v):.3g} ({min(v):.3g} … {max(v):.3g})" if v else ""
            for v in (values.get(name, []) for name in launchers)
        ]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    text = "\n".join(lines) + "\n"
    print(text)
    Path(options.out, "warm.json").write_text(json.dumps(samples, indent=1) + "\n")
    Path(options.out, "warm.md").write_text(text)


if __name__ == "__main__":
    main()
