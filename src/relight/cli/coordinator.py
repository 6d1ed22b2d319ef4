"""`relight coordinator`: a standalone coordinator process, for a login or head node.

The standalone coordinator serves all jobs that use it as their `--rdzv-endpoint`, and distinguishes
them by their `--rdzv-id`. The coordinator keeps nothing on disk. If the coordinator is killed and
restarted, it learns about the running groups from the agents, and the workers are not affected.
With a registry (etcd or a file), a coordinator serves only one job, and a second coordinator can
stand by.
"""

import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from relight.agent.coordinator import Coordinator
from relight.agent.group import LOADED_FOR_NODES, LOADED_LATER, Group
from relight.base import env as environment
from relight.base.env import Environment
from relight.base.errors import UsageError, describe_bug
from relight.base.text import did_you_mean
from relight.base.values import BACKENDS, Endpoint, Nodes, parse_endpoint
from relight.core.group.group_types import GroupSettings
from relight.events.event_text import describe
from relight.events.event_types import InternalErrorEvent, StateChanged
from relight.flags import site
from relight.flags.arguments import ParsedFlags, parse
from relight.flags.rdzv_conf import KEY_BY_NAME
from relight.flags.spec import FLAGS, UNSET_RUN_ID, Flag, LaunchSpec
from relight.host import background, system
from relight.host.loop import Loop
from relight.net.ports import is_ours, listen, no_free_port
from relight.output.console import Consoles
from relight.rendezvous import backends
from relight.rendezvous.config import DEFAULT_ENDPOINT_PORT, Meeting, arrange
from relight.rendezvous.discovery import (
    CoordinatorAt,
    CoordinatorHere,
    Finder,
    Misconfigured,
    NotFound,
    SearchResult,
    Seeker,
)
from relight.rendezvous.register_finder import RegisterFinder

_FLUSH_S = 1.0
_POLL_S = 0.5
_DIAL_S = 1.0
_TAKEN = ("rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "local-addr", "help", "verbose")
_CHANGED: dict[str, dict[str, Any]] = {
    "rdzv-backend": {"default": "c10d"},
    "verbose": {"help": "also report when jobs connect, change state and disconnect"},
}
COORDINATOR_FLAGS = (
    Flag("bind", parse_endpoint, Endpoint("", None), "HOST[:PORT]",
         f"address to listen on [all addresses, port {DEFAULT_ENDPOINT_PORT}, or any free one "
         "with a registry]", from_env=False),
    *(flag._replace(**_CHANGED.get(flag.name, {})) for flag in FLAGS if flag.name in _TAKEN),
)  # fmt: skip


def main(argv: list[str]) -> int:
    """Run `relight coordinator` until it is stopped, and return 0.

    Raises:
        RelightError: if the coordinator can't listen on its endpoint, or a setting is invalid.
    """
    env = environment.read()
    parsed = parse(argv, env, COORDINATOR_FLAGS, site.load(env))
    if parsed.values["help"]:
        from relight.flags.usage import coordinator_help

        print(coordinator_help(COORDINATOR_FLAGS))
        return 0
    system.require_linux("relight coordinator")
    if parsed.command:
        raise UsageError(
            f"relight coordinator takes flags only, not {parsed.command[0]}",
            hint="relight coordinator --bind HOST:PORT",
        )
    meeting, _, notes = _meeting(parsed, env)
    for module in (
        *LOADED_FOR_NODES,
        *LOADED_LATER,
    ):  # files may become unreachable when a node or the network fails
        __import__(module)
    loop = Loop()
    console = Consoles.open(loop).stderr  # if its buffer is full, messages are dropped

    def say(text: str) -> None:
        if not console.full:
            console.say(f"relight: {time.strftime('%H:%M:%S')} {text}")

    loop.on_internal_error = lambda what, error: say(
        InternalErrorEvent(what, describe_bug(error)).text
    )
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.on_signal(number, stopped.append)
    sock, where = _listen(parsed.values["bind"], any_port=meeting.register is not None)
    port = sock.getsockname()[1]
    finder = Finder()
    if meeting.register is not None:
        finder = RegisterFinder(loop, meeting, port)
    coordinator = Coordinator(loop, sock, meeting.security, finder, lambda c: c.close(), say)
    verbose = parsed.values["verbose"]
    if verbose:
        coordinator.on_job = lambda job, what: say(f"job {job}: {what}")
        coordinator.on_group = partial(_log_state_changes, say)
    for note in (*notes, meeting.warning):
        if note:
            say(f"note: {note}")
    candidate = None
    if meeting.register is not None:
        candidate = _Candidate(loop, meeting, finder, coordinator, port, say, verbose=verbose)
    else:
        say(f"coordinating jobs at {where}")
    loop.run_until(lambda: bool(stopped or (candidate and candidate.error)))
    if coordinator.others:
        say("workers keep running while their agents find the next coordinator")
    coordinator.close()
    if candidate is not None:
        if candidate.error is not None:
            raise candidate.error
        candidate.close()
    console.flush(limit_s=_FLUSH_S)
    loop.close()
    return 0


class _Candidate(Seeker):
    """Acts as the coordinator as long as the registry names this process. While the registry names
    another coordinator, checks whether that coordinator is still listening. The finder calls this
    object through the Seeker interface.
    """

    def __init__(
        self,
        loop: Loop,
        meeting: Meeting,
        finder: Finder,
        coordinator: Coordinator,
        port: int,
        say: Callable[[str], None],
        *,
        verbose: bool,
    ) -> None:
        self.error: UsageError | None = None
        """The reason why the registry will never respond, or None."""
        self._loop = loop
        self._meeting = meeting
        self._finder = finder
        self._coordinator = coordinator
        self._port = port
        self._say = say
        self._verbose = verbose
        self._said = ""
        finder.open(self)
        self._seek()

    def close(self) -> None:
        """Close the finder, so that another coordinator can take over the entry in the registry."""
        self._finder.close()

    def found(self, result: SearchResult) -> None:
        """Handle a response from the registry."""
        match result:
            case CoordinatorHere():
                self.say(f"coordinating {self._meeting.who} on port {self._port}")
            case CoordinatorAt(address=address, who=who):
                self.say(f"waiting: {who} is coordinating {self._meeting.who}")
                look = partial(_refuses, address)
                background.call(self._loop, look, self._on_look)
            case NotFound(reason):
                self.say(f"waiting for {self._meeting.where}: {reason}")
                self._seek_later()
            case Misconfigured(error):
                self.error = error

    def step_down(self, reason: str, again_s: float) -> None:
        """Disconnect the agents, because this process is no longer the coordinator."""
        del again_s
        self._coordinator.step_down()
        self.say(f"no longer coordinating: {reason}")
        self._seek_later()

    def say(self, text: str) -> None:
        """Show a message to the user, unless it repeats the previous one."""
        if text != self._said:
            self._said = text
            self._say(text)

    def record(self, event: StateChanged) -> None:
        """If --verbose is set, show a state change of the candidate."""
        if self._verbose:
            self.say(describe(event))

    def _seek(self) -> None:
        self._finder.seek(may_host=True)

    def _seek_later(self) -> None:
        self._loop.call_after(_POLL_S, self._seek)

    def _on_look(self, refused: bool | Exception) -> None:
        if refused is True:
            reason, _ = self._finder.failed(refused=True, working=True)
            self.say(f"waiting: {reason}")
        elif refused is False:
            self._finder.answered()
        self._seek_later()


def _log_state_changes(say: Callable[[str], None], job: str, group: Group) -> None:
    """Print each state change of a group."""
    group.on_change = lambda change: say(describe(change._replace(job=job)))


def _refuses(address: tuple[str, int]) -> bool:
    """Return whether the address refuses connections. This call may block.

    Raises:
        OSError: if the connection fails for another reason.
    """
    try:
        socket.create_connection(address, _DIAL_S).close()
    except ConnectionRefusedError:
        return True
    return False


def _meeting(parsed: ParsedFlags, env: Environment) -> tuple[Meeting, GroupSettings, list[str]]:
    """Return the rendezvous settings, read in the same way as by the jobs' agents."""
    given = {name: parsed.values[name.replace("-", "_")] for name in _TAKEN}
    backend, bind = given["rdzv-backend"], parsed.values["bind"]
    if backend == "static":
        raise UsageError(
            "the static rendezvous has no coordinator command; node rank 0 coordinates"
        )
    backends.check(backend)
    if backend == "c10d":
        if given["rdzv-endpoint"].host:
            raise UsageError("--rdzv-endpoint is only valid for agents; use --bind")
        given["rdzv-endpoint"] = bind._replace(host=bind.host or socket.gethostname())
    elif given["rdzv-id"] == UNSET_RUN_ID:
        raise UsageError(f"--rdzv-backend={backend} without --rdzv-id",
                         hint="a registry records only one job's coordinator")  # fmt: skip
    for name, _ in given["rdzv-conf"] if backend in BACKENDS else ():
        if name not in KEY_BY_NAME:  # torchrun has no such command to imitate
            hint = did_you_mean(name, KEY_BY_NAME, f"known keys: {', '.join(KEY_BY_NAME)}")
            raise UsageError(f"--rdzv-conf: unknown key {name}", hint=hint)
    fields = {flag.field: flag.default for flag in FLAGS if flag.field in LaunchSpec._fields}
    fields |= {name.replace("-", "_"): value for name, value in given.items() if name != "help"}
    fields |= {"nnodes": Nodes(1, 2), "conf_defaults": parsed.values["conf_defaults"]}
    meeting, settings, notes = arrange(LaunchSpec(**fields, script="", script_args=()), env)
    if meeting.hosted is False:
        raise UsageError("--rdzv-conf: is_host=0 is only valid for agents")
    return meeting, settings, notes


def _listen(bind: Endpoint, *, any_port: bool) -> tuple[socket.socket, str]:
    default = 0 if any_port else DEFAULT_ENDPOINT_PORT
    port = default if bind.port is None else bind.port
    if bind.others or "/" in bind.host or (port == 0 and not any_port):
        raise UsageError(f"--bind={bind}: expected one HOST or HOST:PORT that agents can reach")
    address = _address(bind.host) if bind.host else ""
    sock = listen(address, port)
    if sock is None and not port and (not address or is_ours(address)):
        raise no_free_port("the coordinator")
    if sock is None:
        raise UsageError(
            f"can't listen at {bind.host or 'port'}{':' if bind.host else ' '}{port}: the port is "
            "in use, or this machine does not have that address",
            hint="if an agent here uses that port, start it with --rdzv-conf=is_host=0",
        )
    return sock, str(Endpoint(bind.host or socket.gethostname(), port))


def _address(host: str) -> str:
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except UnicodeError:
        raise UsageError(f"--bind={host:.80}: not a valid host name") from None
    except OSError as error:
        raise UsageError(f"--bind={host}: {error.strerror or error}") from None
