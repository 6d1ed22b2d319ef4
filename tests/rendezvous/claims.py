"""Claims to hold a leader lock: a process that holds one, and a check for overlapping claims.

    python claims.py BACKEND ENDPOINT JOB VALUE TTL_S

holds the lock continuously and prints a line for each response. A holder may act until its time to
live has passed, counted from before its request. Two holders must never be allowed to act at the
same time.
"""

import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from relight.base.errors import UsageError
from relight.rendezvous import backends
from relight.rendezvous.leader_lock import LeaderLock, Record


class Place(NamedTuple):
    """The location of a leader lock."""

    backend: str
    endpoint: str
    job: str


class Claim(NamedTuple):
    """`who` may act as the holder of a revision from `start` to `end`, by the monotonic clock."""

    start: float
    end: float
    who: str
    revision: str


def claim(register: LeaderLock, who: str, ttl_s: float) -> tuple[Record, Claim | None]:
    """Request the lock once; return the response, and the claim if it is still valid."""
    asked = time.monotonic()
    record = register.hold(who, ttl_s)
    answered = time.monotonic()
    if not record.ours or answered >= asked + ttl_s:
        return record, None
    return record, Claim(answered, asked + ttl_s, who, record.revision)


def overlaps(claims: list[Claim]) -> list[tuple[Claim, Claim]]:
    """Return pairs of overlapping claims by different holders."""
    found = []
    latest: dict[str, Claim] = {}
    for each in sorted(claims):
        found += [(o, each) for o in latest.values() if o.who != each.who and o.end > each.start]
        if each.who not in latest or latest[each.who].end < each.end:
            latest[each.who] = each
    return found


def shorten(claims: list[Claim], who: str, end: float) -> list[Claim]:
    """End the claims of a holder that has died or released the lock."""
    return [c._replace(end=min(c.end, end)) if c.who == who else c for c in claims]


def main(backend: str, endpoint: str, job: str, value: str, ttl_s: str) -> None:
    register = backends.open(backend, endpoint, job, {})
    pause: Callable[[float], None] = time.sleep
    while True:
        try:
            record, made = claim(register, value, float(ttl_s))
        except UsageError as error:
            sys.exit(error.message)
        except OSError as error:
            print("error", error, flush=True)
            pause(0.05)
            continue
        if made is not None:
            print("claim", made.start, made.end, made.revision, flush=True)
        else:
            print("other", record.value, flush=True)
        pause(min(0.2, float(ttl_s) / 10))


if __name__ == "__main__":
    main(*sys.argv[1:])
