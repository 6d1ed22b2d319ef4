"""The link, the local process that represents a replica on another host and runs `ssh`.

    executor --> spawner --> this --> ssh ~~> sshd --> replica --> the replica

To the process that runs the job (`processes.executor`), the link looks like the replica itself. It
has the same output, the same exit code or signal, and the same error file. The link forwards
SIGTERM as STOP. ssh runs in its own session, so signals to the link never reach ssh. No matter how
the link exits, ssh's stdin is then closed, which ends the replica on its host. The link reads its
order from an environment variable, which only the process's owner can read.
"""

import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from typing import NoReturn

from relight.base import env, fields
from relight.base.errors import (
    EXIT_INTERNAL,
    EXIT_SIGNAL_BASE,
    MachineError,
    RelightError,
    describe_bug,
)
from relight.base.fields import Malformed
from relight.host import files
from relight.host.loop import Loop
from relight.job import workspaces
from relight.schedulers.processes.orders import to_text
from relight.schedulers.ssh import frames, hosts
from relight.schedulers.ssh.orders import LinkOrder

VARIABLE = "RELIGHT_SSH_ORDER"
MARGIN_S = 5.0
"""Seconds between the end of a stopped replica's grace period and the closing of the connection."""
_PASSED_ON = ("RELIGHT_TOKEN", "PYTHONUNBUFFERED")
_BEATS_IN_SILENCE = 4
_STDERR_LIMIT = 1 << 16


class _Gone(Exception):  # noqa: N818  # not an error
    """Raised if the replica ends while its workspace is being sent, so that the rest need not be
    sent.
    """


class ReplicaLink:
    """Runs one replica on its host.

    Args:
        order: the link's order.
        variables: this process's environment.
    """

    def __init__(self, order: LinkOrder, variables: dict[str, str]) -> None:
        self._host = order.host
        self._order = order
        self._loop = Loop()
        self._stderr_tail = b""
        self._end: frames.ReplicaEnded | None = None
        self._stopped = False
        own = {name: value for name, value in variables.items() if name != VARIABLE}
        try:
            self._ssh = subprocess.Popen(
                order.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=own,
                start_new_session=True,
            )
        except OSError as error:
            raise MachineError(f"can't run ssh: {error.strerror}") from None
        assert self._ssh.stdin and self._ssh.stdout and self._ssh.stderr
        self._channel = frames.FrameChannel(
            self._loop,
            self._ssh.stdout.fileno(),
            self._ssh.stdin.fileno(),
            on_frame=self._on_frame,
            on_end=lambda: None,
            greeting=frames.GREETING,
        )
        self._stderr = self._ssh.stderr.fileno()
        self._loop.on_readable(self._stderr, self._read_stderr)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.on_signal(number, lambda _: self._stop())

    def run(self) -> frames.ReplicaEnded:
        """Run the replica, and return how it ended, with `exitcode` None if it was stopped.

        Raises:
            RelightError: if the replica could not be run, or if the connection was lost.
        """
        channel = self._channel
        self._loop.run_until(lambda: channel.decoder.greeted or channel.ended)
        if channel.decoder.greeted and not self._stopped:
            self._stderr_tail = b""  # discard a banner, or messages from a shell
            self._send_beat()
            channel.send(frames.ORDER, to_text(self._order.order))
            try:
                self._send_workspace()
                channel.send(frames.GO)
            except _Gone:
                pass
        self._loop.run_until(lambda: self._end is not None or channel.ended)
        code = self._close()
        if self._end is None and not self._stopped:
            said = self._stderr_tail.decode(errors="replace")
            raise hosts.explain(self._host, code, said, channel.decoder)
        end = self._end or frames.ReplicaEnded()
        error = hosts.problem(self._host, end)
        if error is not None:
            raise error
        return end

    def _send_workspace(self) -> None:
        if self._order.workspace:
            workspaces.archive(self._order.workspace, self)  # type: ignore[arg-type]  # it writes only

    def write(self, data: bytes) -> int:
        """Send a chunk of the archive as soon as the channel has room for it."""
        self._channel.send(frames.ARCHIVE, data)
        while self._channel.waiting > frames.HIGH_WATER:
            self._loop.run_once(None)
        if self._stopped or self._end is not None or self._channel.ended or self._channel.broken:
            raise _Gone
        return len(data)

    def _on_frame(self, kind: bytes, payload: bytes) -> None:
        if kind == frames.OUT:
            _write(1, payload)
        elif kind == frames.ERR:
            _write(2, payload)
        elif kind == frames.END:
            try:
                self._end = frames.ReplicaEnded.parse(payload)
            except Malformed as error:
                reason = f"unexpected response from {self._host}: {error}"
                raise MachineError(reason) from None

    def _read_stderr(self) -> None:
        data = os.read(self._stderr, 65536)
        self._stderr_tail = (self._stderr_tail + data)[-_STDERR_LIMIT:]
        if not data:
            self._loop.forget(self._stderr)

    def _send_beat(self) -> None:
        self._channel.send(frames.BEAT)
        self._loop.call_after(self._order.order.silence_s / _BEATS_IN_SILENCE, self._send_beat)

    def _stop(self) -> None:
        """Stop the replica. When called a second time, skip the grace period."""
        if self._channel.decoder.greeted:
            self._channel.send(frames.STOP)
        if not self._stopped:
            self._stopped = True
            grace_s = self._order.order.grace_s
            wait_s = grace_s + MARGIN_S if self._channel.decoder.greeted else 0
            self._loop.call_after(wait_s, self._ssh.kill)

    def _close(self) -> int:
        """Close ssh's stdin, read ssh's last messages, and return its exit code."""
        limit = self._loop.call_after(MARGIN_S, self._ssh.kill)
        self._loop.run_until(lambda: self._stderr not in self._loop)
        limit.cancel()
        with self._ssh:  # closes its pipes
            code = self._ssh.wait()
            self._loop.close()
        return code


def _write(fd: int, data: bytes) -> None:
    with suppress(OSError):  # the executor has exited, and so will this process
        while data:
            data = data[os.write(fd, data) :]


def _write_error_file(path: str, text: str) -> None:
    """Write the replica's error file."""
    with suppress(OSError):  # the exit code is also reported
        files.replace(path, text)


def _end_as(exitcode: int) -> NoReturn:
    """Exit in the same way as the replica, with the same exit code or from the same signal."""
    if exitcode < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # SIGKILL
            signal.signal(-exitcode, signal.SIG_DFL)
        os.kill(os.getpid(), -exitcode)
        signal.pause()
    os._exit(exitcode)


def main() -> NoReturn:
    """Run the replica that the order in the environment describes."""
    variables = dict(env.read().variables)
    order: LinkOrder = fields.record(LinkOrder, fields.decode(variables[VARIABLE]))
    passed_on = {name: variables[name] for name in _PASSED_ON if name in variables}
    run = order.order
    order = order._replace(order=run._replace(env={**passed_on, **run.env}))
    try:
        end = ReplicaLink(order, variables).run()
    except RelightError as error:
        _write_error_file(order.report_path, json.dumps({"message": error.message}))
        hint = f" ({error.hint})" if error.hint else ""
        sys.stderr.write(f"relight: {error.message}{hint}\n")
        sys.stderr.flush()
        os._exit(error.exit_code)
    except Exception as error:
        sys.stderr.write(
            f"relight: error: internal error in relight (a bug): {describe_bug(error)}\n"
        )
        sys.stderr.flush()
        os._exit(EXIT_INTERNAL)
    if end.error_file:
        _write_error_file(order.report_path, end.error_file)
    elif end.error:
        _write_error_file(order.report_path, json.dumps({"message": end.error}))
    stopped = EXIT_SIGNAL_BASE + signal.SIGTERM
    _end_as(stopped if end.exitcode is None else end.exitcode)


if __name__ == "__main__":
    main()
