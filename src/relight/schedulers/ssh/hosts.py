"""Parses hosts, builds the ssh command for a host, and explains ssh failures."""

import os
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from relight.base.errors import (
    EXIT_INTERNAL,
    EXIT_MACHINE,
    InternalError,
    MachineError,
    RelightError,
    UsageError,
)
from relight.base.text import last_line
from relight.base.values import whole
from relight.schedulers.ssh import frames
from relight.schedulers.ssh.frames import ReplicaEnded

_MODULE = "relight.schedulers.ssh.replica"
_FROM_FILE = f"import sys; sys.path.insert(0, sys.argv[1]); from {_MODULE} import main; main()"
_SLOTS = ("slots", "max_slots", "max-slots")
_CONNECT_S = 10
_SSH_FAILED = 255
"""ssh's own exit code."""


class SshHost(NamedTuple):
    """A host. If `user` is empty or `port` is 0, ssh's own configuration determines the value."""

    name: str
    user: str = ""
    port: int = 0

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        port = f":{self.port}" if self.port else ""
        return f"{self.user}@{name}{port}" if self.user else f"{name}{port}"


def parse(text: str) -> SshHost:
    """Parse `name`, `user@name`, `name:port` or `[address]:port`.

    Raises:
        UsageError: if the text doesn't have any of these forms.
    """
    user, at, rest = text.rpartition("@")
    if rest.startswith("["):
        name, bracket, port = rest[1:].partition("]")
        colon, port = port[:1], port[1:]
        name = name if bracket else ""
    elif rest.count(":") > 1:
        name, colon, port = rest, "", ""  # the host is an IPv6 address
    else:
        name, colon, port = rest.partition(":")
    number = whole(port) or 0
    plain = not set(name + user) & set(" \t'\"\\$`;&|<>()*?")
    # ssh would parse a name with a leading dash as a flag.
    starts_valid = not name.startswith("-") and not user.startswith("-")
    port_is_valid = (colon == ":" and 0 < number < 65536) or (not colon and not port)
    if not name or bool(at) != bool(user) or not plain or not starts_valid or not port_is_valid:
        raise UsageError(
            f"{text!r} is not a host", hint="NAME, USER@NAME, NAME:PORT, [ADDRESS]:PORT"
        )
    return SshHost(name, user, number)


def read(path: str) -> list[SshHost]:
    """Read the hosts from an mpirun hostfile: one host per line, optionally followed by `slots=8`.

    Raises:
        UsageError: if the file can't be read, or a line is malformed.
    """
    try:
        with open(os.path.expanduser(path)) as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"can't read host file {path}: {why}") from None
    hosts = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].replace(" =", "=").replace("= ", "=").split()
        if not words:
            continue
        try:
            hosts.append(parse(words[0]))
        except UsageError as error:
            raise UsageError(f"{path}:{number}: {error.message}", hint=error.hint) from None
        for word in words[1:]:
            name, equals, value = word.partition("=")
            if name not in _SLOTS or not equals or not value.isdecimal():
                raise UsageError(
                    f"{path}:{number}: {word!r} is not valid here",
                    hint="each line is a host, optionally followed by slots=NUMBER",
                )
    return hosts


def parse_hosts(cfg: Mapping[str, Any]) -> list[SshHost]:
    """Return the hosts that the options specify, in the given order.

    Raises:
        UsageError: if no host is specified, or if both options are used.
    """
    if cfg.get("hosts") and cfg.get("hostfile"):
        raise UsageError("-cfg hosts and -cfg hostfile are mutually exclusive")
    if cfg.get("hostfile"):
        hosts, where = read(cfg["hostfile"]), f"the host file {cfg['hostfile']}"
    else:
        hosts, where = [parse(text) for text in cfg.get("hosts") or ()], ""
    if not hosts:
        what = f"{where} lists no hosts" if where else "ssh requires a list of hosts"
        raise UsageError(what, hint="-cfg 'hosts=node1;user@node2:2222' or -cfg hostfile=FILE")
    return hosts


class NoRelightError(UsageError):
    """Raised if a host does not have relight, or has a different version."""


def command(host: SshHost, cfg: Mapping[str, Any], python: str, launcher: str = "") -> list[str]:
    """Return the ssh command that starts the process that runs a replica.

    Args:
        host: the host.
        cfg: the scheduler's options.
        python: the interpreter to try first if the options don't specify one.
        launcher: the launcher's directory on the host, if relight is not installed there.

    Raises:
        UsageError: if `ssh_args` has an unclosed quote.
    """
    try:
        own = shlex.split(cfg.get("ssh_args") or "")
    except ValueError as error:
        raise UsageError(f"ssh_args={cfg['ssh_args']}: {error}") from None
    alive_s = max(1, round((cfg.get("silence") or 0) / 3))
    options = {
        "ConnectTimeout": _CONNECT_S,
        "ServerAliveInterval": alive_s,
        "ServerAliveCountMax": 3,
        "LogLevel": "INFO",  # ssh reports a lost connection
        # A connection that is shared by several jobs would be closed when the job that opened it
        # ends.
        "ControlMaster": "no",
        "ControlPath": "none",
    }
    words = ["ssh", "-T", "-o", "BatchMode=yes", *own]
    for name, value in options.items():
        words += ["-o", f"{name}={value}"]
    words += ["-i", os.path.expanduser(cfg["identity"])] if cfg.get("identity") else []
    port = host.port or cfg.get("port")
    words += ["-p", str(port)] if port else []
    words += ["-l", host.user] if host.user else []
    return [*words, "--", host.name, _remote_command(cfg.get("python"), python, launcher)]


def _remote_command(wanted: str | None, python: str, launcher: str) -> str:
    """Return the command to run in the remote login shell. The command works in any shell."""
    if not wanted:
        found = f'p={shlex.quote(python)}; command -v "$p" >/dev/null 2>&1 || p=python3'
    elif wanted.startswith("~/"):
        found = f'p="$HOME"/{shlex.quote(wanted[2:])}'
    else:
        found = f"p={shlex.quote(wanted)}"
    if launcher:
        return in_shell(f'{found}; exec "$p" -P -c {shlex.quote(_FROM_FILE)} {launcher}/relight')
    return in_shell(f'{found}; exec "$p" -P -m {_MODULE}')


def in_shell(script: str) -> str:
    """Return a command line that runs a script with sh. The command line works in any login
    shell.
    """
    return f"exec sh -c {shlex.quote(script)}"


def explain(host: SshHost, code: int, said: str, decoder: frames.FrameDecoder) -> RelightError:
    """Return the error to raise for a process that failed on a host.

    Args:
        host: the host.
        code: ssh's exit code.
        said: ssh's stderr.
        decoder: the decoder for ssh's stdout.
    """
    last = last_line(said)
    if decoder.greeted:
        why = f": {last}" if last else ""
        return MachineError(f"lost the connection to {host}{why}")
    if frames.NAME in decoder.noise:
        return NoRelightError(
            f"{host} has a different version of relight",
            hint=(
                "use --launcher=travels to send this version, or -cfg python= to select a Python "
                "that has it"
            ),
        )
    for mark, message, hint in _connection_errors(host, last) if code == _SSH_FAILED else ():
        if mark in said:
            return MachineError(message, hint=hint)
    if code != _SSH_FAILED and "No module named 'relight'" in said:
        return NoRelightError(
            f"relight is not installed on {host}",
            hint="use --launcher=travels to send it, or -cfg python=FILE to select a Python that "
            "has it",
        )
    for mark, message, hint in _start_errors(host, last) if code != _SSH_FAILED else ():
        if mark in said:
            return UsageError(message, hint=hint)
    what = f"exit code {code}" if code >= 0 else f"signal {-code}"
    connected = 0 <= code < _SSH_FAILED
    failed = f"relight does not start on {host}" if connected else f"no connection to {host}"
    return MachineError(f"{failed}: {last or f'ssh ended with {what}'}")


def _connection_errors(host: SshHost, last: str) -> Iterator[tuple[str, str, str]]:
    """Yield error messages from ssh, each with its meaning and its remedy."""
    yield ("HOST IDENTIFICATION HAS CHANGED", f"the host key of {host} has changed",
           "if the host's key was changed on purpose: "
           f"ssh-keygen -R {_known_hosts_name(host)}")  # fmt: skip
    yield ("Host key verification failed", f"unknown host key for {host}",
           f"connect once with `ssh {host.name}` to accept it")  # fmt: skip
    yield ("Could not resolve hostname", f"no such host: {host.name}: {_after_colon(last)}",
           "the name is resolved as by ssh, including ~/.ssh/config")  # fmt: skip
    yield (
        "Permission denied",
        f"permission denied by {host} ({_in_brackets(last)})",
        "the key must work without a prompt: use -cfg identity=FILE, ssh-agent or ssh-copy-id",
    )
    yield ("Connection refused", f"{host} refuses the connection",
           "check whether sshd is running there on this port")  # fmt: skip
    for word in ("timed out", "No route to host", "Network is unreachable"):
        yield word, f"{host} can't be reached: {_after_colon(last)}", ""


def _start_errors(host: SshHost, last: str) -> Iterator[tuple[str, str, str]]:
    """Yield error messages from the remote shell or Python, each with its meaning and its
    remedy.
    """
    another = "use -cfg python=FILE to select a different one"
    yield ("Unknown option: -P", f"Python on {host} is older than 3.11", another)
    for word in ("not found", "No such file", "cannot execute", "Permission denied"):
        yield word, f"no such Python on {host}: {last}", another


def _known_hosts_name(host: SshHost) -> str:
    return f"'[{host.name}]:{host.port}'" if host.port else host.name


def _after_colon(line: str) -> str:
    return line.rpartition(": ")[2].rstrip(".")


def _in_brackets(line: str) -> str:
    inner = line.rpartition("(")[2].partition(")")[0]
    return inner if inner != line else _after_colon(line)


def problem(host: SshHost, end: ReplicaEnded) -> RelightError | None:
    """Return the error that a host's response reports, or None."""
    if not end.message:
        return None
    kind = {EXIT_MACHINE: MachineError, EXIT_INTERNAL: InternalError}.get(end.code, UsageError)
    return kind(f"{host}: {end.message}", hint=end.hint)
