"""Restarts and launches with preloaded modules: `python -m benchmarks.warm [--rounds 5]`.

    restart   from kill -9 of a worker to the first trained step of all workers in the next
              generation (DDP, gloo, 2 and 4 workers): torchrun with its best settings, and relight
              cold, with named modules, and with auto
    loss      two agents with `--nnodes=1:2` and a worker each: from killing all processes of the
              agent that does not host the endpoint to the first trained step of the other agent's
              next generation
    spare     the same with `--nnodes=2` and a third agent as a spare, to the first trained step of
              both remaining agents
    cut       three hosts in network namespaces, with `--nnodes=2` and a spare: the cable of one
              host is pulled. From the report that it is lost to the first trained step of the other
              host and the spare; relight only
    launch    from the start to the first trained step of 1, 2 and 4 workers, and the memory that
              all processes use at that point with 4 workers (PSS). auto: with a script that an
              earlier job has run; warm: with a script whose earlier job has left a warm process
              (`--keep-warm`)
    idle      the cost of a warm process while no job is running: its memory, and how often it wakes
              up in 10 s

The launchers alternate. Writes `warm.json`, `warm.md` and `warm.png` to `benchmarks/results/`.

torchrun runs with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, because otherwise a restart may get the
addresses of the previous generation. `--preload=auto` learns sooner here than after the usual 20 s.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import results
from benchmarks.jobs import family, pss
from benchmarks.nodes import LAST_CALL, free_port, hosts
from relight.base.text import pluralize
from relight.warm import import_profile

WORKER = str(Path(__file__).with_name("warm_worker.py"))
MODULES = "torch,torch.nn.parallel,torch.distributed,torch._dynamo"
LEARN_S = 6
_SOONER = (
    "from relight.cli.main import entry; from relight.core.workers import import_ahead; "
    f"import_ahead.LEARN_S = {LEARN_S}; entry()"
)
LAUNCHERS = {
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
    "cold": [sys.executable, "-m", "relight", "run"],
    "named": [sys.executable, "-m", "relight", "run", f"--preload={MODULES}"],
    "auto": [sys.executable, "-c", _SOONER, "run", "--preload=auto"],
    "warm": [sys.executable, "-m", "relight", "run", f"--preload={MODULES}", "--keep-warm"],
}
TITLES = {
    "torchrun": "torchrun",
    "cold": "relight",
    "named": f"relight --preload={MODULES}",
    "auto": "relight --preload=auto",
    "warm": "relight --keep-warm, next job",
}
COLOURS = {
    "torchrun": results.COLOURS["torchrun"],
    "cold": "#f0b999",
    "named": results.COLOURS["relight"],
    "auto": "#8c3a12",
    "warm": "#3f1a08",
}
BENCHMARKS = ("restart", "loss", "spare", "cut", "launch", "idle")
_IDLE_S = 10
Samples = dict[str, dict[str, list[float]]]
LIMIT_S = 600.0
"""A job that has not ended by then is killed."""


class Step(NamedTuple):
    """The report of a worker that has completed its first step."""

    restart: int
    rank: int
    pid: int
    world: int


def restart_s(launcher: str, nproc: int) -> float:
    """Return the seconds from kill -9 of rank 0 to the first step of the whole next generation."""
    flags = [f"--nproc-per-node={nproc}", "--max-restarts=1"]
    with directory(), agent(launcher, flags, "stay") as process:
        steps = [step(process) for _ in range(nproc)]
        settle(launcher, 1)
        pid = next(each.pid for each in steps if each.rank == 0)
        begin = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        for _ in range(nproc):
            if step(process).restart != 1:
                raise RuntimeError("a step of the first generation after its end")
        seconds = time.monotonic() - begin
        check_warm(launcher)
        return seconds


def loss_s(launcher: str) -> float:
    """Return the seconds from losing one of two nodes to the first trained step on the other
    one.
    """
    flags = _meet("1:2")
    with (
        directory(),
        agent(launcher, flags[0], "stay") as stays,
        agent(launcher, flags[1], "stay", lost=True) as goes,
    ):
        for process in (stays, goes):
            while step(process).world != 2:  # one of them may have started alone
                pass
        settle(launcher, 2)
        begin = time.monotonic()
        kill(goes)
        while step(stays).world != 1:
            pass
        seconds = time.monotonic() - begin
        check_warm(launcher)
        return seconds


def spare_s(launcher: str) -> float:
    """Return the seconds from losing one of two nodes to the first trained step on the other node
    and on a third one that has been waiting as a spare.
    """
    if launcher == "auto":
        _learn()
    flags = _meet("2")
    with (
        directory(),
        agent(launcher, flags[0], "stay") as stays,
        agent(launcher, flags[1], "stay", lost=True) as goes,
    ):
        for process in (stays, goes):
            step(process)
        with agent(launcher, flags[1], "stay") as spare:
            settle(launcher, 3)
            time.sleep(5)  # let it wait for a while
            begin = time.monotonic()
            kill(goes)
            for process in (stays, spare):
                step(process)
            seconds = time.monotonic() - begin
            check_warm(launcher)
            Path("stop").touch()  # before waiting for the agent that hosts the endpoint
            stays.wait(60)
        return seconds


def cut_s(launcher: str) -> float:
    """Return the seconds from the report that a node is lost, because its cable was pulled, to the
    first trained step on the other node and on a spare.
    """
    names = ["node1", "node2", "node3"]
    flags = [
        "--nproc-per-node=1",
        "--nnodes=2",
        "--max-restarts=3",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=node1:29400",
        "--rdzv-id=bench",
        "--log-dir=logs",
    ]
    with directory(), hosts(names) as lab, open("stderr", "ab") as stderr:

        def start(name: str) -> "subprocess.Popen[bytes]":
            started: subprocess.Popen[bytes] = lab[name].start(
                [*LAUNCHERS[launcher], *flags, WORKER, "stay"],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
            return started

        stays, goes = start("node1"), start("node2")
        for process in (stays, goes):
            step(process)
        spare = start("node3")
        settle(launcher, 3)
        time.sleep(3)
        lab.cut("node2")
        for process in (stays, spare):
            step(process)
        seen = time.monotonic()
        check_warm(launcher)
        known = map(json.loads, events().splitlines())
        notice = min(x["t"] for x in known if x["event"] == "GroupStopped")
        for process in (stays, goes, spare):
            assert process.stdout is not None
            process.stdout.close()
        return seen - float(notice)


def launch(launcher: str, nproc: int) -> tuple[float, float]:
    """Return the seconds from starting a job to its first step on all workers, and its MiB by
    then.
    """
    if launcher == "auto":
        _learn()
    flags = [f"--nproc-per-node={nproc}"]
    with directory(), _warm_process(launcher, flags) as others:
        begin = time.monotonic()
        with agent(launcher, flags, "stay") as process:
            for _ in range(nproc):
                step(process)
            seconds = time.monotonic() - begin
            time.sleep(0.5)
            _check_taken(launcher)
            pids = {pid for each in (process.pid, *others) for pid in family(each)}
            return seconds, sum(map(pss, pids)) / 1024


def idle() -> tuple[float, float]:
    """Return the MiB of a warm process without a job, and how often it wakes up in 10 s."""
    with directory(), _warm_process("warm", ["--nproc-per-node=2"]) as pids:
        (pid,) = pids
        before = _switches(pid)
        time.sleep(_IDLE_S)
        return sum(map(pss, family(pid))) / 1024, _switches(pid) - before


@contextlib.contextmanager
def _warm_process(launcher: str, flags: list[str]) -> Iterator[list[int]]:
    """Create a warm process for jobs in this directory; yield its pid, or nothing for other
    launchers.
    """
    if launcher != "warm":
        yield []
        return
    # If each worker has a processor, the first job would not wait for its warm process.
    _relight("warm", "start", f"--preload={MODULES}", *flags, WORKER)
    with agent(launcher, flags, "stay") as process:
        step(process)
    for path in ("stop", "stderr"):
        Path(path).unlink()
    shutil.rmtree("logs")
    time.sleep(1)
    found = json.loads(_relight("warm", "list", "--json"))
    try:
        yield [each["pid"] for each in found]
    finally:
        _relight("warm", "stop")


def _relight(*words: str) -> str:
    command = [sys.executable, "-m", "relight", *words]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, env=variables, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def _switches(pid: int) -> int:
    """Return how often a process went to sleep or was preempted (proc(5), status)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)


def _check_taken(launcher: str) -> None:
    if launcher == "warm" and '"WarmProcessTaken"' not in events():
        raise RuntimeError("the job has not taken the warm process:\n" + events())


def _meet(nnodes: str) -> list[list[str]]:
    """Return the flags for the node that hosts the endpoint, and the flags for the others."""
    common = [
        "--nproc-per-node=1",
        f"--nnodes={nnodes}",
        "--max-restarts=3",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{free_port()}",
        "--rdzv-id=bench",
    ]
    return [[*common, f"--rdzv-conf={LAST_CALL},is_host={host}"] for host in (1, 0)]


def _learn() -> None:
    """Run a job with --preload=auto, unless that has been done already."""
    if not Path(import_profile.directory(os.environ)).exists():
        with directory(), agent("auto", ["--nproc-per-node=1"], "stay") as process:
            step(process)
            settle("auto", 1)


def settle(launcher: str, nodes: int) -> None:
    """Wait until everything that follows a launch has been done."""
    if launcher in ("named", "auto"):
        until(lambda: events().count('"PreloadReady"') == nodes)
    time.sleep(1)


def check_warm(launcher: str) -> None:
    """Raise RuntimeError if workers that should have started warm have started cold."""
    if launcher in ("named", "auto"):
        if '"WorkersForked", "warm": true' not in events():
            raise RuntimeError("the workers started cold:\n" + events())
        if '"PreloadWithout"' in events():
            raise RuntimeError("workers import what was left out:\n" + events())


@contextlib.contextmanager
def directory() -> Iterator[None]:
    """Work in a new temporary directory."""
    before, path = os.getcwd(), tempfile.mkdtemp(prefix="relight-bench-")
    os.chdir(path)
    try:
        yield
    finally:
        os.chdir(before)
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def agent(
    launcher: str, flags: list[str], *arguments: str, lost: bool = False, worker: str = WORKER
) -> Iterator["subprocess.Popen[bytes]"]:
    """Start an agent in the working directory. End it, unless it is `lost` by then."""
    variables = {"OMP_NUM_THREADS": "1"}
    if launcher == "torchrun":
        variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    else:
        flags = ["--log-dir=logs", "--shutdown-timeout=5", *flags]
    with open("stderr", "ab") as stderr:
        process = subprocess.Popen(
            [*LAUNCHERS[launcher], *flags, worker, *arguments],
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
    limit = threading.Timer(LIMIT_S, kill, [process])
    limit.start()
    try:
        yield process
        if not lost:
            Path("stop").touch()
            process.communicate(timeout=LIMIT_S)
            if process.returncode:
                said = Path("stderr").read_text(errors="replace")[-4000:]
                raise RuntimeError(f"{launcher} ended with {process.returncode}\n{said}")
    finally:
        limit.cancel()
        kill(process)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill an agent and everything that it has started, to simulate the loss of the machine."""
    try:
        pids = family(process.pid)
    except FileNotFoundError:
        pids = {process.pid} if process.poll() is None else set()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def step(process: "subprocess.Popen[bytes]") -> Step:
    """Return the next worker that has completed its first step."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("the job ended before it should\n" + events())
    return Step(*map(int, line.split()))


def events() -> str:
    """Return the event logs of the agents in this directory."""
    return "".join(path.read_text() for path in Path().glob("logs/*/events.jsonl"))


def until(condition: Callable[[], bool], limit_s: float = 120) -> None:
    """Wait until a condition holds.

    Raises:
        TimeoutError: if it does not hold in time.
    """
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {limit_s:.0f} s:\n{events()}")
        time.sleep(0.1)


def main() -> None:
    """Run the benchmarks, print the table, and write the results."""
    parser = results.arguments("Measure warm restarts and launches.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=BENCHMARKS)
    parser.add_argument("--without", nargs="+", choices=list(LAUNCHERS), default=[])
    options = parser.parse_args()
    launchers = [name for name in LAUNCHERS if name not in options.without]
    samples: Samples = {}
    cache = tempfile.TemporaryDirectory(prefix="relight-bench-")
    os.environ["XDG_CACHE_HOME"] = cache.name  # discards what --preload=auto learns
    os.environ["XDG_RUNTIME_DIR"] = cache.name  # keeps other warm processes unaffected

    def note(row: str, launcher: str, value: float) -> None:
        samples.setdefault(row, {}).setdefault(launcher, []).append(value)
        print(row, launcher, round(value, 3), flush=True)

    for number in range(options.rounds):
        for launcher in launchers[:: -1 if number % 2 else 1]:
            is_kept = launcher == "warm"  # the setting only matters for launches
            if "restart" in options.only and not is_kept:
                for nproc in (2, 4):
                    note(f"restart of {nproc} workers, s", launcher, restart_s(launcher, nproc))
            if "loss" in options.only and not is_kept:
                note("loss of 1 node of 2, s", launcher, loss_s(launcher))
            if "spare" in options.only and not is_kept:
                note("loss of 1 node of 2 with a spare, s", launcher, spare_s(launcher))
            if "cut" in options.only and launcher in ("cold", "named"):
                note("cable of 1 node of 2 pulled, with a spare, s", launcher, cut_s(launcher))
            if "launch" in options.only:
                for nproc in (1, 2, 4):
                    seconds, mib = launch(launcher, nproc)
                    note(f"launch of {pluralize(nproc, 'worker')}, s", launcher, seconds)
                note("memory of 4 workers and launcher, MiB", launcher, mib)
            if "idle" in options.only and is_kept:
                mib, switches = idle()
                note("memory of a warm process, idle, MiB", launcher, mib)
                note(f"its wake-ups in {_IDLE_S} s", launcher, switches)
        text = results.write(options.out, "warm", samples, _as_text(samples, launchers))
        _plot(samples, options.out)
    cache.cleanup()
    print(text)


def _as_text(samples: Samples, launchers: list[str]) -> list[str]:
    rows = (
        " | ".join((row, *(results.spread(values.get(name, ()), count=True) for name in launchers)))
        for row, values in samples.items()
    )
    return [
        "Medians of so many samples, in turns; least and most in brackets. " + results.machine(),
        "",
        *results.table(" | ".join(("", *(TITLES[name] for name in launchers))), rows),
    ]


def _plot(samples: Samples, folder: str) -> None:
    units = [unit for unit in ("s", "MiB") if any(row.endswith(unit) for row in samples)]
    rows = [[row for row in samples if row.endswith(f", {unit}")] for unit in units]
    rows = [[row for row in group if "idle" not in row] for group in rows]
    figure, axes = results.plots([len(group) + 0.5 for group in rows], (10, 3.6))
    bars: dict[str, Any] = {}
    for axis, unit, group in zip(axes, units, rows, strict=True):
        measured = [{name: samples[row][name] for name in LAUNCHERS if name in samples[row]}
                    for row in group]  # fmt: skip
        bars |= results.bars(axis, measured, 0.15, COLOURS)
        names = [row.rpartition(",")[0].replace(" and ", "\nand ") for row in group]
        axis.set_xticks(range(len(group)), names)
        axis.set_ylabel("seconds" if unit == "s" else unit, fontsize=8)
        if unit == "s":
            axis.set_yscale("log")
    titles = {**TITLES, "named": "relight --preload=torch,…"}
    figure.legend(list(bars.values()), [titles[name] for name in bars], loc="upper center", ncol=5,
                  fontsize=8, frameon=False)  # fmt: skip
    results.save(figure, folder, "warm", within=(0, 0, 1, 0.93))


if __name__ == "__main__":
    main()
