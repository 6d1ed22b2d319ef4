"""A registry holds a record, outside the job, that names one agent at a time as the job's
coordinator.

A rendezvous backend that doesn't use an endpoint on one of the job's nodes (etcd, a file on a
shared disk, a plug-in) only has to implement `LeaderLock`. Everything else, such as which nodes
belong to the group and when it forms, is the same for all backends (`core/group/membership`).

The calls may block. They are made in threads, one after the other and never concurrently. An
OSError means that the registry can't currently be reached, and the call is retried later. A
permanent error (wrong password, no permission) is a UsageError.

Safety rests on two rules. First, a registry gives the record to one holder at a time. It only
removes the record when the time to live has passed since the *server* last received a request from
the holder, or when another process evicts a holder that has exited (`evict`). The holder measures
the same time from *before* it sent its request, so it stops first even if the clocks differ.
Second, an eviction specifies the revision that it saw, so it can't remove a successor's record, or
one that is renewed in the meantime.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol  # the real ones, with all features for plug-ins

ENTRY_POINTS = "relight.rendezvous"
"""The entry point group of plug-ins. Each entry is an `Open`."""


class Record(NamedTuple):
    """A registry's record.

    `value` is the holder's text, or empty without a holder. `revision` is different for each
    holder, even if the same process takes the record again. `ours` is whether this `LeaderLock`
    object is the holder.
    """

    value: str
    revision: str
    ours: bool


NOBODY = Record("", "", False)
_LONGEST_KEY = 150


class LeaderLock(Protocol):
    """One job's record in an external service."""

    own_address: str
    """This machine's address on connections to the service, or empty if unknown."""

    def hold(self, value: str, ttl_s: float) -> Record:
        """Take the record if it is free, or renew it if it is ours; return the record.

        Args:
            value: the text to write, which has at most 1000 characters, or empty to only read the
                record.
            ttl_s: how long a hold lasts unless it is renewed. Registries that count in whole
                seconds round up.

        Raises:
            OSError: if the registry does not respond.
            UsageError: if it will never respond to this process.
        """

    def evict(self, record: Record, patience_s: float = 0.0) -> bool:
        """Remove the record of a holder that appears to be dead; return whether it was removed.

        Wait for `patience_s` first. The record is kept if it is renewed during that time or has a
        different holder. The comparison and the removal are one atomic step, so a renewal is either
        detected or too late.
        """

    def release(self) -> None:
        """Release the record if this registry holds it."""

    def close(self) -> None:
        """Close connections and files. A record that is held remains for its time to live."""


Open = Callable[[str, str, Mapping[str, str]], LeaderLock]
"""Opens a registry, given --rdzv-endpoint as written, the job's id, and the --rdzv-conf pairs,
without contacting it yet. Raises UsageError for an invalid endpoint.
"""


def job_key(job: str) -> str:
    """Convert a job's id to a key or file name, which consists of ASCII letters, digits and
    `_-~.%`.

    The name is unique to this id, needs no quoting in a path, doesn't begin with a dot, and has at
    most 150 characters.
    """
    from urllib.parse import quote

    name = quote(job, safe="", errors="surrogateescape")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) <= _LONGEST_KEY:
        return name
    from hashlib import sha256

    digest = sha256(name.encode()).hexdigest()
    return f"{name[: _LONGEST_KEY - len(digest) - 1]}~{digest}"
