"""Accesses a registry on behalf of one process, one request at a time. Each request reads, writes
or renews the record, or removes it if its holder appears to have exited. `core/link/leader_lease`
decides what to do with the results.
"""

import json
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from relight.base import fields
from relight.base.errors import UsageError
from relight.base.text import format_duration
from relight.core.link.leader_lease import Candidacy
from relight.events.event_types import StateChanged
from relight.host import background
from relight.host.loop import Alarm, Loop
from relight.rendezvous.discovery import Seeker
from relight.rendezvous.leader_lock import LeaderLock, Record

_RENEW_S = 0.3
_RELEASE_S = 2.0
Answer = Record | Exception


class CoordinatorAddress(NamedTuple):
    """The addresses that a coordinator announces to other nodes. The first address is
    authoritative.
    """

    host: str
    addresses: tuple[str, ...]
    port: int

    def to_text(self) -> str:
        """Serialize the addresses as the content of a record."""
        return json.dumps(fields.plain(self))

    @classmethod
    def parse(cls, text: str) -> "CoordinatorAddress | None":
        """Parse the text of a record, or return None if it doesn't contain an address."""
        try:
            found: CoordinatorAddress = fields.record(cls, fields.decode(text))
        except fields.Malformed:
            return None
        names = found.host, *found.addresses
        return found if found.port and found.addresses and all(map(str.strip, names)) else None


class Candidate:
    """One process's claim to a registry's record.

    Args:
        loop: the agent's loop.
        register: the registry, called in threads, one request at a time.
        where: the registry, in readable form.
        ttl_s: how long a hold lasts unless it is renewed, in seconds.
        candidacy: determines until when the hold is certain to last.

    Attributes:
        seeker: is notified when the hold begins, is extended or ends. Set it before the first
            request.
    """

    def __init__(
        self,
        loop: Loop,
        register: LeaderLock,
        where: str,
        ttl_s: float,
        candidacy: Candidacy,
    ) -> None:
        self.seeker: Seeker
        self.register = register
        self.asked_at: float | None = None
        """The time of the current request, or None."""
        self._loop = loop
        self._where = where
        self._ttl_s = ttl_s
        self._candidacy = candidacy
        self._value = ""
        self._answers = True
        self._closed = False
        self._renewal = Alarm(loop, self._renew)
        self._expiry = Alarm(loop, partial(self.step_down, "the register is not responding"))

    def waiting_s(self) -> float:
        """Return how many seconds the current request has been pending, or 0 without a request."""
        return 0.0 if self.asked_at is None else self._loop.now() - self.asked_at

    def take(self, contact: Callable[[], str], done: Callable[[Answer], None]) -> bool:
        """Read the record. If it doesn't exist, write the text returned by `contact`.

        The argument `contact` is called only in that case, in a thread. If it returns an empty
        string, nothing is written. The argument `done` is called in the event loop, with the record
        or the error. Returns False while another request is in progress.
        """
        asked_at = self._loop.now()

        def look_or_hold() -> Record:
            found = self._hold("")
            if found.ours:  # left over from an earlier hold that this process ended
                self.register.release()
            elif found.value:
                return found
            self._value = contact()
            return self._hold(self._value) if self._value else found

        # A registry that is full may have enough space to write a record after removing another,
        # but not to renew it. Each process in turn would then be the coordinator for a moment, so a
        # new record only counts once it has been renewed.
        def renew(found: Answer) -> None:
            if isinstance(found, Record) and found.ours:
                self._request(lambda: self._hold(self._value), finish)
            else:
                done(found)

        def finish(found: Answer) -> None:
            if isinstance(found, Exception):
                self._request(self.register.release, lambda _: done(found))
                return
            if found.ours:
                self._hold_from(asked_at)
                self._renew_later()
            done(found)

        return self._request(look_or_hold, renew)

    def evict(
        self, record: Record, patience_s: float, then: Callable[[bool | Exception], None]
    ) -> bool:
        """Remove the record of a process that appears to have exited; see `LeaderLock.evict`.
        The argument `then` is called in the event loop with whether the record was removed, or with
        the error.
        """
        return self._request(lambda: bool(self.register.evict(record, patience_s)), then)

    def step_down(self, reason: str) -> None:
        """End the hold, and stop coordinating."""
        self._end_hold(reason)
        if not self._closed:
            self.seeker.step_down(reason, 0.0)

    def release(self, reason: str) -> None:
        """End the hold and release the record immediately, so that another process can take it."""
        self._end_hold(reason)
        self._request(self.register.release, lambda _: None)

    def close(self) -> None:
        """End the hold, and release the record if the registry responds within 2 s."""
        self._closed = True
        self._end_hold("the process leaves")
        end = self._loop.now() + _RELEASE_S
        self._loop.run_until(lambda: self.asked_at is None, _RELEASE_S)
        self._request(self._release_and_close, lambda _: None)
        self._loop.run_until(lambda: self.asked_at is None, end - self._loop.now())

    def _end_hold(self, reason: str) -> None:
        """End the hold in this process. In the registry, the next request updates the record, or
        the record expires.
        """
        if self._candidacy.until:
            self.seeker.record(StateChanged("candidacy", "holding", "waiting", reason))
        self._candidacy.end_hold()
        self._renewal.set(None)
        self._expiry.set(None)

    def _release_and_close(self) -> None:
        try:
            self.register.release()
        finally:
            self.register.close()

    def _hold_from(self, asked_at: float) -> None:
        """Record that the registry has confirmed the hold. The hold's duration counts from the time
        of the request.
        """
        if not self._candidacy.until:
            cause = "the register names this process"
            self.seeker.record(StateChanged("candidacy", "waiting", "holding", cause))
        self._candidacy.held(asked_at)
        self._expiry.set(self._candidacy.until)

    def _renew_later(self) -> None:
        self._renewal.set(self._loop.now() + min(_RENEW_S, self._ttl_s / 5))

    def _renew(self) -> None:
        asked_at = self._loop.now()

        def on_answer(found: Answer) -> None:
            if not self._candidacy.until:
                return
            if isinstance(found, Exception):
                if self._answers:
                    left = format_duration(self._candidacy.until - self._loop.now())
                    self.seeker.say(
                        f"can't renew the coordinator's record at {self._where}, "
                        f"coordinating for {left} more: {describe_error(found)}"
                    )
                self._answers = False
            elif not found.ours:
                self.step_down("the register names another coordinator")
                return
            else:
                self._answers = True
                self._hold_from(asked_at)
                self.seeker.extended(self._candidacy.until)
            if self._candidacy.until:
                self._renew_later()

        if not self._request(lambda: self._hold(self._value), on_answer):
            self._renew_later()

    def _hold(self, value: str) -> Record:
        found: object = self.register.hold(value, self._ttl_s)
        if not isinstance(found, Record):
            kind = type(self.register).__name__
            raise UsageError(
                f"{kind}.hold returned {found!r:.100}, not a Record",
                hint="report this to the plug-in's authors",
            )
        return found

    def _request(self, work: Callable[[], object], done: Callable[..., None]) -> bool:
        if self.asked_at is not None:
            return False
        self.asked_at = self._loop.now()

        def finish(result: object) -> None:
            self.asked_at = None
            done(result)

        background.call(self._loop, work, finish)
        return True


def describe_error(error: Exception) -> str:
    """Return a human-readable reason for a failed request."""
    return str(error) if isinstance(error, OSError | UsageError) and str(error) else repr(error)
