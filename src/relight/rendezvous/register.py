"""A register: a place outside the job where one agent at a time is written down as its coordinator.

A rendezvous backend that is no endpoint of ours (etcd, a file on a shared disk, a plug-in) is a
`Register` and nothing more. Everything else, who is in the group and when it forms, is the same for
all of them (`core/membership`).

The calls may block: they are made in threads, one after the other, never two at once. An OSError of
any of them means that the register can't be reached now; it is asked again later. Anything that can
never work (wrong password, no permission) is a UsageError.

Safety rests on two things. A register gives the record to one holder at a time, and takes it away
only when its time to live has passed since the *server* last heard of the holder; the holder counts
the same time from *before* it asked, so it stops first, whatever clocks say. And an
eviction names the revision that it saw, so it can't hit a successor, and removes no record that is
renewed while it looks on.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol  # the real ones: plug-ins may do with them what they like

ENTRY_POINTS = "relight.rendezvous"
"""The entry point group of plug-ins. Each entry is an `Open`."""


class Record(NamedTuple):
    """Who holds the register.

    `value` is what the holder wrote, empty if there is none. `revision` differs from one holder
    to the next, also if the same process comes again. `ours`: whether this `Register` object is
    the holder.
    """

    value: str
    revision: str
    ours: bool


NOBODY = Record("", "", False)


class Register(Protocol):
    """The record of one job in an outside service."""

    own_address: str
    """The address of this machine from which the service is reached; empty if not known."""

    def hold(self, value: str, ttl_s: float) -> Record:
        """Take the record if nobody holds it, or renew it if it is ours; return who holds it.

        Args:
            value: what to write; empty to look only. Text of at most 1000 characters.
            ttl_s: the record is free again when it was not renewed for so long. Registers that
                count in whole seconds round up.

        Raises:
            OSError: the register does not answer.
            UsageError: it never will, to us.
        """

    def evict(self, record: Record, patience_s: float = 0.0) -> bool:
        """Remove the record of a holder that seems to be dead; return whether it was removed.

        Look on for `patience_s`; if the record is renewed meanwhile, or has another holder, it
        stays. Comparing and removing are one step: a renewal is either seen or comes too late.
        """

    def release(self) -> None:
        """Give the record back if it is ours."""

    def close(self) -> None:
        """Give up connections and files; what is held stays held until its time to live is over."""


Open = Callable[[str, str, Mapping[str, str]], Register]
"""Opens a register: (endpoint as written in --rdzv-endpoint, id of the job, the pairs of
--rdzv-conf) -> Register. Contacts nobody yet. Raises UsageError for an endpoint that can't be.
"""
