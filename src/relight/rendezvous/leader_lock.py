"""A register: a record outside the job that names one agent at a time as its coordinator.

A rendezvous backend without an endpoint of ours (etcd, a file on a shared disk, a plug-in) is a
`LeaderLock` and nothing more. Everything else, such as who is in the group and when it forms, is
the same for all backends (`core/group/membership`).

The calls may block, and are made in threads, one after the other, never concurrently. An OSError
means that the register can't be reached now; it is asked again later. An error that can't go away
(wrong password, no permission) is a UsageError.

Safety rests on two things. A register gives the record to one holder at a time, and removes it
only when its time to live has passed since the *server* last heard from the holder, or when another
process evicts a holder that has ended (`evict`). The holder
counts the same time from *before* it asked, so it stops first, whatever the clocks say. And an
eviction names the revision that it saw, so it can't remove a successor's record, nor one that is
renewed while it waits.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol  # the real ones, as plug-ins may need all features

ENTRY_POINTS = "relight.rendezvous"
"""The entry point group of plug-ins. Each entry is an `Open`."""


class Record(NamedTuple):
    """The record of a register.

    `value` is the holder's text, empty without a holder. `revision` differs for each holder, even
    if the same process takes the record again. `ours` is whether this `LeaderLock` object is the
    holder.
    """

    value: str
    revision: str
    ours: bool


NOBODY = Record("", "", False)
_LONGEST_KEY = 150


class LeaderLock(Protocol):
    """The record of one job in an outside service."""

    own_address: str
    """The address of this machine on connections to the service; empty if unknown."""

    def hold(self, value: str, ttl_s: float) -> Record:
        """Take the record if it is free, or renew it if it is ours; return the record.

        Args:
            value: text to write, of at most 1000 characters; empty to read only.
            ttl_s: the record is free again after this time without a renewal. Registers that count
                in whole seconds round up.

        Raises:
            OSError: if the register does not answer.
            UsageError: if it will never answer this process.
        """

    def evict(self, record: Record, patience_s: float = 0.0) -> bool:
        """Remove the record of a holder that seems to be dead; return whether it was removed.

        Wait for `patience_s`; the record stays if it is renewed in that time, or has another
        holder. Comparing and removing are atomic: a renewal is either seen or comes too late.
        """

    def release(self) -> None:
        """Give the record back if this register holds it."""

    def close(self) -> None:
        """Close connections and files; a held record stays for its time to live."""


Open = Callable[[str, str, Mapping[str, str]], LeaderLock]
"""Opens a register, given --rdzv-endpoint as written, the job's id, and the pairs of --rdzv-conf.
Does not contact it yet. Raises UsageError for an invalid endpoint.
"""


def job_key(job: str) -> str:
    """Return a job's id as the name of a key or a file: ASCII letters, digits and `_-~.%`.

    It is unique to this id, needs no quoting in a path, does not begin with a dot, and has at most
    150 characters.
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
