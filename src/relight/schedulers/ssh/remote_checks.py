"""Sends requests to all of a job's hosts in parallel. A request may check whether a host can run
its part of the job, remove a workspace, or store the launcher.

The launcher (`job/launcher_file.py`) is sent to hosts that don't have relight. It is stored in the
user's cache, in a directory whose name is derived from the file's content. Each version is
therefore sent only once, and a job never gets a different version.
"""

import contextlib
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import IO

from relight.base.errors import MachineError, RelightError
from relight.base.fields import Malformed
from relight.base.text import last_line
from relight.job import launcher_file
from relight.schedulers.processes.orders import to_text
from relight.schedulers.ssh import frames, hosts
from relight.schedulers.ssh.hosts import SshHost
from relight.schedulers.ssh.orders import Check, Remove

Failure = tuple[SshHost, RelightError]
_LIMIT_S = 60.0


def ask(questions: Sequence[tuple[SshHost, Sequence[str], Check | Remove]]) -> list[Failure]:
    """Send each order to its host, without duplicates. Return each host that failed, along with the
    reason.
    """
    started = (
        (host, _ordered(command, order)) for host, command, order in dict.fromkeys(questions)
    )
    return _failures(started, _answer)


def refuse(failures: Sequence[Failure]) -> None:
    """Raise the first failure. The message also names the other hosts that failed.

    Raises:
        RelightError: if a host failed.
    """
    if failures:
        error = failures[0][1]
        others = ", ".join(dict.fromkeys(str(host) for host, _ in failures[1:]))
        more = f"; there are errors on {others} too" if others else ""
        raise type(error)(error.message + more, hint=error.hint)


def send_launcher(targets: Sequence[tuple[SshHost, Sequence[str]]]) -> str:
    """Store the launcher on each host that doesn't have it, and return its directory in shell
    syntax.

    Args:
        targets: the hosts, each with the ssh command that starts a replica there.

    Raises:
        MachineError: if a host can't store the launcher.
    """
    content = launcher_file.build()
    name = hashlib.sha256(content).hexdigest()[:16]
    directory = f'"${{XDG_CACHE_HOME:-$HOME/.cache}}/relight/launchers/{name}"'
    file = f"{directory}/{launcher_file.NAME}"
    script = (
        f"[ ! -e {file} ] || exec cat >/dev/null; umask 077; mkdir -p {directory} && "
        f"cat >{file}.$$ && chmod 500 {file}.$$ && mv {file}.$$ {file}"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, launcher_file.NAME)
        with open(path, "wb") as source:
            source.write(content)
        different = dict.fromkeys((host, tuple(words)) for host, words in targets)
        refuse(_failures(((h, _sent(path, ssh, script)) for h, (*ssh, _) in different), _kept))
    return directory


def _failures(
    started: Iterable[tuple[SshHost, "subprocess.Popen[bytes]"]],
    answer: Callable[[SshHost, "subprocess.Popen[bytes]"], RelightError | None],
) -> list[Failure]:
    """Start all processes, wait for their responses, and return the hosts that failed."""
    running: list[tuple[SshHost, subprocess.Popen[bytes]]] = []
    try:
        running.extend(started)
        errors = [(host, answer(host, process)) for host, process in running]
    finally:
        for _, process in running:
            process.kill()
            process.communicate()
    return [(host, error) for host, error in errors if error is not None]


def _sent(path: str, ssh: Sequence[str], script: str) -> "subprocess.Popen[bytes]":
    """Run a script on a host, with a file as the script's stdin."""
    with open(path, "rb") as source:
        return _start([*ssh, hosts.in_shell(script)], source)


def _kept(host: SshHost, process: "subprocess.Popen[bytes]") -> RelightError | None:
    try:
        _, err = process.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        return MachineError(f"timed out after {_LIMIT_S:g} s copying the launcher to {host}")
    if process.returncode == 0:
        return None
    why = last_line(err.decode(errors="replace")) or f"exit code {process.returncode}"
    return MachineError(
        f"can't store the launcher on {host}: {why}",
        hint="install relight there, or free space in ~/.cache",
    )


def _start(command: Sequence[str], stdin: int | IO[bytes]) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # without a terminal, ssh can't prompt
        )
    except FileNotFoundError:
        raise MachineError(
            "ssh is not installed on this machine", hint="Debian: openssh-client"
        ) from None


def _ordered(command: Sequence[str], order: Check | Remove) -> "subprocess.Popen[bytes]":
    """Start a command, and send it an order. The command's stdin stays open until the command has
    responded.
    """
    process = _start(command, subprocess.PIPE)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # the command's output explains why
        process.stdin.write(frames.frame(frames.ORDER, to_text(order)))
        process.stdin.flush()
    return process


def _answer(host: SshHost, process: "subprocess.Popen[bytes]") -> RelightError | None:
    """Return the reason why a host can't execute its order, or None if it can."""
    try:
        out, err = process.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        return MachineError(
            f"{host} accepts the login but does not answer",
            hint="check whether the remote shell's startup files prompt for input",
        )
    decoder = frames.FrameDecoder(frames.GREETING)
    try:
        said = dict(decoder.feed(out))
    except ValueError:
        said = {}
    if frames.END not in said:
        return hosts.explain(host, process.returncode, err.decode(errors="replace"), decoder)
    try:
        return hosts.problem(host, frames.ReplicaEnded.parse(said[frames.END]))
    except Malformed as error:
        return MachineError(f"unexpected response from {host}: {error}")
