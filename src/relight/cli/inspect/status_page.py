"""`relight status --web`: serves a job's status page until ctrl-C or the end of the job.

`relight run --status` also starts this command, once workers are running.
"""

import contextlib
import errno
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple
from urllib.parse import quote

from relight.base import env
from relight.base.errors import (
    EXIT_OK,
    MachineError,
    RelightError,
    UsageError,
    format_exception_oneline,
)
from relight.base.values import STATUS_TOKEN, PageAddress, parse_status_token
from relight.cli.inspect import stacks
from relight.cli.jobs.common import say
from relight.core.status.snapshot import ENDED
from relight.flags.arguments import ParsedFlags
from relight.host.waiting import wait_until
from relight.inspect.gpus import Gpus
from relight.inspect.page import otel
from relight.inspect.page.metrics import exposition
from relight.inspect.page.server import PageServer, Served
from relight.inspect.page.watched_job import WatchedJob
from relight.job import handles
from relight.net.ports import no_free_port
from relight.processes import agent_processes
from relight.processes.running_jobs import JobDirectory
from relight.runner.runner import Runner

_POLL_S = 0.5
"""How often `--until-end` checks whether the job's agent still exists."""
_ALL = ("0.0.0.0", "::")
_LOCAL = ("127.0.0.1", "::1", "localhost")


def main(parsed: ParsedFlags) -> int:
    """Serve the page, and return when serving has ended.

    Raises:
        RelightError: if the job does not exist, or the port can't be bound.
    """
    if not parsed.values["web"]:
        raise UsageError("--listen and --until-end require --web", hint="relight status --web …")
    if parsed.values["json"] or parsed.values["roles"]:
        raise UsageError(
            "--json and --roles can't be combined with --web", hint="the page serves JSON at /state"
        )
    if not parsed.command:
        raise UsageError("--web needs a job", hint="see relight list")
    with Runner() as runner:
        handle = runner.find(parsed.command[0])
    if handle.scheduler != handles.RUN:
        raise UsageError(
            f"--web shows jobs started with relight run on this machine, not {handle.scheduler} "
            "jobs",
            hint="relight run --status=[HOST:]PORT … serves the page from the job itself",
        )
    until_end = parsed.values["until_end"]
    output = sys.stderr if until_end else sys.stdout
    try:
        return _serve(handle, parsed.values["listen"], until_end, output.isatty())
    except RelightError as error:
        if not until_end:
            raise
        # This process is a child of a job that keeps running, so print a one-line warning.
        say(f"no status page: {error.message}")
        return error.exit_code


class _Token(NamedTuple):
    """A page's token and how the user gets it.

    Attributes:
        text: the token, or an empty string if it can't be determined.
        fragment: the part of the page's address that contains the token.
        where: a message that says where to find the token, if it is not in the address.
    """

    text: str
    fragment: str
    where: str


@contextlib.contextmanager
def _token(
    variables: Mapping[str, str], jobs: JobDirectory, job: str, page: PageAddress, on_terminal: bool
) -> Iterator[_Token]:
    """Yield the page's token, either the user's own or a new one. The token is only printed to a
    terminal, because a log file may be readable by others. Without a terminal, it is stored in a
    file as long as the page is being served.

    Raises:
        UsageError: if the user's token is invalid.
    """
    chosen = variables.get(STATUS_TOKEN, "")
    if chosen:
        try:
            parse_status_token(chosen)
        except ValueError as error:
            raise UsageError(f"{STATUS_TOKEN}: {error}") from None
    text = chosen or secrets.token_urlsafe(24)
    if on_terminal:
        yield _Token(text, f"#token={quote(text, safe='')}", "")
    elif chosen:
        yield _Token(text, "", f"its token is in {STATUS_TOKEN}")
    elif page.is_public:
        yield _Token("", "", "")
    else:
        try:
            path = jobs.make_token(job, text)
        except OSError as error:
            hint = f"set {STATUS_TOKEN}"
            raise MachineError(
                f"can't write the page's token: {error.strerror}", hint=hint
            ) from None
        try:
            yield _Token(text, "", f"its token is in {path}")
        finally:
            jobs.remove_token(path)


def _serve(job: handles.Handle, where: PageAddress, until_end: bool, on_terminal: bool) -> int:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    variables = env.read().variables
    jobs = JobDirectory(variables)
    actions = _actions(jobs, job)
    with _token(variables, jobs, job.app_id, where, on_terminal) as token:
        watched = WatchedJob(jobs, job.app_id, actions if token.text else ())
        metrics = partial(exposition, watched.reading, Gpus().look)
        served = Served(watched.look, watched.output, metrics, actions)
        server = _listening(where, token.text, served)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = where.endpoint.host
        address = f"http://{_shown(host)}:{server.port}/{token.fragment}"
        if until_end:
            say(f"status page: {address}" + (token.where and f" ({token.where})"))
        else:
            print(address, flush=True)
            if token.where:
                say(token.where)
        if host not in _LOCAL:
            who = "can connect to this port" if where.is_public else "sees the token on the network"
            say(f"note: anyone who {who} can read the page; the connection is not encrypted")
        with contextlib.suppress(RelightError):
            metrics()  # load the modules for scrapes now, as an upgrade may remove or replace them
        end_sending = otel.start(watched.reading, variables, say)
        if until_end:
            _wait_for_end(watched, stop)
        else:
            stop.wait()
        server.finish()
        if end_sending is not None:
            end_sending()
    return EXIT_OK


def _listening(where: PageAddress, token: str, served: Served) -> PageServer:
    host, port = where.endpoint.host, where.endpoint.port or 0
    try:
        return PageServer(host, port, token, served, is_public=where.is_public)
    except OSError as error:
        if error.errno == errno.EADDRINUSE and not port:
            raise no_free_port("the status page") from None
        raise MachineError(
            f"can't listen on {where.endpoint}: "
            f"{error.strerror or format_exception_oneline(error)}",
            hint="choose another --listen=[HOST:]PORT; 0 means any free port",
        ) from None


def _actions(jobs: JobDirectory, job: handles.Handle) -> Mapping[str, Callable[[], str]]:
    def cancel() -> str:
        with Runner() as runner:
            runner.cancel(job)
        return f"{job.app_id} has been cancelled\n"

    return {"stacks": partial(stacks.job_stacks, jobs, job), "cancel": cancel}


def _wait_for_end(watched: WatchedJob, stop: threading.Event) -> None:
    agent = watched.reading().job.nodes[0]
    while not stop.wait(_POLL_S) and agent_processes.lives(agent.pid):
        pass
    # The final snapshot is about to appear.
    wait_until(lambda: watched.reading(now=True).job.nodes[0].state == ENDED, _POLL_S, _POLL_S / 10)


def _shown(host: str) -> str:
    host = socket.gethostname() if host in _ALL else host
    return f"[{host}]" if ":" in host else host
