"""The checks, most important first, because the time limit may cut off the last ones."""

import json
import os
import re
import statistics
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks import results
from benchmarks.gpu import card
from benchmarks.gpu.run import (
    MODULES,
    WORKER,
    Bench,
    Check,
    Facts,
    FailedError,
    Job,
    is_alive,
    kill,
    watch_memory,
)  # fmt: skip
from benchmarks.nodes import LAST_CALL, free_port

_ROOT = Path(__file__).resolve().parents[2]
_FREE_WITHIN_S = 1.0
_CONTEXT_MIB = 150.0
"""Less than the memory that any CUDA context takes."""
_ROUNDS = 3
_DEVICES = ("/dev/nvidia", "/dev/dri")
_COUNT = """
import os, sys, json, torch
found = {}
for value in json.loads(sys.argv[1]):
    reading, writing = os.pipe()
    if not os.fork():
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        if value is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = value
        os.write(writing, str(torch.cuda.device_count()).encode())
        os._exit(0)
    os.wait()
    found[str(value)] = int(os.read(reading, 9))
print("counts", json.dumps(found))
"""
"""The number of devices that torch counts for various values of CUDA_VISIBLE_DEVICES."""


def tutorial(bench: Bench) -> None:
    """Run `examples/hello_ddp.py`, torch's DDP tutorial, on one worker."""
    job = Job(bench, bench.folder("tutorial"), ["--nproc-per-node=1"],
              [str(_ROOT / "examples" / "hello_ddp.py")])  # fmt: skip
    bench.expect(job.wait(60) == 0, "examples/hello_ddp.py ends with exit code 0")
    backend = "nccl" if bench.is_cuda else "gloo"
    bench.expect(f"world_size = 1, rank = 0, backend={backend}" in job.output, f"over {backend}")


def preload(bench: Bench) -> None:
    """Restart with --preload, and check that CUDA and NCCL work in the forked worker."""
    before = bench.card.used_mib()
    flags = ["--nproc-per-node=1", "--max-restarts=2", f"--preload={MODULES}"]
    job = bench.job(bench.folder("preload"), flags, "hold", "--backend", _own_backend(bench))
    (first,) = job.of_generation(0)
    _expect_right(bench, first, "first worker")
    ready = job.wait_preloaded()
    warm = int(ready["pid"])
    bench.note(f"{ready['modules']} modules imported in {ready['seconds']:.1f} s")
    _expect_no_context(bench, {"warm process": warm, "agent": job.process.pid}, first["pid"])
    killed = kill(first["pid"])
    (second,) = job.of_generation(1)
    bench.note(f"first CUDA operation {second['first_op'] - killed:.2f} s after kill -9")
    _expect_warm(bench, second, "replacement")
    _expect_no_context(bench, {"warm process": warm}, second["pid"])
    bench.require(job.stop() == 0, "exit code 0")
    _expect_freed(bench, before, time.monotonic(), [second["pid"], warm], "end of the job")


def keep_warm(bench: Bench) -> None:
    """Fork a later job from a process without a CUDA context (--keep-warm with --preload=auto)."""
    before = bench.card.used_mib()
    folder = bench.folder("auto")
    nproc = "--nproc-per-node=1"
    backend = ("--backend", _own_backend(bench))
    job = bench.job(folder, [nproc, "--keep-warm"], "once", *backend)
    bench.expect(job.wait(60) == 0, "first job: exit code 0")
    (cold,) = job.of_generation(0)
    found: list[int] = []

    def is_there() -> bool:
        time.sleep(0.2)
        found[:] = [each["pid"] for each in bench.warm_processes()]
        return bool(found)

    bench.note(f"a process is left {bench.wait_for(is_there, 'a warm process', 45):.1f} s later")
    used = bench.card.used_mib() - before
    if bench.is_cuda:
        bench.expect(
            used < _CONTEXT_MIB,
            f"it takes no GPU memory ({max(0.0, used):.0f} MiB more in use than before)",
        )
    _expect_no_context(bench, {"warm process": found[0]}, 0)

    job = bench.job(folder, [nproc, "--keep-warm", "--max-restarts=1"], "hold", *backend)
    (second,) = job.of_generation(0)
    _expect_warm(bench, second, "next job")
    bench.note(
        f"start to first operation {second['first_op'] - job.begin:.2f} s, "
        f"cold {cold['imports_s'] + cold['context_s']:.1f} s of imports and context alone"
    )
    _expect_no_context(bench, {"warm process": found[0]}, second["pid"])
    killed = kill(second["pid"])
    (third,) = job.of_generation(1)
    _expect_warm(bench, third, "its restart")
    bench.note(f"first operation {third['first_op'] - killed:.2f} s after kill -9")
    bench.require(job.stop() == 0, "exit code 0")
    bench.expect(is_alive(found[0]), "the process stays after the job")
    _expect_freed(bench, before, time.monotonic(), [third["pid"]], "end of the job")
    bench.require(bench.relight("warm", "stop").returncode == 0, "relight warm stop ends it")

    job = bench.job(folder, [nproc, "--preload=auto", "--max-restarts=2"], "hold", *backend)
    (fourth,) = job.of_generation(0)
    job.wait_preloaded()
    Path(f"{job.stop_file}.raise").touch()
    (fifth,) = job.of_generation(1)
    _expect_warm(bench, fifth, "restart with --preload=auto after an exception")
    bench.require(job.stop() == 0, "exit code 0")
    _expect_freed(bench, before, time.monotonic(), [fourth["pid"], fifth["pid"]], "its end")


def two_ranks(bench: Bench) -> None:
    """Run two ranks that share one GPU over gloo, and restart them warm."""
    flags = ["--nproc-per-node=2", "--max-restarts=1", f"--preload={MODULES}"]
    job = bench.job(bench.folder("two"), flags, "hold", "--backend", "gloo")
    for facts in (first := job.of_generation(0, 2)):
        _expect_right(bench, facts, f"rank {facts['rank']} on {facts['device']}")
    job.wait_preloaded()
    killed = kill(first[1]["pid"])
    for facts in (second := job.of_generation(1, 2)):
        _expect_warm(bench, facts, f"rank {facts['rank']} after kill -9 of rank 1")
    last = max(facts["first_op"] for facts in second)
    bench.note(f"both ranks compute {last - killed:.2f} s after it")
    bench.require(job.stop() == 0, "exit code 0")


def restart_memory(bench: Bench) -> None:
    """Check that restarts after an exception and after kill -9 leave no GPU memory in use."""
    before = bench.card.used_mib()
    flags = ["--nproc-per-node=1", "--max-restarts=2"]
    job = bench.job(bench.folder("memory"), flags, "hold", "--mib", "2048")
    (first,) = job.of_generation(0)
    _note_held(bench, before)
    Path(f"{job.stop_file}.raise").touch()
    bench.wait_for(lambda: not is_alive(first["pid"]), "the end of the worker", 20)
    _expect_freed(bench, before, time.monotonic(), [first["pid"]], "exit after an exception")
    (second,) = job.of_generation(1)
    _expect_freed(bench, before, kill(second["pid"]), [second["pid"]], "kill -9")
    (third,) = job.of_generation(2)
    _note_held(bench, before)
    bench.require(job.stop() == 0, "exit code 0")
    _expect_freed(bench, before, time.monotonic(), [third["pid"]], "end of the job")


def node_loss(bench: Bench) -> None:
    """Check that killing one of two agents frees its worker's memory; the other keeps running."""
    before = bench.card.used_mib()
    common = [
        "--nproc-per-node=1", "--nnodes=1:2", "--max-restarts=3", "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=gpu",
    ]  # fmt: skip
    folder = bench.folder("nodes")
    jobs = []
    for host in (1, 0):
        conf = f"--rdzv-conf={LAST_CALL},is_host={host}"
        jobs.append(
            bench.job(folder, [*common, conf], "hold", "--backend", "gloo", "--mib", "1024")
        )
    stays, goes = jobs

    def are_two() -> bool:
        return all(
            any(facts["world_size"] == 2 for facts in job.facts()) or _ended(job) for job in jobs
        )

    bench.wait_for(are_two, "a group of two nodes", 60)
    old = [[facts for facts in job.facts() if facts["world_size"] == 2][-1] for job in jobs]
    for facts in old:
        _expect_right(bench, facts, f"rank {facts['rank']}")
    _note_held(bench, before)
    killed = kill(goes.process.pid)
    goes.process.wait(10)
    pids = [facts["pid"] for facts in old]
    _expect_freed(bench, before, killed, pids, "kill -9 of an agent: both old workers")
    bench.wait_for(
        lambda: _ended(stays) or stays.facts()[-1]["world_size"] == 1, "a group of one node", 60
    )
    bench.note(
        f"the other node computes again after {stays.facts()[-1]['first_op'] - killed:.1f} s"
    )
    bench.require(stays.stop() == 0, "exit code 0")
    _expect_freed(bench, before, time.monotonic(), [stays.facts()[-1]["pid"]], "end of the job")


def kill_in_kernel(bench: Bench) -> None:
    """Kill a worker in a 10 s CUDA kernel; the job must restart, and the report name SIGKILL."""
    before = bench.card.used_mib()
    flags = ["--nproc-per-node=1", "--max-restarts=1"]
    job = bench.job(bench.folder("kernel"), flags, "kernel")
    (first,) = job.of_generation(0)
    time.sleep(0.5)
    if bench.is_cuda:
        bench.note(f"utilization then: {_utilization()}")
    _expect_freed(bench, before, kill(first["pid"]), [first["pid"]], "kill -9 in a kernel")
    (second,) = job.of_generation(1)
    _expect_right(bench, second, "restarted")
    time.sleep(0.5)
    killed = kill(second["pid"])
    code = job.wait()
    bench.note(f"second kill: the job ends after {time.monotonic() - killed:.2f} s with {code}")
    bench.expect(code != 0, "it has failed")
    bench.expect("SIGKILL" in "\n".join(job.report()), f"SIGKILL in the report: {_head(job, 3)}")
    _expect_freed(bench, before, killed, [second["pid"]], "its end")


def out_of_memory(bench: Bench) -> None:
    """Run out of CUDA memory in rank 1 of 2; the report must name the rank and the line."""
    report = _report_of_rank_1(bench, "oom")
    bench.expect(f"worker.py:{_line_of('out of memory')}" in report, "the line that asked for it")


def device_assert(bench: Bench) -> None:
    """Fail a device-side assertion in rank 1 of 2, and check the report."""
    _report_of_rank_1(bench, "assert")


def page_fault(bench: Bench) -> None:
    """Write to an unmapped address in rank 1 of 2; the report must include the driver's Xid."""
    report = _report_of_rank_1(bench, "fault")
    if os.access("/dev/kmsg", os.R_OK):
        bench.expect("Xid" in report, "the report has the Xid of the kernel's log")
    else:
        bench.note("/dev/kmsg can't be read here, so the report has no Xid")


def _report_of_rank_1(bench: Bench, mode: str) -> str:
    """Run a mode where rank 1 of 2 fails. Check that the report names it; return the report."""
    job = bench.job(bench.folder(mode), ["--nproc-per-node=2"], mode, "--backend", "gloo")
    job.of_generation(0, 2)
    bench.expect(job.wait(45) != 0, "the job has failed")
    report = "\n".join(job.report())
    bench.expect("rank 1" in report.partition("\n")[0], "rank 1 in the first line of the report")
    bench.note(f"the report: {_head(job)}")
    return report


def nccl_victims(bench: Bench) -> None:
    """Make ranks wait in NCCL for one that exited or never arrives; the report must name it."""
    backend = ("--backend", _own_backend(bench))
    job = bench.job(bench.folder("victims"), ["--nproc-per-node=3"], "wait", *backend)
    old = job.of_generation(0, 3)
    kill(old[1]["pid"])
    bench.expect(job.wait(60) != 0, "the job has failed")
    head = _head(job, 1)
    bench.expect("rank 1" in head and "SIGKILL" in head, f"kill -9 of rank 1: {head}")

    recorder = {"TORCH_FR_BUFFER_SIZE": "2000",
                "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{bench.place}/fr_"}  # fmt: skip
    flags = ["--nproc-per-node=3", "--hang-timeout=5"]
    job = bench.job(bench.folder("victims"), flags, "wait", *backend, env=recorder)
    job.of_generation(0, 3)
    bench.expect(job.wait(60) == 124, "exit code 124")
    report = "\n".join(job.report())
    bench.expect("rank 1" in _head(job, 1), f"the rank that does not come: {_head(job, 12)}")
    bench.expect(f"worker.py:{_line_of('never arrives')}" in report, "its line")
    for path in Path(bench.place).glob("cache/torch/*"):
        bench.log(f"{path.name}: {path.stat().st_size} bytes, {path.stat().st_mtime:.2f}")
    bench.note(f"the others' line {'is' if 'all_reduce' in report else 'is not'} in the report, "
               f"torch's flight recorder {'too' if 'flight' in report else 'is not'}")  # fmt: skip


def survivors(bench: Bench) -> None:
    """Kill one of three ranks in a recoverable function; the others must keep their processes."""
    before = bench.card.used_mib()
    flags = ["--nproc-per-node=3", "--max-restarts=2", f"--preload={MODULES}"]
    words = ["survivors", "--backend", _own_backend(bench)]
    hashes = set()
    for is_killed in (True, False):
        job = bench.job(bench.folder("survivors"), flags, *words)
        old = job.of_generation(0, 3)
        job.wait_preloaded()
        Path(job.stop_file).touch()
        if is_killed:
            time.sleep(0.3)  # kill it midway through its steps
            killed = kill(old[1]["pid"])
            new = job.of_generation(1, 3)
            kept = [now["pid"] == then["pid"] for now, then in zip(new, old, strict=True)]
            bench.expect(kept == [True, False, True], "ranks 0 and 2 keep their process")
            bench.require(new[1]["warm"], "rank 1 is forked warm")
            seconds = max(facts["first_op"] for facts in new) - killed
            bench.note(f"kill -9 to the next step of all ranks: {seconds:.2f} s")
            # A new DistributedDataParallel sums gradients in a different order.
            words.append(f"--wrap-at={new[0]['begin']}")
        ends = job.of_generation(-1, 3)
        bench.require(job.wait() == 0, "exit code 0")
        hashes |= {facts["hash"] for facts in ends}
        if is_killed:
            bench.note(next((line for line in job.output.splitlines() if "stayed" in line), ""))
    bench.log(f"{hashes}")
    bench.expect(len(hashes) == 1, f"then {words[-1]}: the same weights without a failure")
    pids = [facts["pid"] for facts in ends]
    _expect_freed(bench, before, time.monotonic(), pids, "end of the job")


def virtual_local_rank(bench: Bench) -> None:
    """Check that --virtual-local-rank shows each worker its GPU as device 0, even if forked."""
    base = ["--virtual-local-rank", "--nproc-per-node=1"]
    folder = bench.folder("virtual")
    flags = [*base, "--max-restarts=1", f"--preload={MODULES}"]
    job = bench.job(folder, flags, "hold", "--backend", _own_backend(bench))
    (first,) = job.of_generation(0)
    bench.expect(first["visible"] == "0" and first["local_rank"] == 0, "CUDA_VISIBLE_DEVICES=0")
    _expect_right(bench, first, "worker")
    job.wait_preloaded()
    kill(first["pid"])
    (second,) = job.of_generation(1)
    bench.expect(second["visible"] == "0", "also in the replacement")
    _expect_warm(bench, second, "replacement")
    if bench.is_cuda:
        bench.expect(first["count"] == second["count"] == 1, "one device is visible")
    bench.require(job.stop() == 0, "exit code 0")
    done = bench.relight("run", "--virtual-local-rank", "--nproc-per-node=2", "--no-python",
                         "true", env={"CUDA_VISIBLE_DEVICES": "0"})  # fmt: skip
    text = " ".join(done.stdout.split())
    bench.expect(done.returncode == 2 and "no device for local rank 1" in text,
                 f"two workers for CUDA_VISIBLE_DEVICES=0 are refused: {text[:160]}")  # fmt: skip
    if bench.card.uuid:
        job = bench.job(folder, base, "once", env={"CUDA_VISIBLE_DEVICES": bench.card.uuid})
        (third,) = job.of_generation(0)
        bench.expect(third["visible"] == bench.card.uuid and third["count"] == 1, "by UUID")


def visible_devices(bench: Bench) -> None:
    """Check that --nproc-per-node=gpu and auto count what torch counts, with
    CUDA_VISIBLE_DEVICES.
    """
    uuid = bench.card.uuid
    values = [None, "0", "", "-1", "0,7", "7", "0,0", *([uuid, uuid[:12]] if uuid else [])]
    done = bench.run([sys.executable, "-c", _COUNT, json.dumps(values)], limit_s=60)
    counted = json.loads(done.stdout.partition("counts ")[2] or "{}")
    if not counted:
        raise FailedError("torch did not count the devices")
    bench.require(counted["None"] >= 1, "torch counts a GPU")
    for value in values:
        expected = counted[str(value)]
        shown = "unset" if value is None else "the UUID" if value == uuid else repr(value)
        for word in ("gpu", "auto"):
            own = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
            flags = [f"--nproc-per-node={word}", "--no-python"]
            done = bench.relight("run", *flags, "sh", "-c", "echo of $WORLD_SIZE", env=own)
            match = re.search(r"^of (\d+)$", done.stdout, re.MULTILINE)
            workers = int(match[1]) if match else 0
            if expected:
                is_right = workers == expected
            elif word == "auto":
                is_right = workers >= 1  # the number of processors
            else:
                is_right = done.returncode == 2 and "no gpu that can be used" in done.stdout
            text = f"{shown}: `{word}` starts {workers}, torch counts {expected}"
            bench.expect(is_right, text)


def sight(bench: Bench) -> None:
    """Check that a busy GPU appears in `relight top`, `relight status` and the metrics."""
    port = free_port()
    flags = ["--nproc-per-node=1", "--name=busy", f"--status=127.0.0.1:{port},public"]
    job = bench.job(bench.folder("sight"), flags, "busy")
    job.of_generation(0)
    time.sleep(2.5)  # the driver averages the utilization over a second
    top = bench.relight("top", "--once").stdout
    line = next((line for line in top.splitlines() if line.startswith("GPUs here")), "")
    bench.expect(bool(line) or not bench.is_cuda, f"relight top: {line or 'no line of GPUs'}")
    if bench.is_cuda:
        bench.note(f"nvidia-smi: {_utilization()}")
        match = re.search(r"0: (\d+)% (\d+)/(\d+) GiB", line)
        bench.expect(match is not None and int(match[1]) > 10, "top shows a busy GPU")
    status = bench.relight("status", "busy").stdout
    bench.require("RUNNING" in status, "relight status: RUNNING")
    lines = _gpu_lines(status, bench)
    bench.expect(bool(lines) or not bench.is_cuda, f"relight status shows the GPU {lines}".strip())
    metrics = ""

    def is_served() -> bool:
        nonlocal metrics
        with suppress(OSError):
            address = f"http://127.0.0.1:{port}/metrics"
            with urllib.request.urlopen(address, timeout=5) as answer:
                metrics = answer.read().decode()
        return bool(metrics)

    try:
        bench.wait_for(is_served, "metrics", 10)
    except FailedError:
        bench.note("no metrics (they need the package prometheus-client)")
    else:
        bench.log(metrics[:6000])
        bench.require("relight_rank_cpu_seconds_total" in metrics, "metrics of the rank")
        shown = [line for line in metrics.splitlines()
                 if "gpu" in line.partition("{")[0] and line[0] != "#"]  # fmt: skip
        text = f"metrics of the GPU {', '.join(shown[:4])}".strip()
        bench.expect(bool(shown) or not bench.is_cuda, text)
    bench.require(job.stop() == 0, "exit code 0")


def health_check(bench: Bench) -> None:
    """Check that --health-check=gpu passes for a free GPU and fails for one in use."""
    bench.card.release()  # so that this process isn't found as a holder of the device
    flags = ["run", "--nproc-per-node=1", "--no-python"]
    done = bench.relight(*flags, "--health-check=gpu", "true")
    bench.expect(done.returncode == 0, f"a free GPU passes {_first_line(done.stdout)}")
    shown = bench.relight(*flags, "--health-check=nvidia-smi -L; exit 1", "true")
    bench.expect(shown.returncode == 4 and bench.card.name in shown.stdout,
                 f"a command that fails is shown: {_first_line(shown.stdout)}")  # fmt: skip
    job = bench.job(bench.folder("health"), ["--nproc-per-node=1"], "hold", "--mib", "2048")
    job.of_generation(0)
    done = bench.relight(*flags, "--health-check=gpu", "true")
    bench.expect(done.returncode == 4 and "use" in done.stdout,
                 f"a GPU in use does not: {_first_line(done.stdout)}")  # fmt: skip
    done = bench.relight("run", "--nproc-per-node=2", "--no-python", "--health-check=gpu", "true")
    bench.expect(done.returncode == 4, f"2 workers for 1 GPU: {_first_line(done.stdout)}")
    bench.require(job.stop() == 0, "exit code 0")


def doctor(bench: Bench) -> None:
    """Check the output of `relight doctor` on this machine."""
    bench.card.release()
    done = bench.relight("doctor", "-v")
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    bench.require(done.returncode in (0, 1), f"exit code {done.returncode}")
    text = " ".join(line for line in lines if "gpu" in line.lower())
    bench.expect("1 GPU" in text or not bench.is_cuda, f"{text or 'nothing about GPUs'}")
    errors = [line for line in lines if line.startswith("error")]
    bench.note(f"errors: {' / '.join(errors) or 'none'}")


def restart_times(bench: Bench) -> None:
    """Measure kill -9 to the replacement's first CUDA operation; the launchers alternate."""
    flags = ["--nproc-per-node=1", f"--max-restarts={_ROUNDS}"]
    jobs = {
        "torchrun": bench.job(bench.folder("times"), flags, "hold", launcher="torchrun"),
        "relight": bench.job(bench.folder("times"), flags, "hold"),
        f"relight --preload={MODULES}": bench.job(
            bench.folder("times"), [*flags, f"--preload={MODULES}"], "hold"
        ),
    }
    for job in jobs.values():
        job.of_generation(0)
    warm = f"relight --preload={MODULES}"
    jobs[warm].wait_preloaded()
    samples: dict[str, list[float]] = {name: [] for name in jobs}
    contexts = []
    try:
        for number in range(_ROUNDS):
            for name in list(jobs)[:: -1 if number % 2 else 1]:
                (old,) = jobs[name].of_generation(number)
                killed = kill(old["pid"])
                (new,) = jobs[name].of_generation(number + 1)
                samples[name].append(new["first_op"] - killed)
                contexts.append(new["context_s"])
                if name == warm:
                    bench.require(new["warm"], f"round {number + 1} is warm")
    finally:
        _note_samples(bench, samples)
        if contexts:
            bench.note(f"of that, first use of the device {statistics.median(contexts):.2f} s")
    for name, job in jobs.items():
        bench.require(job.stop() == 0, f"{name}: exit code 0")


def start_times(bench: Bench) -> None:
    """Measure the start of a job to its first CUDA operation; the launchers alternate."""
    folder = bench.folder("starts")
    flags = ["--nproc-per-node=1"]
    warm = "relight, kept warm"
    made = bench.relight("warm", "start", f"--preload={MODULES}", *flags, WORKER, cwd=folder,
                         limit_s=40)  # fmt: skip
    bench.has_warm_processes = True
    bench.require(made.returncode == 0, "relight warm start")
    samples: dict[str, list[float]] = {name: [] for name in ("torchrun", "relight", warm)}
    try:
        for number in range(_ROUNDS):
            for name in list(samples)[:: -1 if number % 2 else 1]:
                more = [f"--preload={MODULES}", "--keep-warm"] if name == warm else []
                launcher = name if name == "torchrun" else "relight"
                job = bench.job(folder, [*flags, *more], "once", launcher=launcher)
                (facts,) = job.of_generation(0)
                samples[name].append(facts["first_op"] - job.begin)
                if name == warm:
                    bench.require(facts["warm"], f"round {number + 1} is warm")
                bench.require(job.wait() == 0, f"{name}: exit code 0")
    finally:
        _note_samples(bench, samples)


def at_the_end(bench: Bench) -> None:
    """Check that no additional GPU memory is in use at the end, and no process is left."""
    before = bench.shared["before_mib"]
    _expect_freed(bench, before, time.monotonic(), [], "all checks")
    found = bench.warm_processes()
    bench.expect(not found, f"no warm process is left {[each['pid'] for each in found] or ''}")


CHECKS = (
    Check("tutorial", "DDP tutorial, 1 GPU", 90, tutorial),
    Check("preload", f"restart with `--preload={MODULES}`", 75, preload),
    Check("keep-warm", "`--keep-warm`, `--preload=auto`", 90, keep_warm),
    Check("two-ranks", "2 ranks on 1 GPU, gloo, DDP, restarted warm", 60, two_ranks),
    Check("survivors", "`relight.worker.recoverable`, 3 ranks", 120, survivors),
    Check("victims", "ranks that wait in NCCL", 100, nccl_victims),
    Check("memory", "memory after a restart", 60, restart_memory),
    Check("node-loss", "memory after the loss of a node", 60, node_loss),
    Check("kernel", "SIGKILL during a kernel", 60, kill_in_kernel),
    Check("oom", "CUDA out of memory", 40, out_of_memory),
    Check("assert", "device-side assertion", 40, device_assert),
    Check("fault", "page fault of a kernel", 40, page_fault, needs_gpu=True),
    Check("virtual", "`--virtual-local-rank`", 60, virtual_local_rank),
    Check("visible", "`--nproc-per-node=gpu`, `auto`, CUDA_VISIBLE_DEVICES", 45, visible_devices,
          needs_gpu=True),
    Check("sight", "`relight top`, `relight status`, metrics", 45, sight),
    Check("health", "`--health-check=gpu`", 45, health_check, needs_gpu=True),
    Check("doctor", "`relight doctor`", 30, doctor),
    Check("restarts", "kill -9 to the first CUDA operation", 90, restart_times),
    Check("starts", "start to the first CUDA operation", 80, start_times),
    Check("end", "after all checks", 20, at_the_end),
)  # fmt: skip


def _own_backend(bench: Bench) -> str:
    return "nccl" if bench.is_cuda else "gloo"


def _ended(job: Job) -> bool:
    if job.process.poll() is not None:
        raise FailedError(f"an agent ended with {job.process.returncode}")
    return False


def _expect_right(bench: Bench, facts: Facts, who: str) -> None:
    """Check the worker's results."""
    checked = ["math"]
    is_right = facts["right"]
    if "summed" in facts:
        checked += [f"{facts['backend']} all_reduce", "DDP gradients"]
        is_right = is_right and facts["summed"] and facts["averaged"]
    bench.expect(is_right, f"{who}: {', '.join(checked)} right")


def _expect_warm(bench: Bench, facts: Facts, who: str) -> None:
    """Check a worker that should have been forked from a process without a CUDA context."""
    bench.require(facts["warm"], f"{who}: forked with torch imported")
    bench.require(not facts["bad_fork"], f"{who}: forked before CUDA was initialized")
    text = f"{who} forked with torch, `is_initialized()` false before first use"
    if bench.expect(facts["warm"] and not facts["initialized"], text):
        _expect_right(bench, facts, who)


def _expect_no_context(bench: Bench, processes: dict[str, int], user: int) -> None:
    """Check processes for CUDA contexts; `user` is a process that has one, or 0."""
    if not bench.is_cuda:
        return
    apps = card.compute_apps()
    bench.log(f"  compute processes: {sorted(apps.pids)} {apps.problem}; {processes}, user {user}")
    for name, pid in processes.items():
        bench.require(is_alive(pid), f"{name} runs")
        opened = _devices_of(pid)
        if opened is None:
            bench.note(f"{name}: its open files can't be read here")
        else:
            bench.expect(not opened, f"{name} has no GPU open {' '.join(opened)}".rstrip())
        if user and user in apps.pids:
            bench.expect(pid not in apps.pids, f"nvidia-smi lists the worker, not the {name}")
    if user and user not in apps.pids:
        why = apps.problem or f"it lists {sorted(apps.pids) or 'none'}, not the worker {user}"
        bench.note(f"nvidia-smi's list of processes is no evidence here ({why})")


def _devices_of(pid: int) -> list[str] | None:
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return None
    found = set()
    for name in names:
        with suppress(OSError):
            found.add(os.readlink(f"{folder}/{name}"))
    return sorted(path for path in found if path.startswith(_DEVICES))


def _expect_freed(
    bench: Bench, before_mib: float, since: float, pids: Sequence[int], what: str
) -> None:
    freed = watch_memory(bench, before_mib, since, pids)
    if not bench.is_cuda:
        bench.expect(freed.after_event_s < float("inf"), f"{what}: the processes are gone")
        return
    is_soon = min(freed.after_event_s, freed.after_exit_s) <= _FREE_WITHIN_S
    bench.expect(is_soon, f"{what}: memory free within a second: {freed}")


def _note_held(bench: Bench, before_mib: float) -> None:
    if bench.is_cuda:
        bench.note(f"{bench.card.used_mib() - before_mib:.0f} MiB held")


def _note_samples(bench: Bench, samples: dict[str, list[float]]) -> None:
    for name, values in samples.items():
        bench.note(f"{name}: {results.spread(values, unit=' s', count=True) or 'no sample'}")


def _utilization() -> str:
    try:
        query = "--query-gpu=utilization.gpu,memory.used,memory.total"
        return " ".join(card.smi(query, "--format=csv,noheader").split())
    except OSError as error:
        return str(error)


def _gpu_lines(text: str, bench: Bench) -> str:
    words = ("GPU", *([bench.card.name] if bench.is_cuda else []))
    lines = [line.strip() for line in text.splitlines() if any(word in line for word in words)]
    return " / ".join(lines)


def _head(job: Job, number: int = 8) -> str:
    return " / ".join(line.strip() for line in job.report()[:number] if line.strip()) or "none"


def _first_line(text: str) -> str:
    return next((f"({line.strip()[:240]})" for line in text.splitlines() if line.strip()), "")


def _line_of(mark: str) -> int:
    """Return the line number of the worker's line that ends with a comment."""
    lines = Path(WORKER).read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))
