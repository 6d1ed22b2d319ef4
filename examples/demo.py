"""See a restart: train digits.py on 4 workers, kill one of them half-way, and watch.

    python examples/demo.py

It exits 0 if the worker was killed, the others were restarted with a new one, the training went on
after the last saved epoch, and the network reads well in the end.
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
from pathlib import Path
from types import FrameType

DIGITS = Path(__file__).resolve().parent / "digits.py"
WORKERS = 4
EPOCHS = 30
VICTIM = 2  # the rank to kill
KILL_AFTER = 12
GOOD_ACCURACY = 0.95
LIMIT_S = 300.0  # for a very busy machine; it takes about 10 s

EPOCH = re.compile(r"epoch +(\d+) of ")
RESUMING = re.compile(r"resuming after epoch (\d+) of ")
ACCURACY = re.compile(r"test accuracy: ([\d.]+)$")


class Story:
    """What has happened so far, from the lines that relight and the workers print."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._killed_at = 0.0
        self.epoch = 0
        self.pid = 0
        self.killed_after = 0
        self.restart_s = 0.0
        self.resumed_after = 0
        self.accuracy = 0.0

    def read(self, line: str) -> None:
        """Process one line; kill the worker when the line is the one to wait for."""
        if match := EPOCH.match(line):
            self.epoch = int(match[1])
            if self.epoch == KILL_AFTER and not self.pid:
                self._kill()
        elif (match := RESUMING.search(line)) and self.pid:
            self.restart_s = time.monotonic() - self._killed_at
            self.resumed_after = int(match[1])
        elif match := ACCURACY.match(line):
            self.accuracy = float(match[1])

    def _kill(self) -> None:
        self.pid = find_pid(self._logs, VICTIM)
        self.killed_after = self.epoch
        self._killed_at = time.monotonic()
        os.kill(self.pid, signal.SIGKILL)
        say(f"kill -9 {self.pid}, which is rank {VICTIM}")

    def tell(self) -> None:
        """Print what happened, in four lines."""
        print()
        say(f"killed     rank {VICTIM} (pid {self.pid}), after epoch {self.killed_after} was saved")
        say(f"restarted  {WORKERS} new workers were training {self.restart_s:.1f} s after the kill")
        say(f"resumed    after epoch {self.resumed_after} of {EPOCHS}, from the checkpoint")
        say(f"accuracy   {self.accuracy:.4f} on images that are not in the training set")

    def flaw(self) -> str:
        """Return the step that failed, or an empty text."""
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
    """What Ctrl-C, SIGTERM and SIGHUP do: they stop relight, and the demo ends when it has ended.

    A handler that raises could leave relight running, if it came while relight is being started.
    """

    def __init__(self) -> None:
        self.number = 0
        self._process: subprocess.Popen[str] | None = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def applies_to(self, process: "subprocess.Popen[str]") -> None:
        """Name the process to stop, now if the signal was quicker."""
        self._process = process
        if self.number:
            process.terminate()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.number = self.number or number
        if self._process is not None:
            self._process.terminate()


def main() -> int:
    """Run the demo; return 0 if all of it happened."""
    stop = Stop()
    # The directory, with the checkpoint and the logs, is removed at the end.
    with tempfile.TemporaryDirectory(prefix="relight-demo-") as folder:
        story = Story(Path(folder, "logs"))
        exit_code = train(Path(folder), story, stop)
    if stop.number:
        say("interrupted")
        return 128 + stop.number
    flaw = f"relight ended with {exit_code}" if exit_code else story.flaw()
    if flaw:
        say(f"failed: {flaw}")
        return 1
    story.tell()
    return 0


def train(folder: Path, story: Story, stop: Stop) -> int:
    """Run the training with its files in `folder`, and return the exit code of relight."""
    script = os.path.relpath(DIGITS)
    options = [f"--nproc-per-node={WORKERS}", "--max-restarts=3", "--preload=torch,torch._dynamo"]
    # Each worker that loses its peer prints a traceback, which would bury the other lines here.
    options += ["--redirects=2", f"--log-dir={folder / 'logs'}"]
    arguments = [f"--epochs={EPOCHS}", f"--checkpoint={folder / 'digits.pt'}"]
    say(" ".join(["relight run", *options, script, *arguments]))
    with subprocess.Popen(
        [sys.executable, "-m", "relight", "run", *options, script, *arguments],
        # torch leaves a directory of its own among the temporary files.
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        stop.applies_to(process)
        watchdog = threading.Timer(LIMIT_S, process.terminate)
        watchdog.start()
        assert process.stdout is not None
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                story.read(line)
            return process.wait()
        finally:
            watchdog.cancel()
            process.terminate()  # it still runs if the reader of stdout is gone


def find_pid(logs: Path, rank: int) -> int:
    """Return the pid of a worker, from the event log that relight keeps with --log-dir."""
    (events,) = logs.glob("*/events.jsonl")
    for line in events.read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "WorkerStarted" and event["rank"] == rank:
            return int(event["pid"])
    raise LookupError(f"no rank {rank} in {events}")


def say(message: str) -> None:
    """Print a line of the demo itself."""
    print(f"demo: {message}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
