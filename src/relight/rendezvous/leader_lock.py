"""A registry is an external service or file with a record that names one agent at a time as the
job's coordinator.

A rendezvous backend that doesn't use an endpoint on one of the job's nodes (etcd, a file on a
shared disk, a plug-in) only has to implement `LeaderLock`. Everything else, such as which nodes
belong to the group and when it forms, is the same for all backends (`core/group/membership`).

Calls to a registry may block. They run in threads, one at a time. An OSError means that the
registry can't currently be reached, and the call is retried later. A permanent error (wrong
password, no permission) is a UsageError.

Safety rests on two rules. First, a registry's record has only one holder at a time. The registry
only removes the record when the time to live has passed since the *server* last received a request
from the holder, or when another process evicts a holder that has exited (`evict`). The holder
measures the time to live from *before* it sent its request, so it stops first even if the two
clocks differ. Second, a process that evicts a holder specifies the revision it has seen, so it
can't remove a successor's record, or a record that has since been renewed.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol  # not our lightweight ones; plug-ins may use any feature

ENTRY_POINTS = "relight.rendezvous"
"""The entry point group for plug-ins. Each entry point is an `Open` function."""


class Record(NamedTuple):
    """A registry's record.

    The `value` field is the text that the holder wrote, or empty without a holder. The `revision`
    field changes each time the record is taken, even if the same process takes it again. The `ours`
    field indicates whether this `LeaderLock` object is the holder.
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
        """Take the record if it is free, or renew it if it is ours, and return the record.

        Args:
            value: the text to write (at most 1000 characters), or an empty string to only read the
                record.
            ttl_s: how long a hold lasts unless it is renewed. Registries that count in whole
                seconds round up.

        Raises:
            OSError: if the registry does not respond.
            UsageError: if the registry will never respond to this process.
        """

    def evict(self, record: Record, patience_s: float = 0.0) -> bool:
        """Remove the record of a holder that appears to be dead, and return whether the record was
        removed.

        Wait for `patience_s` first. The record is kept if it is renewed during that time or has a
        different holder by then. Comparing and removing the record is a single atomic step, so a
        renewal is either detected or too late.
        """

    def release(self) -> None:
        """Release the record if it belongs to this object."""

    def close(self) -> None:
        """Close connections and files. If this object holds the record, the record remains until
        its time to live has passed.
        """


Open = Callable[[str, str, Mapping[str, str]], LeaderLock]
"""A function that opens a registry without contacting it yet. Its arguments are --rdzv-endpoint as
the user wrote it, the job's id, and the --rdzv-conf pairs. It raises UsageError if the endpoint is
invalid.
"""


def job_key(job: str) -> str:
    """Convert a job's id to a key or file name that consists of ASCII letters, digits and `_-~.%`.

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
