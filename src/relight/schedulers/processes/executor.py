"""The executor: the process that runs one local job. It starts the job's replicas and stops them
together.

    submit --exec--> executor --> spawner --> replicas (agents) --> their workers

The executor works like an agent without a group. It uses the same state machine
(core/workers/supervision) and the same spawner, and treats replicas as workers. A job's processes
therefore never outlive its executor. The executor reads its order, a line of JSON, from stdin, and
writes `started` or an error to stdout. A detached executor runs in the background. Otherwise, the
executor stops the job when stdin is closed, which means that the submitting process has exited.
"""

import errno
import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from datetime import datetime
from typing import Any, NoReturn

from relight.base import env, fields
from relight.base.errors import EXIT_INTERNAL, RelightError, describe_bug, signal_name
from relight.events.event_types import SignalReceived, WorkerExited, WorkerStarted
from relight.host import files
from relight.host.descriptors import raise_limit
from relight.host.loop import Loop
from relight.job import records
from relight.output import error_files
from relight.processes.supervisor import Supervisor
from relight.processes.worker_processes import ProcessEvent, WorkerPlan
from relight.schedulers.failure_reason import cause, how_it_ended
from relight.schedulers.processes.orders import Order
from relight.schedulers.processes.record import LocalRecord

_LINE_LIMIT = 65536


class LogCopy:
    """Copies one of a replica's output streams to a file, and its complete lines to the combined
    log file.
    """

    def __init__(self, path: str, combined: int) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.reader, self.writer = os.pipe()
        self.lost = ""
        """The reason why some of the output is missing from the files, or empty."""
        self._combined = combined
        self._line = b""

    def copy(self) -> bool:
        """Copy the output that is available, and return whether more may follow."""
        data = os.read(self.reader, 65536)
        if not data:
            self.end_line()
            return False
        self._write(self.file, data)
        self._line += data
        cut = max(self._line.rfind(b"\n"), self._line.rfind(b"\r")) + 1
        if not cut and len(self._line) > _LINE_LIMIT:
            cut = len(self._line)
        self._write(self._combined, self._line[:cut])
        self._line = self._line[cut:]
        return True

    def end_line(self) -> None:
        """Copy the last line to the combined log file even though it lacks a line ending."""
        self._write(self._combined, self._line)
        self._line = b""

    def _write(self, fd: int, data: bytes) -> None:
        """Write all data. If the disk is full, the rest of the data is lost, but the job keeps
        running.
        """
        try:
            while data:
                data = data[os.write(fd, data) :]
        except OSError as error:
            self.lost = self.lost or error.strerror or "error"

    def is_ready(self) -> bool:
        """Return whether `copy` would not block."""
        poll = select.poll()  # select can't handle more than 1024 open files
        poll.register(self.reader, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close the descriptors."""
        for fd in (self.file, self.reader):
            os.close(fd)


class Executor:
    """Runs a job, from its first attempt to its last.

    Args:
        order: the job.
        submitter: a descriptor whose end-of-file stops the job, or None for a detached job.
    """

    def __init__(self, order: Order, submitter: int | None) -> None:
        self._order = order
        self._replicas = order.replicas
        self._submitter = submitter
        self._record = LocalRecord(order.directory)
        self._loop = Loop()
        # The token prevents other users on this machine from joining the job, and allows several
        # jobs of one user to share an endpoint.
        token = {"RELIGHT_TOKEN": records.token()}
        self._environment = {"PYTHONUNBUFFERED": "x", **token, **env.read().variables}
        self._supervisor: Supervisor | None = None
        """Only set during an attempt."""
        self._stopped = self._log_error = ""
        self._streams: list[tuple[LogCopy, LogCopy]] = []
        self._first_failed: int | None = None
        self._restarts = 0
        self._has_reported = False
        self._states = [self._pending(number) for number in range(len(self._replicas))]
        self._submitted = datetime.now().astimezone().isoformat(timespec="milliseconds")

    def run(self) -> None:
        """Run the job until it ends."""
        raise_limit()  # for open files; replicas keep the old limit
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.on_signal(number, self._on_signal)
        if self._submitter is not None:
            self._loop.on_readable(self._submitter, self._on_submitter_gone)
        self._record.write(self._state("RUNNING", ""))  # if this fails, the job is not started
        while True:
            failed = self._run_attempt()
            if not failed or self._stopped or self._restarts >= self._order.max_retries:
                break
            self._restarts += 1
            self._first_failed = None
            self._states = [self._pending(number) for number in range(len(self._replicas))]
        state = "CANCELLED" if self._stopped else "FAILED" if failed else "SUCCEEDED"
        why = self._stopped or (self._reason() if failed else "")
        lost = f"its logs are incomplete: {self._log_error}" if self._log_error else ""
        self._write_success(state)
        self._write(state, "; ".join(filter(None, (why, lost))))

    def _write_success(self, state: str) -> None:
        """Write the file that TorchX uses to mark logs as complete (nightly 2026.10.26)."""
        roles: dict[str, list[dict[str, Any]]] = {}
        for replica, now in zip(self._replicas, self._states, strict=True):
            roles.setdefault(replica.role, []).append(
                {
                    "replica_id": replica.replica,
                    "pid": now["pid"],
                    "exitcode": now["exitcode"],
                    "stdout": replica.stdout,
                    "stderr": replica.stderr,
                    "error_file": replica.env.get("TORCHELASTIC_ERROR_FILE", ""),
                }
            )
        found = {
            "app_id": self._order.app_id,
            "log_dir": self._order.log_dir,
            "final_state": state,
            "last_updated": time.time(),
            "roles": roles,
        }
        try:
            files.replace(os.path.join(self._order.log_dir, "SUCCESS"), json.dumps(found), 0o666)
        except OSError as error:
            sys.stderr.write(f"{time.strftime('%F %T')} SUCCESS was not written: {error}\n")

    def _run_attempt(self) -> bool:
        """Run all replicas, and return whether the job failed."""
        streams: list[LogCopy] = []
        combined: list[int] = []
        plans = []
        for number, replica in enumerate(self._replicas):
            error_file = replica.env.get("TORCHELASTIC_ERROR_FILE", "")
            if self._restarts and os.path.isfile(error_file):
                os.unlink(error_file)  # left over from the previous attempt
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            combined.append(os.open(replica.combined, flags, 0o600))
            pair = [LogCopy(path, combined[-1]) for path in (replica.stdout, replica.stderr)]
            streams += pair
            plans.append(self._plan(number, pair[0].writer, pair[1].writer))
        self._streams = list(zip(streams[::2], streams[1::2], strict=True))
        supervisor = self._supervisor = Supervisor(
            self._loop,
            plans,
            range(len(plans)),
            "",
            self._order.grace_s,
            self._on_process,
            grace_for_all=True,
        )
        for stream in streams:
            os.close(stream.writer)
            self._loop.on_readable(stream.reader, lambda s=stream: self._copy(s))  # type: ignore[misc]
        if self._stopped:
            supervisor.step(SignalReceived(signal.SIGTERM))
        self._loop.run_until(lambda: supervisor.has_ended)
        supervisor.workers.close()
        for stream in streams:
            # All processes that write to the pipes have exited, except perhaps a daemon on macOS.
            while stream.reader in self._loop and stream.is_ready():
                self._copy(stream)
            self._loop.forget(stream.reader)
            stream.close()
            self._log_error = self._log_error or stream.lost
        for fd in combined:
            os.close(fd)
        self._supervisor = None
        return supervisor.core.failed

    def _plan(self, number: int, stdout: int, stderr: int) -> WorkerPlan:
        replica = self._replicas[number]
        argv = replica.args
        if replica.cwd != os.getcwd():
            argv = ("sh", "-c", 'cd "$0" && exec "$@"', replica.cwd, *argv)
        variables = {**self._environment, **replica.env}
        return WorkerPlan(number, argv, variables, stdout, stderr, frozenset(), signal_group=True)

    def _copy(self, stream: LogCopy) -> None:
        if not stream.copy():
            self._loop.forget(stream.reader)

    # Events.

    def _on_process(self, event: ProcessEvent) -> None:
        if isinstance(event, WorkerStarted):
            self._states[event.local_rank].update(state="RUNNING", pid=event.pid)
            self._write("RUNNING")
            if all(state["state"] != "PENDING" for state in self._states):
                self._report_started()
        elif isinstance(event, WorkerExited) and self._supervisor is not None:
            self._on_exit(self._supervisor, event.local_rank, event.exitcode)

    def _on_exit(self, supervisor: Supervisor, number: int, exitcode: int) -> None:
        state, unasked = self._states[number], supervisor.ended_unasked(number)
        name = "SUCCEEDED" if exitcode == 0 else "FAILED" if unasked else "CANCELLED"
        state.update(state=name, exitcode=exitcode)
        for stream in self._streams[number]:  # readers stop when the replica finishes
            if stream.reader in self._loop and stream.is_ready():
                self._copy(stream)  # a single read empties the pipe
            stream.end_line()  # even though a child process may add to the line
        if name == "FAILED":
            self._first_failed = number if self._first_failed is None else self._first_failed
            known = supervisor.workers.evidence.get(number)
            stderr = self._replicas[number].stderr
            state["error"] = known or cause(self._error_file(number), stderr, exitcode)
        self._write("RUNNING")
        self._report_started()

    def _error_file(self, number: int) -> str:
        return self._replicas[number].env.get("TORCHELASTIC_ERROR_FILE", "")

    def _on_signal(self, number: int) -> None:
        self._stop("it was cancelled" if number == signal.SIGTERM else signal_name(number))

    def _on_submitter_gone(self) -> None:
        """Stop the job, because the submitting process has closed its end of the pipe."""
        assert self._submitter is not None
        if not os.read(self._submitter, 4096):
            self._loop.forget(self._submitter)
            self._stop("the submitting process ended, and the job was not detached")

    def _stop(self, why: str) -> None:
        self._stopped = self._stopped or why
        if self._supervisor is not None:
            self._supervisor.step(SignalReceived(signal.SIGTERM))

    # State that other processes read.

    def _pending(self, number: int) -> dict[str, Any]:
        keys = ("role", "replica", "stdout", "stderr", "combined")
        known = {key: getattr(self._replicas[number], key) for key in keys}
        return {**known, "state": "PENDING", "pid": 0, "exitcode": None, "error": ""}

    def _reason(self) -> str:
        if self._first_failed is None:
            return "its processes could not be killed"
        # The agents of a role report the same failure. Other roles may have failed afterwards.
        role = self._states[self._first_failed]["role"]
        ended = [k for k, x in enumerate(self._states) if x["exitcode"] and x["role"] == role]
        causes = (k for k in ended if error_files.names_own_worker(self._error_file(k)))
        number = next(causes, self._first_failed)
        state = self._states[number]
        if state["state"] != "FAILED":  # it was about to exit when it was stopped
            why = cause(self._error_file(number), self._replicas[number].stderr, state["exitcode"])
            state.update(state="FAILED", error=why)
        code, name = state["exitcode"], f"{state['role']}/{state['replica']}"
        return f"{name} failed with {how_it_ended(code)}" + (
            f": {state['error']}" if state["error"] else ""
        )

    def _write(self, state: str, message: str = "") -> None:
        try:
            self._record.write(self._state(state, message))
        except OSError as error:  # the job keeps running
            sys.stderr.write(f"{time.strftime('%F %T')} the state was not written: {error}\n")

    def _state(self, state: str, message: str) -> dict[str, Any]:
        return {
            "scheduler": self._order.scheduler,
            "app_id": self._order.app_id,
            "name": self._order.name,
            "log_dir": self._order.log_dir,
            "state": state,
            "message": message,
            "submitted": self._submitted,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "restarts": self._restarts,
            "replicas": self._states,
        }

    def _report_started(self) -> None:
        if not self._has_reported:
            self._has_reported = True
            _reply("started")


def _reply(line: str) -> None:
    """Send one line to the submitting process, and close the pipe."""
    with suppress(OSError):  # the submitting process has exited
        os.write(1, line.encode() + b"\n")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.close(null)


def main() -> NoReturn:
    """Run the job that the order on stdin describes."""
    said = b""
    while not said.endswith(b"\n") and (data := os.read(0, 65536)):
        said += data
    try:
        order: Order = fields.record(Order, fields.decode(said))
        if order.detach and os.fork():
            os._exit(0)
        lock = LocalRecord(order.directory).lock()
        submitter = None if order.detach else os.dup(0)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        Executor(order, submitter).run()
        os.close(lock)
    except RelightError as error:
        _reply(f"{error.message}\t{error.hint}")
        os._exit(error.exit_code)
    except OSError as error:
        hint = (
            "each replica needs 7 file descriptors; raise `ulimit -Hn`"
            if error.errno == errno.EMFILE
            else ""
        )
        _reply(f"can't run the job: {error.filename or ''} {error.strerror}\t{hint}")
        os._exit(1)
    except Exception as error:
        _reply(f"internal error in relight (a bug): {describe_bug(error)}\tplease report it")
        os._exit(EXIT_INTERNAL)
    os._exit(0)


if __name__ == "__main__":
    main()
