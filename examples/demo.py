"""Demonstrate a restart and a warm launch: train digits.py on 4 workers, kill one half-way, and
watch it recover; then launch the same job again, and do the same with torchrun.

    python examples/demo.py

It exits 0 if the worker was killed, all workers were restarted, training resumed after the last
saved epoch, and the final accuracy is good.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

DIGITS = Path(__file__).resolve().parent / "digits.py"
WORKERS = 4
EPOCHS = 30
VICTIM = 2  # the rank to kill
KILL_AFTER = 12
GOOD_ACCURACY = 0.95
LIMIT_S = 300.0  # per job, for a very busy machine; all of them take less than a minute

EPOCH = re.compile(r"epoch +(\d+) of ")
RESUMING = re.compile(r"resuming after epoch (\d+) of ")
ACCURACY = re.compile(r"test accuracy: ([\d.]+)$")


class Story:
    """The progress of a job, parsed from its output.

    Args:
        find_victim: returns the pid of the worker to kill; None to skip the kill.
    """

    def __init__(self, find_victim: Callable[[], int] | None = None) -> None:
        self._find_victim = find_victim
        self._began = time.monotonic()
        self._killed_at = 0.0
        self.start_s = 0.0
        self.restart_s = 0.0
        self.epoch = 0
        self.pid = 0
        self.killed_after = 0
        self.resumed_after = 0
        self.accuracy = 0.0

    def read(self, line: str) -> None:
        """Process one line; kill the worker when the line is the one to wait for."""
        if match := EPOCH.match(line):
            self.epoch = int(match[1])
            if not self.start_s:
                self.start_s = time.monotonic() - self._began
            if self.resumed_after and not self.restart_s:
                self.restart_s = time.monotonic() - self._killed_at
            if self.epoch == KILL_AFTER and self._find_victim is not None and not self.pid:
                self._kill(self._find_victim())
        elif (match := RESUMING.search(line)) and self.pid:
            self.resumed_after = int(match[1])
        elif match := ACCURACY.match(line):
            self.accuracy = float(match[1])

    def _kill(self, pid: int) -> None:
        self.pid = pid
        self.killed_after = self.epoch
        self._killed_at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        say(f"kill -9 {pid}, which is rank {VICTIM}")

    def flaw(self) -> str:
        """Return the step that failed, or an empty string."""
        if not self.pid:
            return f"no worker was killed: the training did not get to epoch {KILL_AFTER}"
        if not self.resumed_after:
            return "the training did not resume from the checkpoint"
        if self.resumed_after < self.killed_after:
            return f"epoch {self.killed_after} was saved, but it resumed at {self.resumed_after}"
        if self.epoch != EPOCHS:
            return f"the training ended with epoch {self.epoch} of {EPOCHS}"
        if self.accuracy < GOOD_ACCURACY:
            return f"the accuracy is {self.accuracy}, below {GOOD_ACCURACY}"
        return ""


class Stop:
    """Handle Ctrl-C, SIGTERM and SIGHUP: stop the job, and exit when it has ended.

    A handler that raises could leave the job running if the signal arrives during its start.
    """

    def __init__(self) -> None:
        self.number = 0
        self._process: subprocess.Popen[str] | None = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def applies_to(self, process: "subprocess.Popen[str]") -> None:
        """Set the process to stop, and stop it now if a signal has already arrived."""
        self._process = process
        if self.number:
            process.terminate()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.number = self.number or number
        if self._process is not None:
            self._process.terminate()


class Jobs:
    """Runs the training several times, with its files in one directory.

    Args:
        folder: the directory.
        stop: stops the running job.
    """

    def __init__(self, folder: Path, stop: Stop) -> None:
        self._folder = folder
        self._stop = stop
        self.launcher = 0
        self.warm = False

    def relight(self, story: Story, epochs: int) -> int:
        """Run it with relight, show its output, and return the exit code."""
        logs = self._folder / "logs"
        # The process with the modules is kept for the next job, as long as this demo runs.
        options = ["--preload=torch,torch._dynamo", f"--keep-warm=while:{os.getpid()}"]
        # Each worker that loses its peer prints a traceback, which would bury the other lines here.
        options += ["--max-restarts=3", "--redirects=2", f"--log-dir={logs}"]
        say(f"relight run --nproc-per-node={WORKERS} {' '.join(options)} {os.path.relpath(DIGITS)}")
        command = [sys.executable, "-m", "relight", "run", *options]
        exit_code = self._run(command, story, epochs, shows=True)
        self.warm = any('"WarmProcessTaken"' in p.read_text() for p in logs.glob("*/events.jsonl"))
        return exit_code

    def torchrun(self, story: Story) -> int:
        """Run it with torchrun until training resumes, and return the exit code."""
        say(f"the same with torchrun --nproc-per-node={WORKERS} --max-restarts=3 …")
        command = [sys.executable, "-m", "torch.distributed.run", "--max-restarts=3"]
        return self._run(command, story, EPOCHS, shows=False)

    def _run(self, command: list[str], story: Story, epochs: int, *, shows: bool) -> int:
        checkpoint = self._folder / "digits.pt"
        checkpoint.unlink(missing_ok=True)
        script = [os.path.relpath(DIGITS), f"--epochs={epochs}", f"--checkpoint={checkpoint}"]
        with subprocess.Popen(
            [*command, f"--nproc-per-node={WORKERS}", *script],
            # torch leaves its own directory among the temporary files. Without the other
            # variable, torchrun's restarts may fail.
            env={
                **os.environ,
                "TMPDIR": str(self._folder),
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if shows else subprocess.DEVNULL,
            text=True,
        ) as process:
            self.launcher = process.pid
            self._stop.applies_to(process)
            watchdog = threading.Timer(LIMIT_S, process.terminate)
            watchdog.start()
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    if shows:
                        print(line, end="", flush=True)
                    story.read(line)
                    if story.restart_s and not shows:
                        break
                else:
                    return process.wait()
                return 0
            finally:
                watchdog.cancel()
                process.terminate()  # it is still running if stdout is no longer read


def main() -> int:
    """Run the demo; return 0 if every step succeeded."""
    stop = Stop()
    # The directory, with the checkpoint and the logs, is removed at the end.
    with tempfile.TemporaryDirectory(prefix="relight-demo-") as name:
        folder = Path(name)
        jobs = Jobs(folder, stop)
        first = Story(lambda: rank_in_logs(folder / "logs"))
        flaw = _ended(jobs.relight(first, EPOCHS)) or first.flaw()
        if not (flaw or stop.number):
            print()
            again = Story()
            flaw = _ended(jobs.relight(again, epochs=2))
            if not (flaw or jobs.warm or stop.number):
                say("the second start was not a warm one: `relight run -v …` says why")
        other: Story | None = None
        if not (flaw or stop.number):
            print()
            other = Story(lambda: rank_of(jobs.launcher))
            jobs.torchrun(other)
    if stop.number:
        say("interrupted")
        return 128 + stop.number
    if flaw or other is None:
        say(f"failed: {flaw}")
        return 1
    tell(first, again, other)
    return 0


def _ended(exit_code: int) -> str:
    return f"relight ended with {exit_code}" if exit_code else ""


def tell(first: Story, again: Story, other: Story) -> None:
    """Print what happened, and how long it took."""
    print()
    say(f"killed     rank {VICTIM} (pid {first.pid}), after epoch {first.killed_after} was saved")
    say(f"resumed    after epoch {first.resumed_after} of {EPOCHS}, from the checkpoint")
    say(f"accuracy   {first.accuracy:.4f} on images that are not in the training set")
    print()
    say(f"{'':42}   relight  torchrun")
    rows = (
        ("start to the first trained epoch", first.start_s, other.start_s),
        ("the same job again, which is warm now", again.start_s, other.start_s),
        ("kill -9 of a worker to the next epoch", first.restart_s, other.restart_s),
    )
    for what, ours, theirs in rows:
        say(f"{what:42} {shown(ours):>9} {shown(theirs):>9}")


def shown(seconds: float) -> str:
    """Format a time; `-` if the job did not get that far."""
    return f"{seconds:.2f} s" if seconds else "-"


def rank_in_logs(logs: Path) -> int:
    """Return the pid of the worker to kill, from relight's event log (--log-dir).

    Raises:
        LookupError: the log does not contain it.
    """
    (events,) = logs.glob("*/events.jsonl")
    for line in events.read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "WorkerStarted" and event["rank"] == VICTIM:
            return int(event["pid"])
    raise LookupError(f"no rank {VICTIM} in {events}")


def rank_of(launcher: int) -> int:
    """Return the pid of the worker to kill, a child of torchrun's process.

    Raises:
        LookupError: the process does not exist.
    """
    for children in Path(f"/proc/{launcher}/task").glob("*/children"):
        for pid in children.read_text().split():
            if f"RANK={VICTIM}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return int(pid)
    raise LookupError(f"no rank {VICTIM} below {launcher}")


def say(message: str) -> None:
    """Print a line of the demo itself."""
    print(f"demo: {message}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
