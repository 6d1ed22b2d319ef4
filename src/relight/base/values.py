"""Parsers for the values of individual flags. The parsers do no I/O.

Each `parse_…` function takes the text of one flag. If the text is invalid, it raises a ValueError
that describes the expected form.
"""

import os
import signal
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from relight.base.errors import signal_exit_code
from relight.base.text import closest_match

STDOUT, STDERR = 1, 2
"""A worker's output streams as bits, as in `--redirects` and `--tee`. 3 means both streams."""

MAX_SECONDS = 2e6
"""23 days. epoll can't wait much longer."""
MAX_NODES = MAX_WORKERS = 1_000_000
_MAX_DIGITS = 18
KEEP_WARM_S = 1800.0
MAX_NAME = 60
"""The maximum length of a job name."""
NO_LIMIT = -1
"""Represents the absence of a limit."""
AUTO = "auto"
"""Means that --preload imports the modules that the script imports."""
BACKGROUND = "background"
"""Like AUTO, but for restarts only. No worker waits for the imports or starts while they are
running.
"""

TOKEN = "RELIGHT_TOKEN"  # noqa: S105  # not a secret, only a name
STATUS_TOKEN = "RELIGHT_STATUS_TOKEN"  # noqa: S105  # not a secret, only a name
"""The environment variable that holds the token for status pages. If it is unset, each page
generates its own token.
"""
_MIN_TOKEN = 16
_TOKEN_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._~+/-")
_PUBLIC = "public"
_NOT_IN_HOSTS = "/@,;[]${}<>'\"\\"

BACKENDS = ("static", "c10d", "etcd", "etcd-v2", "file")

Number = TypeVar("Number", int, float)


class Nodes(NamedTuple):
    """The minimum and maximum number of nodes. The two are equal in a fixed-size job."""

    min_nodes: int
    max_nodes: int

    def __str__(self) -> str:
        same = self.min_nodes == self.max_nodes
        return str(self.max_nodes) if same else f"{self.min_nodes}:{self.max_nodes}"


class RankOrder(NamedTuple):
    """The order in which nodes get their ranks, either by host name or number, or `by_topology`.
    The topology may be read from a `file`.
    """

    by_topology: bool = False
    file: str = ""

    def __str__(self) -> str:
        return "topology" if self.by_topology else "host"


class KeepWarm(NamedTuple):
    """How long a warm process outlives its job. The warm process exits when it has been idle for
    `stays_s` seconds, or when the process with the pid `until` has exited. A pid of 0 means no such
    process.
    """

    stays_s: float
    until: int


class RestartBudget(NamedTuple):
    """The restart limit, either per job or within `window_s` seconds. The `per` field is the window
    in the user's own notation, such as `/1h`.
    """

    most: int
    window_s: float = 0.0
    per: str = ""

    def __str__(self) -> str:
        return f"{self.most}{self.per}"


class BadNodesDirectory(NamedTuple):
    """The directory in which bad nodes are recorded, and the time after which records expire."""

    path: str
    expiry_s: float


class HangTimeout(NamedTuple):
    """Limits for hang detection. A job counts as hung after `idle_s` seconds without any activity,
    or after `silent_s` seconds in which its only activity was CPU usage. If the `adapts` field is
    set, `idle_s` is increased when the job itself pauses for longer.
    """

    idle_s: float
    silent_s: float
    adapts: bool


class BuiltinCheck(NamedTuple):
    """A built-in check. The `least` field is the minimum in bytes, or 0 if the check has no
    minimum.
    """

    name: str
    least: int


class HealthCheck(NamedTuple):
    """The checks that run before a node's workers start. They are either a shell command or
    built-in checks.
    """

    command: str
    names: tuple[BuiltinCheck, ...] = ()

    @property
    def checks_network(self) -> bool:
        """Whether the nodes check that they can reach one another."""
        return any(each.name == NETWORK for each in self.names)


class PreemptionSource(NamedTuple):
    """The source of preemption notices: a file, or signals in addition to SIGTERM."""

    signals: tuple[int, ...]
    file: str = ""


class Endpoint(NamedTuple):
    """The address at which nodes find each other. The `port` may be None. The `others` field lists
    additional hosts that may take over. Text that contains a slash is stored unchanged in `host`.
    """

    host: str
    port: int | None
    others: tuple["Endpoint", ...] = ()

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host and "/" not in self.host else self.host
        own = host if self.port is None else f"{host}:{self.port}"
        return ",".join([own, *map(str, self.others)])


class PageAddress(NamedTuple):
    """The address of a status page. If `is_public` is set, the page can be read without a token."""

    endpoint: Endpoint
    is_public: bool = False

    def __str__(self) -> str:
        return f"{self.endpoint},{_PUBLIC}" if self.is_public else str(self.endpoint)


class StreamChoice(NamedTuple):
    """A choice of output streams, with a default and exceptions for individual local ranks."""

    default: int
    by_rank: tuple[tuple[int, int], ...] = ()

    def streams_of_rank(self, local_rank: int) -> int:
        """Return a worker's chosen streams as a bit mask: 0, STDOUT, STDERR or both bits."""
        return dict(self.by_rank).get(local_rank, self.default)

    def any(self) -> bool:
        """Return whether any stream is chosen for any worker."""
        return bool(self.default) or any(bits for _, bits in self.by_rank)


def parse_nodes(text: str) -> Nodes:
    """Parse a number of nodes: `N` or `MIN:MAX`."""
    first, colon, last = text.partition(":")
    wrong = "expected N or MIN:MAX, such as 4 or 2:8"
    least = _read(int, first, wrong)
    most = _read(int, last, wrong) if colon else least
    if least < 1:
        raise ValueError("there must be at least 1 node")
    if least > most:
        raise ValueError(f"the minimum, {least}, is above the maximum, {most}")
    if most > MAX_NODES:
        raise ValueError(f"there can be at most {MAX_NODES} nodes")
    return Nodes(least, most)


NPROC_WORDS = ("auto", "cpu", "gpu", "xpu")


def parse_nproc(text: str) -> str:
    """Parse a number of workers, or a keyword that each node resolves later for itself."""
    if text in NPROC_WORDS:
        return text
    wrong = f"expected a number of workers or one of {', '.join(NPROC_WORDS)}"
    count = _read(int, text, wrong)
    if count < 1:
        raise ValueError("there must be at least 1 worker on a node")
    if count > MAX_WORKERS:
        raise ValueError(f"there can be at most {MAX_WORKERS} workers on a node")
    return str(count)


def parse_endpoint(text: str) -> Endpoint:
    """Parse `HOST`, `HOST:PORT`, `[V6]`, `[V6]:PORT`, or several of these separated by commas.
    Empty text means this machine. Text that contains a slash is either a path, or has a
    backend-specific meaning.
    """
    if "/" in text:
        return Endpoint(text, None)
    first, *rest = text.split(",")
    endpoint = _parse_one_endpoint(first)
    others = tuple(map(_parse_one_endpoint, rest))
    for other in others:
        if not other.host:
            raise ValueError("there is no host between two commas")
    return endpoint._replace(others=others)


def _parse_one_endpoint(text: str) -> Endpoint:
    host, port = text.strip(), ""
    if host.startswith("["):
        host, bracket, port = host[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise ValueError("expected [V6_ADDRESS]:PORT")
        port = port[1:]
    elif host.count(":") == 1:
        host, _, port = host.partition(":")
        if not port:
            raise ValueError("there is no port after the colon")
    elif host[-6:-5] == ":" and host[-5:].isdecimal():
        # The groups of an IPv6 address have at most four digits, so this is a port.
        host, port = host[:-6], host[-5:]
    if port and not host:
        raise ValueError(
            f"there is no host before the colon; type localhost:{port} for this machine"
        )
    if not host.isprintable() or any(c.isspace() or c in _NOT_IN_HOSTS for c in host):
        raise ValueError("expected HOST or HOST:PORT")
    _check_ipv4(host)
    return Endpoint(host, parse_port(port) if port else None)


def parse_page(text: str) -> PageAddress:
    """Parse the address of a status page on this machine: `PORT`, `HOST:PORT` or `[V6]:PORT`,
    followed by `,public` if anyone may read it. The word `public` on its own means any free port.
    Without a host, only clients on this machine can connect.
    """
    where, comma, word = text.partition(",")
    if text == _PUBLIC:
        where, word = "0", text
    elif comma and word != _PUBLIC:
        raise ValueError(f"expected [HOST:]PORT or [HOST:]PORT,{_PUBLIC}")
    found = Endpoint("", parse_port(where)) if where.isdecimal() else _parse_one_endpoint(where)
    if found.port is None:
        raise ValueError("expected [HOST:]PORT, such as 8080 or 0.0.0.0:8080")
    local = found if found.host else found._replace(host="127.0.0.1")
    return PageAddress(local, is_public=bool(word))


def parse_status_token(text: str) -> str:
    """Parse the token for status pages. The token must be valid in an HTTP header (RFC 6750, 2.1)
    and hard to guess.
    """
    if len(text) < _MIN_TOKEN or not set(text.rstrip("=")) <= _TOKEN_LETTERS:
        raise ValueError(
            f"expected at least {_MIN_TOKEN} characters of A-Z, a-z, 0-9 and ._~+/-, such as "
            "from openssl rand -hex 32"
        )
    return text


def parse_host(text: str) -> str:
    """Parse a host name or address. An IPv6 address may be in brackets; empty text means the
    default.
    """
    if text[:1] == "[" and text[-1:] == "]" and ":" in text:
        text = text[1:-1]
    if not text.isprintable() or any(c.isspace() or c in _NOT_IN_HOSTS for c in text):
        raise ValueError("expected a host name or address")
    if text.count(":") == 1:
        raise ValueError("expected a host name or address, without a port")
    _check_ipv4(text)
    return text


def _check_ipv4(host: str) -> None:
    """Reject addresses such as 123.456.123.456, which READMEs use as placeholders."""
    parts = host.split(".")
    if len(parts) == 4 and all(p.isdecimal() for p in parts) and any(int(p) > 255 for p in parts):
        raise ValueError("the numbers of an IPv4 address are at most 255")


EVENT_HANDLERS = ("null", "console", "dynamic_rendezvous")
"""torch's names (torch 2.13, elastic/events/handlers.py). `dynamic_rendezvous` does nothing in
torch either.
"""


def parse_event_handler(text: str) -> str:
    """Parse the name of an event handler. `events/handlers` checks later whether there is a
    plug-in with that name.
    """
    return _plug_in_name(text, EVENT_HANDLERS)


def parse_backend(text: str) -> str:
    """Parse the name of a rendezvous backend. `rendezvous/backends` checks later whether there is a
    plug-in with that name.
    """
    return _plug_in_name(text, BACKENDS)


def _plug_in_name(text: str, built_in: tuple[str, ...]) -> str:
    if not text or any(c.isspace() or c in "/=," for c in text):
        raise ValueError(_not_a_choice(text or "''", built_in))
    return text


def parse_port(text: str) -> int:
    """Parse a TCP port. 0 means any free port."""
    shown = text if len(text) <= 40 else f"{text[:39]}…"
    port = _read(int, text, f"{shown!r} is not a port number")
    if not 0 <= port <= 65535:
        raise ValueError("a port is a number from 0 to 65535")
    return port


def parse_port_range(text: str) -> range:
    """Parse `PORT` or the inclusive range `FIRST-LAST`."""
    first, dash, last = text.strip().partition("-")
    ports = range(parse_port(first), parse_port(last if dash else first) + 1)
    if not ports or 0 in ports:
        raise ValueError("expected two ports from 1 to 65535, the lower one first")
    return ports


def parse_conf(text: str) -> tuple[tuple[str, str], ...]:
    """Parse `KEY=VALUE,KEY=VALUE`. If a shell left quotes around the whole text, they are
    removed.
    """
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    pairs = []
    for part in text.split(",") if text.strip() else []:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value):
            raise ValueError(f"expected KEY=VALUE,KEY=VALUE; {part!r} is not a pair")
        pairs.append((key, value))
    return tuple(pairs)


def parse_streams(text: str) -> StreamChoice:
    """Parse `0` (none), `1` (stdout), `2` (stderr), `3` (both), or `RANK:STREAMS,RANK:STREAMS`."""
    wrong = "expected 0, 1, 2 or 3, or LOCAL_RANK:STREAMS,… such as 0:3,1:2"
    if text in ("0", "1", "2", "3"):
        return StreamChoice(int(text))
    pairs = []
    for part in text.split(","):
        rank, colon, bits = part.partition(":")
        number = whole(rank)
        if not colon or number is None or bits not in ("0", "1", "2", "3"):
            raise ValueError(wrong)
        pairs.append((number, int(bits)))
    return StreamChoice(0, tuple(pairs))


def parse_ranks(text: str) -> tuple[int, ...]:
    """Parse a comma-separated list of local ranks. An empty list means all ranks."""
    ranks = []
    for part in text.split(",") if text else []:
        rank = whole(part.strip())
        if rank is None:
            raise ValueError("expected a comma-separated list of local ranks, such as 0,1")
        ranks.append(rank)
    return tuple(ranks)


def parse_filters(text: str) -> tuple[str, ...]:
    """Parse comma-separated search strings. A double comma stands for a literal comma."""
    parts = text.replace(",,", "\0").split(",")
    return tuple(part.replace("\0", ",") for part in parts if part)


def parse_signals(text: str) -> tuple[int, ...]:
    """Parse a comma-separated list of signal names, such as `SIGTERM,SIGUSR1`."""
    fatal = ("SIGKILL", "SIGSTOP")
    known = [s.name for s in signal.Signals if s.name not in fatal]
    numbers = []
    for name in (part.strip() for part in text.split(",")):
        if name in fatal:
            raise ValueError(f"{name} can't be handled by any process")
        if name not in known:
            raise ValueError(_not_a_choice(name or "''", known))
        numbers.append(int(signal.Signals[name]))
    return tuple(dict.fromkeys(numbers))


def parse_exit_codes(text: str) -> tuple[int, ...]:
    """Parse exit codes and signal names, such as `2,SIGXCPU`. Signal n corresponds to exit code 128
    + n.
    """
    names = [each.name for each in signal.Signals]
    codes = []
    for part in (part.strip() for part in text.split(",")) if text else []:
        code = signal_exit_code(signal.Signals[part]) if part in names else whole(part)
        if code is None or not 1 <= code <= 255:
            meant = closest_match(part, names) if code is None else ""
            raise ValueError(
                f"{part or repr('')} is neither an exit code from 1 to 255 nor a signal; "
                + (f"did you mean {meant}?" if meant else "expected a list such as 2,SIGXCPU")
            )
        codes.append(code)
    return tuple(dict.fromkeys(codes))


def parse_notice(text: str) -> PreemptionSource:
    """Parse the source of preemption notices: a list of signals or the path of a file."""
    if not text:
        raise ValueError("expected a signal such as SIGUSR1, or a file")
    is_signal = text.isupper() and "/" not in text
    return PreemptionSource(parse_signals(text)) if is_signal else PreemptionSource((), text)


def parse_hang_timeout(text: str) -> HangTimeout | None:
    """Parse `off`, a number of seconds, or `auto`, which means 5 minutes of idle time or 30 minutes
    of CPU usage without other activity.
    """
    word = text.strip().lower()
    if word in ("", "off"):
        return None
    if word == AUTO:
        return HangTimeout(300.0, 1800.0, adapts=True)
    seconds = _read(float, word, "expected a number of seconds, auto or off")
    if not 1 <= seconds <= MAX_SECONDS:
        raise ValueError(f"expected at least 1 second, and at most {MAX_SECONDS:.0f}")
    return HangTimeout(seconds, seconds, adapts=False)


SLOW_RANKS_S = 120.0
"""The default length of the window in which ranks are compared."""


def parse_slow_ranks(text: str) -> float | None:
    """Parse `off`, `on` (120 seconds), or a number of seconds."""
    word = text.strip().lower()
    if word in ("", "off"):
        return None
    if word == "on":
        return SLOW_RANKS_S
    seconds = _read(float, word, "expected a number of seconds, on or off")
    if not 10 <= seconds <= MAX_SECONDS:
        raise ValueError(f"expected at least 10 seconds, and at most {MAX_SECONDS:.0f}")
    return seconds


NETWORK = "network"
CHECKS = {"disk": 1 << 30, "memory": 1 << 30, "shm": 32 << 20, "gpu": 0, NETWORK: 0}
"""The checks by name, each with the minimum number of free bytes if applicable."""
_UNITS_OF_SIZE = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_name(text: str) -> str:
    """Validate a job name, which consists of letters, digits, `_`, `.` and `-`, like file and host
    names.

    Raises:
        ValueError: if the name contains other characters or is too long.
    """
    plain = text.replace(".", "_").replace("-", "_")
    if not (text.isascii() and f"_{plain}".isidentifier() and text[:1] not in ("", ".", "-")):
        raise ValueError(
            "expected letters, digits, '_', '.' and '-', not beginning with '.' or '-'"
        )
    if len(text) > MAX_NAME:
        raise ValueError(f"expected at most {MAX_NAME} characters")
    return text


def parse_health_check(text: str) -> HealthCheck | None:
    """Parse check names, such as `disk=10G,gpu`, or a command. Text that contains a space or a
    slash is treated as a command.
    """
    text = text.strip()
    if not text or text == "off":
        return None
    if "\0" in text:
        raise ValueError("a command can't contain a null character")
    if "/" in text or any(character.isspace() for character in text):
        return HealthCheck(text)
    return HealthCheck("", tuple(_check_by_name(part) for part in text.split(",")))


def _check_by_name(text: str) -> BuiltinCheck:
    name, equals, size = text.partition("=")
    if name not in CHECKS:
        raise ValueError(
            f"{_not_a_choice(name or repr(''), tuple(CHECKS))} (a command contains a slash or a "
            "space, such as ./check.sh)"
        )
    if not equals:
        return BuiltinCheck(name, CHECKS[name])
    unit = _UNITS_OF_SIZE.get(size[-1:])
    number = size[:-1]
    if not CHECKS[name] or unit is None or not (number.isdecimal() and 0 < len(number) < 10):
        raise ValueError(
            f"expected {name}=SIZE, such as {name}=10G"
            if CHECKS[name]
            else f"{name} does not take a size"
        )
    return BuiltinCheck(name, int(number) * unit)


def parse_preload(text: str) -> tuple[str, ...]:
    """Parse `off`, `auto`, `background`, or comma-separated modules. Empty text means off."""
    word = text.lower()
    if word in ("", "off"):
        return ()
    if word in (AUTO, BACKGROUND):
        return (word,)
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(
                f"{name or repr('')} is not a module; expected off, auto, background or names"
            )
    for word in (AUTO, BACKGROUND):
        if word in names:
            raise ValueError(f"{word} detects the modules itself; leave out the names or {word}")
    if "off" in names:
        raise ValueError("off preloads nothing; leave out the names or off")
    return names


def parse_keep_warm(text: str) -> KeepWarm | None:
    """Parse `off`, `on` (30 minutes), a number of minutes, or `while:PID`."""
    word = text.strip().lower()
    if word in ("", "off", "0", "false", "no"):
        return None
    if word in ("on", "true", "yes"):
        return KeepWarm(KEEP_WARM_S, 0)
    kind, colon, pid = word.partition(":")
    if colon:
        number = whole(pid)
        if kind != "while" or not number:
            raise ValueError("expected minutes, or while:PID with the pid of a process")
        return KeepWarm(KEEP_WARM_S, number)
    seconds = _read(float, word, "expected minutes, on, off, or while:PID") * 60
    if not 0 < seconds <= MAX_SECONDS:
        raise ValueError(f"expected minutes, above 0 and at most {MAX_SECONDS / 60:.0f}")
    return KeepWarm(seconds, 0)


def parse_grace(text: str) -> float:
    """Parse a time in seconds. 0 is allowed."""
    seconds = _number(text)
    if seconds < 0:
        raise ValueError("the time can't be negative")
    return seconds


def parse_interval(text: str) -> float:
    """Parse a time in seconds greater than 0."""
    seconds = _number(text)
    if seconds <= 0:
        raise ValueError("the interval must be above 0")
    return seconds


def parse_count(text: str) -> int:
    """Parse an integer that is 0 or greater."""
    count = _read(int, text, "expected a whole number")
    if count < 0:
        raise ValueError("the number can't be negative")
    return count


def parse_rank_order(text: str) -> RankOrder:
    """Parse `host`, `topology` or `topology=FILE`."""
    word, equals, path = text.partition("=")
    if text != "host" and (word != "topology" or (equals and not path)):
        raise ValueError("expected host, topology or topology=FILE")
    return RankOrder(word == "topology", parse_pattern(path))


def parse_segment(text: str) -> int:
    """Parse the number of nodes in a segment."""
    count = parse_count(text)
    if count < 1:
        raise ValueError("there must be at least 1 node in a segment")
    return count


_BAD_NODE_S = 7 * 86400.0
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_restarts(text: str) -> RestartBudget:
    """Parse `N`, or `N/TIME`, where TIME is written like `1h`, `30m`, `2d` or `90s`."""
    count, slash, time = text.partition("/")
    if not slash:
        return RestartBudget(parse_count(text))
    window_s = _time_s(time)
    if window_s is None:
        raise ValueError("expected N or N/TIME, such as 3 or 3/1h (units: s, m, h, d)")
    if not 0 < window_s <= MAX_SECONDS:
        raise ValueError(f"the time must be above 0 and at most {MAX_SECONDS / 86400:.0f} days")
    return RestartBudget(parse_count(count), window_s, f"/{time}")


def parse_bad_nodes(text: str) -> BadNodesDirectory | None:
    """Parse `DIR`, or `DIR,TIME`, where TIME is written like `7d`. Empty text or `off` means
    none.
    """
    if text in ("", "off"):
        return None
    path, comma, time = text.partition(",")
    expiry_s = _time_s(time) if comma else _BAD_NODE_S
    if not path or not expiry_s:
        raise ValueError(
            "expected DIR or DIR,TIME, such as /shared/bad-nodes,7d (units: s, m, h, d)"
        )
    return BadNodesDirectory(parse_pattern(path), expiry_s)


def _time_s(text: str) -> float | None:
    """Return the number of seconds in `90s`, `30m`, `1h`, `2d` or `h`, or None for other text."""
    unit, number = _UNITS.get(text[-1:]), text[:-1] or "1"
    if unit is None or not (number.isascii() and number.isdecimal() and len(number) < 10):
        return None
    return float(int(number) * unit)


def parse_pattern(text: str) -> str:
    """Parse a path pattern, and make it absolute, because a relative pattern is relative to the
    current directory.
    """
    if "\0" in text:
        raise ValueError("a path can't contain a null character")
    return os.path.abspath(text) if text else ""


def parse_metrics(text: str) -> tuple[str, ...]:
    """Parse regular expressions that find numbers in output lines. There is one expression per line
    of text.
    """
    from relight.base.metric_patterns import MetricFinder  # with the flag only: re takes 5 ms

    patterns = tuple(filter(None, text.split("\n")))
    MetricFinder(patterns)
    return patterns


def parse_trackers(text: str) -> tuple[tuple[str, str], ...]:
    """Parse a list of trackers. Each line contains a tracker's name, or its name and
    configuration.
    """
    from relight.base import trackers  # only with the flag

    named = (line.partition("=") for line in filter(None, text.split("\n")))
    configs = {name: config for name, _, config in named}
    trackers.variables(configs)
    return tuple(configs.items())


def one_of(*words: str) -> Callable[[str], str]:
    """Return a parser that accepts one of `words`."""

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(_not_a_choice(text, words))
        return text

    return parse


def _read(kind: Callable[[str], Number], text: str, wrong: str) -> Number:
    """Return the number in a text, or raise a ValueError with the message `wrong`."""
    try:
        return kind(text)
    except ValueError:
        raise ValueError(wrong) from None


def _number(text: str) -> float:
    seconds = _read(float, text, "expected a number of seconds")
    if not seconds <= MAX_SECONDS:
        raise ValueError(f"expected a finite number of seconds, at most {MAX_SECONDS:.0f}")
    return seconds


def _not_a_choice(word: str, known: "tuple[str, ...] | list[str]") -> str:
    meant = closest_match(word, known)
    return f"{word} is not one of {', '.join(known)}" + (
        f"; did you mean {meant}?" if meant else ""
    )


def whole(text: str) -> int | None:
    """Parse at most 18 ASCII digits as a number. Return None for any other text, such as `²` or
    text that is too long for `int`.
    """
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS else None


def is_number(text: str) -> bool:
    """Return whether Python's `float` accepts this text."""
    try:
        float(text)
    except ValueError:
        return False
    return True
