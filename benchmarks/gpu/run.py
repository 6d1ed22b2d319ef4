"""Runs the checks one after another, each with a time limit, and the jobs that they start."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TextIO

import relight
from benchmarks.gpu.card import Card
from benchmarks.jobs import LAUNCHERS

WORKER = str(Path(__file__).with_name("worker.py"))
MODULES = "torch,torch._dynamo"
POLL_S = 0.01
END_S = 20.0
"""How long a job may take to exit after its stop file appears."""
SLACK_MIB = 48.0
"""How far the memory in use may differ; a CUDA context alone takes several hundred MiB."""
_MAX_LOGGED = 12_000
"""How many characters of a job's output are logged."""
_MAX_EVENTS = 6_000
_TOLD_S = 8.0
"""How long a job may take to exit after SIGTERM."""

Facts = dict[str, Any]


class TimeLimitError(Exception):
    """A check exceeded its time limit."""


class FailedError(Exception):
    """A precondition for the rest of a check was not met."""


class Check(NamedTuple):
    """A check, which fails if it takes longer than `limit_s`."""

    name: str
    title: str
    limit_s: float
    work: Callable[["Bench"], None]
    needs_gpu: bool = False


class Row(NamedTuple):
    """The outcome of a check; `result` is ok, FAILED, skipped or not run."""

    title: str
    result: str
    details: list[str]
    seconds: float = 0.0

    def as_text(self) -> str:
        """Return the row of the table."""
        cells = (self.title, self.result, "; ".join(self.details))
        return " | ".join(" ".join(cell.replace("|", "/").split()) for cell in cells)


class Bench:
    """State shared by the checks: the device, the log, the details so far, and the jobs to end."""

    def __init__(self, device: str, card: Card, log: TextIO) -> None:
        self.device = device
        self.card = card
        self.details: list[str] = []
        self.failed = self.has_warm_processes = False
        self.jobs: list[Job] = []
        self.shared: dict[str, Any] = {}
        self._log, self._begin = log, time.monotonic()
        self.place = tempfile.mkdtemp(prefix="relight-gpu-", dir="/tmp")
        # Warm processes, jobs and learned imports are kept separate from the user's.
        self.env = {
            **{name: value for name, value in os.environ.items() if not _is_relight_job(name)},
            "XDG_RUNTIME_DIR": self.place,
            "XDG_CACHE_HOME": os.path.join(self.place, "cache"),
            "PYTHONPATH": str(Path(relight.__file__).parent.parent),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
        }

    def log(self, text: str) -> None:
        """Append text to the log."""
        self._log.write(f"{time.monotonic() - self._begin:7.2f} {text.rstrip()}\n")
        self._log.flush()

    def note(self, text: str) -> None:
        """Add a detail to the check's row."""
        self.details.append(text)
        self.log(f"  {text}")

    def expect(self, condition: bool, text: str) -> bool:
        """Add a detail. If the condition does not hold, the check fails, but continues."""
        self.note(text if condition else f"**not: {text}**")
        self.failed = self.failed or not condition
        return condition

    def require(self, condition: bool, text: str) -> None:
        """Like `expect`, but add the detail only if the condition does not hold."""
        if not condition:
            self.expect(False, text)

    @property
    def is_cuda(self) -> bool:
        """Whether the checks use a GPU."""
        return self.device == "cuda"

    def folder(self, name: str) -> str:
        """Return a directory for jobs."""
        path = os.path.join(self.place, name)
        os.makedirs(path, exist_ok=True)
        return path

    def job(self, folder: str, flags: Sequence[str], mode: str, *words: str, **more: Any) -> "Job":
        """Start a job with our worker; it is ended together with the check."""
        return Job(self, folder, flags, [WORKER, mode, "--device", self.device, *words], **more)

    def relight(
        self,
        *words: str,
        cwd: str | None = None,
        limit_s: float = 30,
        env: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a relight command until it exits.

        Raises:
            FailedError: if it takes longer than `limit_s`.
        """
        command = [sys.executable, "-m", "relight", *words]
        return self.run(command, cwd=cwd, limit_s=limit_s, env=env)

    def run(
        self,
        command: list[str],
        *,
        cwd: str | None = None,
        limit_s: float = 30,
        env: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command until it exits.

        Raises:
            FailedError: if it takes longer than `limit_s`.
        """
        begin = time.monotonic()
        # Output does not go to a pipe, because processes left behind would keep it open.
        with tempfile.TemporaryFile("w+", dir=self.place, errors="replace") as out:
            process = subprocess.Popen(
                command, cwd=cwd or self.place, env={**self.env, **(env or {})},
                stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            )  # fmt: skip
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                if process.poll() is None:
                    process.kill()
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(2)
                out.seek(0)
                text = out.read()
                taken = time.monotonic() - begin
                self.log(f"$ {_shown(command)} {env or ''}\n{_cut(text)}"
                         f"-> {process.returncode} in {taken:.2f} s")  # fmt: skip
        if code is None:
            raise FailedError(f"no end within {limit_s:.0f} s: {_shown(command)}")
        return subprocess.CompletedProcess(command, code, text, "")

    def warm_processes(self) -> list[dict[str, Any]]:
        """Return the warm processes as listed by `relight warm list --json`."""
        text = self.relight("warm", "list", "--json").stdout
        begin = text.find("[")
        found: list[dict[str, Any]] = json.loads(text[begin:]) if begin >= 0 else []
        return found

    def wait_for(self, condition: Callable[[], bool], what: str, limit_s: float = 60) -> float:
        """Wait until a condition holds, and return how many seconds that took.

        Raises:
            FailedError: if it does not hold within `limit_s`.
        """
        begin = time.monotonic()
        while not condition():
            if time.monotonic() - begin > limit_s:
                raise FailedError(f"not within {limit_s:.0f} s: {what}")
            time.sleep(POLL_S)
        return time.monotonic() - begin

    def clean(self) -> None:
        """End the check's jobs and warm processes."""
        while self.jobs:
            self.jobs[-1].end()
            if self.failed:
                self.log(self.jobs[-1].last_events())
            self.jobs.pop()
        if self.has_warm_processes:
            with suppress(FailedError):
                self.relight("warm", "stop", limit_s=20)
            self.has_warm_processes = False


class Job:
    """A running job, launched with relight or torchrun.

    Args:
        bench: the state shared by the checks.
        folder: the job's working directory.
        flags: flags of `relight run`.
        command: the script and its arguments.
        launcher: relight or torchrun.
        env: additional environment variables.
    """

    def __init__(
        self,
        bench: Bench,
        folder: str,
        flags: Sequence[str],
        command: Sequence[str],
        *,
        launcher: str = "relight",
        env: dict[str, str] | None = None,
    ) -> None:
        self._bench = bench
        number = bench.shared["jobs"] = bench.shared.get("jobs", 0) + 1
        name = os.path.join(bench.place, f"job{number}")
        self.facts_file, self.stop_file = f"{name}.facts", f"{name}.stop"
        self.report_file, self.logs = f"{name}.json", f"{name}.logs"
        self._output = f"{name}.out"
        variables = {**bench.env, **(env or {})}
        if launcher == "torchrun":
            variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        else:
            flags = [*flags, f"--log-dir={self.logs}", "--shutdown-timeout=5",
                     f"--failure-report={self.report_file}"]  # fmt: skip
        if WORKER in command:
            command = [*command, "--facts", self.facts_file, "--stop", self.stop_file]
        self.command = [*LAUNCHERS[launcher], *flags, *command]
        bench.jobs.append(self)
        bench.has_warm_processes |= any("warm" in flag for flag in flags)
        self._is_logged = False
        self.begin = time.monotonic()
        with open(self._output, "w") as out:
            self.process = subprocess.Popen(
                self.command, cwd=folder, env=variables,
                stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            )  # fmt: skip

    @property
    def output(self) -> str:
        """The job's output."""
        return Path(self._output).read_text(errors="replace")

    def facts(self) -> list[Facts]:
        """Return the facts that workers have written, oldest first."""
        try:
            lines = Path(self.facts_file).read_text().splitlines()
        except OSError:
            return []
        return [json.loads(line) for line in lines]

    def of_generation(self, restart: int, count: int = 1, limit_s: float = 60) -> list[Facts]:
        """Wait for the facts from `count` workers of a generation, and return them by rank.

        Raises:
            FailedError: if they do not arrive, or the job ends first.
        """
        found: list[Facts] = []

        def has_come() -> bool:
            over = self.process.poll() is not None  # determined before reading the facts
            found[:] = [each for each in self.facts() if each["restart"] == restart]
            if len(found) < count and over:
                raise FailedError(
                    f"the job ended with {self.process.returncode} before {count} workers of "
                    f"restart {restart} used the device: {_last_lines(self.output)}"
                )
            return len(found) >= count

        self._bench.wait_for(has_come, f"first use of the device, restart {restart}", limit_s)
        return sorted(found, key=lambda each: int(each["rank"]))

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the events with this name from the agent's event log."""
        found = []
        for path in Path(self.logs).glob("*/events.jsonl"):
            for line in path.read_text(errors="replace").splitlines():
                with suppress(ValueError):  # an incomplete line
                    event = json.loads(line)
                    if event.get("event") == name:
                        found.append(event)
        return found

    def last_events(self) -> str:
        """Return the end of the event logs."""
        texts = [
            path.read_text(errors="replace") for path in Path(self.logs).glob("*/events.jsonl")
        ]
        return "".join(f"  events:\n{text[-_MAX_EVENTS:]}" for text in texts)

    def wait_preloaded(self) -> dict[str, Any]:
        """Wait until the modules have been imported, and return the event.

        Raises:
            FailedError: if that takes longer than a minute.
        """

        def is_ready() -> bool:
            for event in self.events("PreloadUnfit"):
                raise FailedError(f"no preload: {event['reason']}")
            return bool(self.events("PreloadReady"))

        self._bench.wait_for(is_ready, "event PreloadReady", 45)
        for event in self.events("PreloadWithout"):
            self._bench.note(f"left out of the preload: {event['module']} ({event['reason']})")
        return self.events("PreloadReady")[-1]

    def stop(self) -> int:
        """Tell the workers to exit, and return the job's exit code."""
        Path(self.stop_file).touch()
        return self.wait()

    def wait(self, limit_s: float = END_S) -> int:
        """Wait for the job to end, and return its exit code.

        Raises:
            FailedError: if it does not end in time.
        """
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise FailedError(f"the job did not end within {limit_s:.0f} s") from None

    def report(self) -> list[str]:
        """Return the lines of the failure report."""
        try:
            text = json.loads(Path(self.report_file).read_text())["text"]
        except (OSError, ValueError, KeyError):
            return []
        return text.splitlines() if isinstance(text, str) else list(text)

    def end(self) -> None:
        """End the job, with SIGKILL if necessary, and log its output."""
        for signum, limit_s in ((signal.SIGTERM, _TOLD_S), (signal.SIGKILL, 2.0)):
            if self.process.poll() is None:
                self.process.send_signal(signum)
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(limit_s)
        for facts in self.facts():
            if is_worker(facts["pid"]):  # relight has not ended it
                self._bench.log(f"worker {facts['pid']} was still there and is killed")
                kill(facts["pid"])
        if not self._is_logged:
            self._is_logged = True
            facts_text = "".join(f"  {facts}\n" for facts in self.facts())
            self._bench.log(
                f"$ {_shown(self.command)}\n{_cut(self.output)}{facts_text}"
                f"-> {self.process.returncode}"
            )


class Freed(NamedTuple):
    """Seconds until the memory was freed: since the event, and since the last process that used it
    exited. They are infinite if it never was. `used_mib` is the memory that is still in use.
    """

    after_event_s: float
    after_exit_s: float
    used_mib: float

    def __str__(self) -> str:
        if self.after_event_s == float("inf"):
            return f"{self.used_mib:.0f} MiB more than before are still in use"
        return (
            f"{self.after_event_s:.2f} s ({self.after_exit_s:.2f} s after the end of the process)"
        )


def watch_memory(
    bench: Bench, before_mib: float, since: float, pids: Sequence[int], limit_s: float = 15
) -> Freed:
    """Return how long it takes until the memory in use is back to `before_mib`."""
    left, gone_at = set(pids), since
    used = 0.0
    while time.monotonic() - since < limit_s:
        ended = {pid for pid in left if not is_alive(pid)}
        if ended:
            left -= ended
            gone_at = time.monotonic()
        used = bench.card.used_mib() - before_mib
        now = time.monotonic()
        if not left and used <= SLACK_MIB:
            return Freed(now - since, max(0.0, now - gone_at), used)
        time.sleep(POLL_S)
    return Freed(float("inf"), float("inf"), used)


def is_alive(pid: int) -> bool:
    """Return whether there is such a process; a zombie counts as exited."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return True
    return state not in "ZX"


def is_worker(pid: int) -> bool:
    """Return whether a process is one of our workers, because the pid may have been reused."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return WORKER.encode() in words and is_alive(pid)


def kill(pid: int) -> float:
    """Kill a process, and return the time."""
    now = time.monotonic()
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return now


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeLimitError inside the block once the time is up."""

    def expire(_number: int, _frame: FrameType | None) -> None:
        raise TimeLimitError(f"the check did not end within {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_check(bench: Bench, check: Check, left_s: float) -> Row:
    """Run a check within its own limit and the remaining time, and clean up afterwards."""
    if check.needs_gpu and not bench.is_cuda:
        return Row(check.title, "skipped", ["needs a GPU"])
    limit_s = min(check.limit_s, left_s)
    if limit_s < min(10.0, check.limit_s):
        return Row(check.title, "not run", ["no time was left"])
    bench.details, bench.failed = [], False
    bench.log(f"\n===== {check.name}: {check.title}")
    begin = time.monotonic()
    try:
        with time_limit(limit_s):
            check.work(bench)
    except (FailedError, TimeLimitError) as error:
        bench.failed = True
        bench.note(f"**{error}**")
    except Exception as error:
        bench.failed = True
        bench.note(f"**the check itself failed: {type(error).__name__}: {error}**")
        bench.log(traceback.format_exc())
    try:
        with time_limit(40):
            bench.clean()
    except Exception as error:
        bench.note(f"cleaning up: {type(error).__name__}: {error}")
        bench.log(traceback.format_exc())
    result = "FAILED" if bench.failed else "ok"
    seconds = time.monotonic() - begin
    bench.log(f"===== {check.name}: {result} in {seconds:.1f} s")
    return Row(check.title, result, bench.details, seconds)


def remove(bench: Bench) -> None:
    """Remove the checks' files."""
    shutil.rmtree(bench.place, ignore_errors=True)


def _is_relight_job(name: str) -> bool:
    """Return whether a variable would change how jobs run."""
    return name.startswith(("RELIGHT_", "PET_", "TORCHELASTIC_", "SLURM_")) or name in (
        "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES",
        "CUDA_LAUNCH_BLOCKING",
    )  # fmt: skip


def _shown(command: Sequence[str]) -> str:
    return " ".join(command).replace(f"{sys.executable} -m ", "")


def _cut(text: str) -> str:
    if len(text) > _MAX_LOGGED:
        half = _MAX_LOGGED // 2
        text = f"{text[:half]}\n[… {len(text) - 2 * half} characters …]\n{text[-half:]}"
    return text if not text or text.endswith("\n") else f"{text}\n"


def _last_lines(text: str, number: int = 3) -> str:
    return " / ".join([line.strip() for line in text.splitlines() if line.strip()][-number:])
