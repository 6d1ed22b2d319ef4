"""The process that `ssh` starts on a host to run one replica.

    sshd --exec--> this --> spawner --> the replica (an agent) --> its workers

This process receives its order on stdin (`frames`), never on a command line. It manages the replica
in the same way as an agent manages its workers, with the same state machine and the same spawner,
so that no process outlives it. To end the replica, it sends SIGTERM to the replica and, after the
grace period, SIGKILL to the replica and all its descendants. It does so in these cases:

    STOP arrives                   the job was cancelled, or another replica failed
    stdin ends                     ssh or its parent was killed, or the connection was closed
    no frame for `silence_s`       the other machine or the network is down
    it receives SIGTERM, SIGINT or SIGHUP

If this process itself is killed, its spawner kills the replica's processes. There are two other
orders. `check` reports what would fail, and `remove` removes the copy of a workspace. Invariant:
END is sent exactly once, as the last frame, when no processes are left.
"""

import os
import shutil
import signal
import sys
import tarfile
import tempfile
from contextlib import suppress
from typing import IO, NoReturn

from relight.base import env, fields, package
from relight.base.errors import EXIT_INTERNAL, MachineError, RelightError, UsageError, describe_bug
from relight.base.fields import Malformed
from relight.events.event_types import SignalReceived
from relight.host import files
from relight.host.loop import Loop, Timer
from relight.host.scratch import Scratch
from relight.job import macros, records
from relight.processes.supervisor import Supervisor
from relight.processes.worker_processes import ProcessEvent, WorkerPlan
from relight.schedulers.ssh import frames
from relight.schedulers.ssh.orders import Check, Remove, RunReplica

_SILENCE_S = 30.0
"""The limit for `silence_s` until an order sets it."""
_FLUSH_S = 10.0
_ORDERS = RunReplica | Check | Remove
_REPORT_LIMIT = 1 << 20


class Session:
    """A connection, from the time its order arrives until it ends.

    Args:
        reader: the descriptor to read orders from.
        writer: the descriptor to write output to.
    """

    def __init__(self, reader: int, writer: int) -> None:
        self._loop = Loop()
        self._channel = frames.FrameChannel(
            self._loop,
            reader,
            writer,
            on_frame=self._on_frame,
            on_end=self._stop,
            on_room=self._resume,
        )
        self._order: RunReplica | Check | Remove | None = None
        self._archive: IO[bytes] | None = None
        self._supervisor: Supervisor | None = None
        self._streams: dict[int, bytes] = {}
        self._paused = False
        self._silence: Timer | None = None
        self._over = False
        self._end = frames.ReplicaEnded()
        self._scratch = Scratch(self._loop, "")

    def run(self) -> None:
        """Execute the order."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self._loop.on_signal(number, lambda _: self._stop())
        self._restart_silence_timer()
        self._channel.send_raw(frames.GREETING)
        self._loop.run_until(lambda: self._over or self._has_ended())
        if self._supervisor is not None:
            self._supervisor.workers.close()
            if not self._over:  # otherwise, the order was rejected
                self._record_end(self._supervisor)
            # All processes that write output have exited, so the remaining output is finite.
            self._loop.run_until(lambda: not self._streams or self._channel.ended)
            self._read_error_file()
        if self._archive is not None:
            self._archive.close()
        self._scratch.remove()
        self._channel.send(frames.END, self._end.to_payload())
        limit = self._loop.call_after(_FLUSH_S, self._channel.abort)
        self._loop.run_until(lambda: not self._channel.waiting)
        limit.cancel()

    # Handling frames that the other side sends.

    def _on_frame(self, kind: bytes, payload: bytes) -> None:
        self._restart_silence_timer()
        try:
            if kind == frames.ORDER:
                self._order = fields.message(_ORDERS, fields.decode(payload))
                self._execute(self._order)
            elif kind == frames.ARCHIVE:
                self._save_archive(payload)
            elif kind == frames.GO:
                self._start()
            elif kind == frames.STOP:
                self._stop()
        except RelightError as error:
            self._fail(error.message, error.hint, error.exit_code)
        except OSError as error:
            what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
            self._fail(str(what), "", MachineError.exit_code)
        except Exception as error:
            self._fail(
                f"internal error in relight (a bug): {describe_bug(error)}", "", EXIT_INTERNAL
            )

    def _fail(self, message: str, hint: str, code: int) -> None:
        """Report why an order can't be executed, and end the session."""
        self._end = frames.ReplicaEnded(message=message, hint=hint, code=code)
        self._over = True

    def _restart_silence_timer(self) -> None:
        """Reset the silence timer, because the other side is alive."""
        if self._silence is not None:
            self._silence.cancel()
        silence_s = self._order.silence_s if self._order is not None else _SILENCE_S
        self._silence = self._loop.call_after(silence_s, self._channel.abort)

    def _stop(self) -> None:
        if self._supervisor is None:
            self._over = True
        else:
            self._supervisor.step(SignalReceived(signal.SIGTERM))

    # Orders.

    def _execute(self, order: RunReplica | Check | Remove) -> None:
        if isinstance(order, Check):
            if not order.copy:
                _existing_directory(order.cwd)
            for command in order.commands:
                _check_command(command, _search_path(order.path))
            self._over = True
        elif isinstance(order, Remove):
            copy = _copy_path(order)
            files.remove_tree(copy)
            for _ in range(2):  # the role's and job's directories, once empty
                copy = os.path.dirname(copy)
                try:
                    os.rmdir(copy)
                except OSError:
                    break
            self._over = True

    def _to_run(self) -> RunReplica:
        if not isinstance(self._order, RunReplica):
            raise Malformed("a command before any request")
        return self._order

    def _save_archive(self, data: bytes) -> None:
        if self._archive is None:
            place = _copy_path(self._to_run())
            os.makedirs(place, 0o700, exist_ok=True)
            self._archive = tempfile.TemporaryFile(dir=os.path.dirname(place))
        self._archive.write(data)

    def _start(self) -> None:
        order, here = self._to_run(), env.read()
        cwd = order.cwd
        if order.copy:
            place = _copy_path(order)
            if self._archive is not None:
                _unpack(self._archive, place)
                self._archive = None
            cwd = os.path.join(place, os.path.expanduser(cwd))
        cwd = _existing_directory(cwd)
        os.chdir(cwd)
        values = {"img_root": cwd}
        own = {name: macros.text(value, values) for name, value in order.env.items()}
        own["PATH"] = _search_path(own.get("PATH", ""))
        argv = tuple(macros.text(word, values) for word in order.args)
        _check_command(argv[0], own["PATH"])
        self._scratch = Scratch(self._loop, files.temporary_base(here))
        report = {"TORCHELASTIC_ERROR_FILE": self._error_file} if self._scratch.make() else {}
        python = {"RELIGHT_PYTHON": sys.executable}
        variables = {**here.variables, "PWD": cwd, **python, **report, **own}
        readers, writers = zip(os.pipe(), os.pipe(), strict=True)
        plan = WorkerPlan(0, argv, variables, *writers, frozenset(), signal_group=True)
        self._supervisor = Supervisor(
            self._loop, [plan], (0,), self._scratch.path, order.grace_s, _ignore, grace_for_all=True
        )
        for reader, writer, kind in zip(readers, writers, (frames.OUT, frames.ERR), strict=True):
            os.close(writer)
            self._streams[reader] = kind
            self._loop.on_readable(reader, lambda r=reader: self._copy(r))  # type: ignore[misc]

    # The replica.

    def _copy(self, reader: int) -> None:
        data = os.read(reader, 65536)
        if not data:
            self._loop.forget(reader)
            del self._streams[reader]
            os.close(reader)
            return
        self._channel.send(self._streams[reader], data)
        if self._channel.waiting > frames.HIGH_WATER and not self._paused:
            self._paused = True
            for each in self._streams:
                self._loop.on_readable(each, None)

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            for each in self._streams:
                self._loop.on_readable(each, lambda r=each: self._copy(r))  # type: ignore[misc]

    def _has_ended(self) -> bool:
        return self._supervisor is not None and self._supervisor.has_ended

    def _record_end(self, supervisor: Supervisor) -> None:
        """Record how the replica ended, if it has ended."""
        evidence = supervisor.workers.evidence.get(0, "")
        for end in supervisor.ends:
            self._end = frames.ReplicaEnded(end.exitcode, evidence)
        if supervisor.has_ended and supervisor.alive:
            reason = evidence or "it did not exit after SIGKILL"
            self._end = frames.ReplicaEnded(-signal.SIGKILL, reason)

    @property
    def _error_file(self) -> str:
        return os.path.join(self._scratch.path, "error.json")

    def _read_error_file(self) -> None:
        if not self._scratch.path:
            return
        with suppress(OSError), open(self._error_file, "rb") as file:  # it may not exist
            text = file.read(_REPORT_LIMIT).decode(errors="replace")
            self._end = self._end._replace(error_file=text)


def _ignore(event: ProcessEvent) -> None:
    del event


def _copy_path(order: RunReplica | Remove) -> str:
    """Return the path for a copy of the workspace. Each replica has its own copy, because hosts may
    share a disk.

    Raises:
        UsageError: if the id is invalid.
    """
    job = records.path(order.app_id)
    top = os.path.join(os.path.dirname(os.path.dirname(job)), "copies", os.path.basename(job))
    return os.path.join(top, order.role, str(order.replica))


def _unpack(file: IO[bytes], place: str) -> None:
    with file:
        file.seek(0)
        try:
            with tarfile.open(fileobj=file) as tar:
                if hasattr(tarfile, "tar_filter"):  # Python 3.11.4
                    tar.extraction_filter = tarfile.tar_filter
                tar.extractall(place)  # noqa: S202  # the sender can run programs here anyway
        except tarfile.TarError as error:
            raise MachineError(f"can't unpack the workspace in {place}: {error}") from None


def _existing_directory(path: str) -> str:
    """Resolve a directory relative to the home directory."""
    home = path if path.startswith("~") else os.path.join("~", path)
    full = os.path.abspath(os.path.expanduser(home))
    if not os.path.isdir(full):
        raise UsageError(
            f"no such directory: {full}",
            hint=(
                "use -cfg sync=true to copy the working directory, or choose another with -cfg "
                "cwd=DIR"
            ),
        )
    if not os.access(full, os.X_OK):
        raise UsageError(f"permission denied: {full}")
    return full


def _search_path(wanted: str) -> str:
    """Return the value of PATH. It consists of the role's own PATH, the launcher's directory if
    this is the bundled launcher, and this host's PATH including the directory of relight's Python.
    """
    path = env.read().get("PATH", os.defpath)
    own = os.path.dirname(sys.executable)
    file = os.path.dirname(package.DIRECTORY)
    launcher = [os.path.dirname(file)] if os.path.isfile(file) else []
    parts = [wanted, *launcher, *([own] if own not in path.split(":") else []), path]
    return ":".join(part for part in parts if part)


def _check_command(command: str, path: str) -> None:
    if shutil.which(command, path=path) is None:
        what = "is not executable" if os.path.exists(command) else "is not there"
        raise UsageError(f"the command {command} {what}", hint=f"searched in {path}")


def main() -> NoReturn:
    """Execute the order that arrives on stdin."""
    reader, writer = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    os.close(null)
    Session(reader, writer).run()
    os._exit(0)


if __name__ == "__main__":
    main()
