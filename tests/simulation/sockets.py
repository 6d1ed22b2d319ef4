"""A fake `relight.host`: a loop, connections, datagrams, name lookups and blocking calls.

Connections deliver data in order, as in TCP. Data sent during a cut arrives after it has healed if
both ends still exist. Data for an end that is gone is answered with a reset.
"""

import marshal
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from relight.net import heartbeats
from relight.net.connection import CLOSED

from .world import Host, Process, Timer, World

SYN_RETRY_S = (1.0, 2.0, 4.0)
OPEN_TIMEOUT_S = 5.0
_FIRST_RTO_S = 0.2


class Later(Exception):
    """Raised by a blocking call that returns after `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds


class Loop:
    """One process's event loop."""

    def __init__(self, world: World) -> None:
        self.process = world.me()
        self.on_internal_error: Callable[[str, Exception], None] = _raise
        self.signals: dict[int, Callable[[int], None]] = {}
        self._world = world

    def now(self) -> float:
        return self.process.host.now()

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        timer, host, world = Timer(when, callback), self.process.host, self._world
        at = host.in_world(when)
        if host.lag_s:
            at += world.random.uniform(0, host.lag_s)
            self.process.lagging.append(timer)
        world.at(at, self.process.fire, timer)
        return timer

    def call_after(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return self.call_at(self.now() + seconds, callback)

    def on_signal(self, number: int, callback: Callable[[int], None]) -> None:
        self.signals[number] = callback

    def run_guarded(self, act: Callable[[], None], what: str) -> bool:
        del what
        act()
        return True

    def run_until(self, done: Callable[[], bool], limit_s: float | None = None) -> None:
        if limit_s is None:
            self.process.wait_until(done)
        else:
            limit = self.call_after(max(0.0, limit_s), lambda: None)
            self.process.wait_until(lambda: done() or self.now() >= limit.when)

    def run_once(self, timeout_s: float | None) -> None:
        del timeout_s

    def close(self) -> None:
        pass


class Socket:
    """A process's listening port."""

    family = socket.AF_INET

    def __init__(self, world: World, address: str, port: int) -> None:
        self.world = world
        self.process = world.me()
        self.address = address
        self.port = port
        self.listener: Listener | None = None
        self.backlog: list[tuple[End, Any]] = []
        self.strangers: dict[End, None] = {}
        self.process.host.ports[port] = self

    def getsockname(self) -> tuple[str, int]:
        return self.address or "0.0.0.0", self.port

    def close(self) -> None:
        if self.process.host.ports.get(self.port) is self:
            del self.process.host.ports[self.port]
        self.abandon()

    def abandon(self, *, silently: bool = False) -> None:
        """Drop the pending connections."""
        for end in list(self.strangers):
            end.die(silently=silently)
        self.backlog.clear()


class End:
    """One end of a connection, which replaces `relight.net.connection.Connection`."""

    def __init__(
        self, world: World, process: Process, owner: Any, hello: Any, own: str, peer: str
    ) -> None:
        self.world = world
        self.process = process
        self.owner = owner
        self.hello = hello
        self.opening = SimpleNamespace(peer_hello=None)
        self.peer = peer
        self.heard_at = process.host.now()
        self.is_open = self.refused = self.turned_away = False
        self.session_key = b""
        self.other: End | None = None
        self.gone = False
        self.timer: Timer | None = None
        self.sock: Socket | None = None
        self._own = own
        self._arrival = 0.0
        self._broken = False
        self._held: list[tuple[str, Any]] = []
        self._held_at = 0.0
        process.ends[self] = None

    # The interface of `Connection`.

    @property
    def is_answered(self) -> bool:
        return self.other is not None

    def own_address(self) -> str:
        return self._own

    def send(self, message: Any) -> None:
        if not self.gone:
            assert self.is_open
            if message.get("type") != "heartbeat":
                message = marshal.loads(marshal.dumps(message))  # accepts only plain values
            self.transmit("message", message)

    def drain(self) -> bool:
        return True

    def close(self) -> None:
        if not self.gone:
            self.die()

    def fail(self, reason: str) -> None:
        if not self.gone:
            self.die()
            self.owner.closed(self, reason)

    # The wire.

    def die(self, *, silently: bool = False) -> None:
        """Close this end. The other end notices, unless the machine is gone."""
        if self.gone:
            return
        self.gone, self.is_open = True, False
        self._leave()
        if silently:
            self._held.clear()
        elif self.other is not None:
            self.transmit("fin", None)

    def _leave(self) -> None:
        self.process.ends.pop(self, None)
        if self.sock is not None:
            self.sock.strangers.pop(self, None)
        if self.timer is not None:
            self.timer.cancel()

    def transmit(self, kind: str, payload: Any) -> None:
        """Send to the other end, in order."""
        assert self.other is not None
        world, here, there = self.world, self.process.host, self.other.process.host
        if self._broken:
            return
        refuses = world.refuses(here, there)
        if refuses and not world.walls_mute:
            self._broken = True
            world.after(
                world.delay(here, there), self.process.call, self.reset, "Connection reset by peer"
            )
            return
        large = kind == "message" and payload.get("type") != "heartbeat"
        lost = large and {here.number, there.number} & world.holes
        if self._held or refuses or not world.passes(here, there) or lost:
            if not self._held:
                self._held_at = world.now
            self._held.append((kind, payload))
            world.held[self] = None
            return
        delay = world.delay(here, there) if here is not there else 2e-4
        self._arrival = max(self._arrival, world.now + delay)
        world.at(self._arrival, self.other.arrive, kind, payload)

    def repeats_in(self) -> float:
        """Return in how many seconds TCP retransmits after a cut.

        The first retransmission is after 0.2 s, and each later one after twice as long (RFC 6298;
        Linux's TCP_RTO_MIN).
        """
        waited, again = self.world.now - self._held_at, _FIRST_RTO_S
        while again < waited:
            again = 2 * again + _FIRST_RTO_S
        return again - waited

    def send_held(self) -> None:
        """Retransmit after a cut."""
        way = (self.process.host, self.other.process.host) if self.other is not None else None
        if way and (self.world.refuses(*way) or not self.world.passes(*way)):
            return
        held, self._held = self._held, []
        self.world.held.pop(self, None)
        for kind, payload in held:
            if self.other is not None and not (self.gone and not self.process.host.up):
                self.transmit(kind, payload)

    def arrive(self, kind: str, payload: Any) -> None:
        """Handle data that has arrived at this machine."""
        if not self.process.host.up:
            return
        if self.gone:
            if kind != "fin" and self.other is not None and not self.other.gone:
                self._answer_by_reset(self.other)
            return
        self.process.call(self.receive, kind, payload)

    def _answer_by_reset(self, other: "End") -> None:
        """Reset the other end after the data already sent (still readable on Linux)."""
        world, here, there = self.world, self.process.host, other.process.host
        if world.passes(here, there):
            self._arrival = max(self._arrival, world.now + world.delay(here, there))
            world.at(self._arrival, other.process.call, other.reset, "Connection reset by peer")

    def reset(self, reason: str) -> None:
        """Treat the connection as broken on this end."""
        if not self.gone:
            opened = self.is_open
            self.gone, self.is_open = True, False
            self._leave()
            if self.sock is not None and self.sock.listener is None:
                return
            if opened or self.sock is None:
                self.owner.closed(self, reason)

    def receive(self, kind: str, payload: Any) -> None:
        """Let the process read the data that has arrived."""
        if self.gone:
            return
        if self.sock is not None and self.sock.listener is None:
            self.sock.backlog.append((self, (kind, payload)))
            return
        self.heard_at = self.process.host.now()
        if kind == "message":
            self.owner.received(self, payload)
        elif kind == "fin":
            was_open = self.is_open
            self.die()
            if was_open or self.sock is None:
                self.owner.closed(self, CLOSED)
        elif kind == "hello" and self.sock is not None:
            self.opening.peer_hello = payload
            assert self.sock.listener is not None
            self.transmit("hello", self.sock.listener.hello)
        elif kind == "hello":
            self.opening.peer_hello = payload
            self.transmit("proof", None)
            self._open(payload)
        elif kind == "proof" and self.sock is not None:
            assert self.sock.listener is not None
            self.owner = self.sock.listener.owner
            hello, self.opening.peer_hello = self.opening.peer_hello, None
            self._open(hello)

    def _open(self, hello: Any) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self.sock is not None:
            self.sock.strangers.pop(self, None)
        self.is_open = True
        self.owner.opened(self, hello)

    # Opening a connection.

    def syn(self, host: Host, port: int, tries: int) -> None:
        """Request a connection from a machine."""
        world, here = self.world, self.process.host
        if self.gone or not self.process.alive:
            return
        if world.refuses(here, host):
            world.after(2 * world.delay(here, host), self.process.call, self.refuse)
        elif not (world.passes(here, host) and world.passes(host, here)):
            if tries < len(SYN_RETRY_S):
                world.after(SYN_RETRY_S[tries], self.syn, host, port, tries + 1)
        else:
            delay = 2 * world.delay(here, host) if here is not host else 1e-4
            world.after(delay, self._reach, host, port, tries)

    def _reach(self, host: Host, port: int, tries: int) -> None:
        world = self.world
        if self.gone or not self.process.alive:
            return
        if not world.passes(host, self.process.host):
            world.after(1.0, self.syn, host, port, tries)
            return
        sock = host.ports.get(port)
        alone = sock is not None and sock.address.startswith("127.")
        if sock is None or (alone and host is not self.process.host):
            self.process.call(self.refuse)
            return
        other = End(world, sock.process, None, None, self._own_there(host), self.process.name)
        other.sock, other.other, self.other = sock, self, other
        sock.strangers[other] = None
        self.session_key = other.session_key = world.random.randbytes(32)
        other.timer = timer_of(
            sock.process, OPEN_TIMEOUT_S, lambda: None if other.is_open else other.die()
        )
        self.process.call(self._connected)

    def _connected(self) -> None:
        if not self.gone:
            self.transmit("hello", self.hello)

    def _own_there(self, host: Host) -> str:
        return "127.0.0.1" if host is self.process.host else host.address

    def refuse(self) -> None:
        """Report that nothing is listening there."""
        if not self.gone:
            self.refused = True
            self.fail("refused")

    def too_late(self) -> None:
        """Report a timeout."""
        if not self.is_open:
            self.fail("no answer in time")


class Listener:
    """Replaces `relight.net.listener.Listener`."""

    def __init__(
        self, loop: Loop, sock: Socket, owner: Any, hello: Any, security: Any, divert: Any = None
    ) -> None:
        del security, divert
        self.on_refused: Callable[[str], None] = lambda _: None
        self.hello = hello
        self.owner = owner
        self.most_strangers = 1000
        self._sock = sock
        sock.listener = self
        backlog, sock.backlog = sock.backlog, []
        for end, (kind, payload) in backlog:
            loop.process.world.after(0, loop.process.call, end.receive, kind, payload)

    def close(self) -> None:
        self._sock.close()


class Heartbeats(heartbeats.Heartbeats):
    """Replaces `relight.net.heartbeats.Heartbeats`, but uses its seals."""

    def __init__(self, loop: Any, address: tuple[str, int], family: int, on_datagram: Any) -> None:
        del family
        self.process: Process = loop.process
        self.world = self.process.world
        self.on_datagram = on_datagram
        self.on_unreachable: Callable[[tuple[str, int]], None] = lambda _: None
        self._loop = loop
        self._probed = {}
        self._timer: Any = None
        self._number = address[1] or self.world.random.randrange(32768, 61000)
        self._boxes = _boxes(self.world)
        self._at = self.process.host.number, self._number
        self._is_open = self._at not in self._boxes
        if self._is_open:
            self._boxes[self._at] = self
        self._is_held = self._has_no_workers()
        self.process.at_death.append(self._orphan)

    @property
    def port(self) -> int:
        return self._number if self._is_open else 0

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self._probed.clear()
        self._is_open = False
        if self._has_no_workers() or not self._is_held:
            self._free()  # otherwise their spawner holds it as well

    def _has_no_workers(self) -> bool:
        agent = self.process.agent
        return agent is None or agent.workers is None

    def _free(self) -> None:
        if self._boxes.get(self._at) is self:
            del self._boxes[self._at]

    def _orphan(self) -> None:
        """The process is gone. The guard holds the socket as long as there are workers."""
        self._probed.clear()
        self._is_open = False
        if self._is_held and self.process.host.up:
            self.world.after(self.world.guard_s, self._free)
        else:
            self._free()

    def send(self, data: bytes, target: tuple[Any, ...]) -> None:
        world, here = self.world, self.process.host
        there = world.host_of(str(target[0]), here)
        if there is None or not world.passes(here, there) or not self._is_open:
            return
        if world.random.random() >= world.loss and world.has_datagrams:
            delay = world.delay(here, there)
            if world.refuses(here, there):
                if world.walls_lie:
                    world.after(2 * delay, self._be_refused, data, target)
                return
            sender = here.address, self.port
            world.after(delay, self._arrive, there, target, data, sender)

    def _arrive(self, there: Host, target: Any, data: bytes, sender: tuple[str, int]) -> None:
        here = self.process.host
        box = self._boxes.get((there.number, int(target[1])))
        if box is not None and there.up:
            box.process.call(box._take, data, sender)
        elif there.up and not there.paused and self.world.passes(there, here):
            self.world.after(self.world.delay(there, here), self._be_refused, data, target)

    def _be_refused(self, data: bytes, target: Any) -> None:
        self.process.call(lambda: self._on_refused(data, target) if self._is_open else None)

    def _take(self, data: bytes, sender: tuple[str, int]) -> None:
        if self._is_open:
            self.on_datagram(data, sender)


def dial(
    loop: Loop, address: tuple[str, int], owner: Any, hello: Any, security: Any, *,
    timeout_s: float = OPEN_TIMEOUT_S,
) -> End:  # fmt: skip
    """Replaces `relight.net.connection.dial`."""
    del security
    process, world = loop.process, loop.process.world
    host = world.host_of(address[0], process.host)
    own = "127.0.0.1" if host is process.host else process.host.address
    hello = marshal.loads(marshal.dumps(hello))
    end = End(world, process, owner, hello, own, f"{address[0]}:{address[1]}")
    end.timer = loop.call_after(timeout_s, end.too_late)
    if host is not None:
        world.after(0, end.syn, host, address[1], 0)
    return end


def resolve(
    loop: Loop, host: str, port: int, done: Callable[[list[tuple[str, int]], str], None]
) -> None:
    """Replaces `relight.net.dns.resolve`."""
    process, world = loop.process, loop.process.world
    if host.startswith(("10.", "127.")):
        loop.call_after(0, lambda: done([(host, port)], ""))
        return
    found = [(each.address, port) for each in world.hosts if each.name == host]
    seconds = world.random.uniform(0, world.names_s)
    world.after(seconds, process.call, done, found, "" if found else f"{host} is not known")


def call(loop: Loop, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
    """Replaces `relight.host.background.call`. The call may raise `Later`, and is then repeated."""
    process, world = loop.process, loop.process.world

    def attempt() -> None:
        if not process.alive:
            return
        before, world.current = world.current, process
        try:
            result = work()
        except Later as later:
            world.after(later.seconds, attempt)
            return
        except Exception as error:
            result = error
        finally:
            world.current = before
        late_s = getattr(process.register, "answer_s", 0.0)
        world.after(world.delay() + late_s, process.call, done, result)

    world.after(world.delay(), attempt)


def refuses(world: World, address: tuple[str, int]) -> bool:
    """Return what `relight.cli.coordinator._refuses` would, immediately.

    Raises:
        OSError: If no reply arrives.
    """
    here = world.me().host
    there = world.host_of(address[0], here)
    if there is None or not (world.passes(here, there) and world.passes(there, here)):
        raise TimeoutError
    return world.refuses(here, there) or address[1] not in there.ports


def timer_of(process: Process, seconds: float, callback: Callable[[], None]) -> Timer:
    """Schedule a callback in a process."""
    host = process.host
    timer = Timer(host.now() + seconds, callback)
    process.world.at(host.in_world(timer.when), process.fire, timer)
    return timer


def _boxes(world: World) -> dict[tuple[int, int], Heartbeats]:
    boxes: dict[tuple[int, int], Heartbeats] = world.__dict__.setdefault("boxes", {})
    return boxes


def _raise(what: str, error: Exception) -> None:
    del what
    raise error
