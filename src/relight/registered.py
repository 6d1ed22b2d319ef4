"""The link of a job whose coordinator is written down in a register: etcd, a file, a plug-in.

As `RemoteLink` (`link.py`), but for how the coordinator is found:

    seeking      asks the register, and writes itself down if nobody is there
      | we are written down                            -> hosting, on a port of our own
      | somebody else is, and answers                  -> connected
      | nobody listens where it says: its process has ended, so its record is evicted; asks again
    hosting      renews the record; coordinates, and lets its workers run, as long as it holds it
      | that is over, or another is written down, or so many nodes were lost that the rest may not
        train without them, while they may be able to  -> seeking; all agents are sent away

A holder lets go (`rendezvous/holding`) before the register may name another one, and earlier by the
time that the leases it gave may still run. So no successor begins while workers of the old group
run, whatever stood still in between (fencing; docs/decisions/0012). While the register does not
answer, nobody else can be written down, and a running group goes on.
"""

import socket
from collections.abc import Callable

from relight.core.group import Settings
from relight.core.messages import End, Join, Message
from relight.errors import UsageError
from relight.host import names
from relight.host.connection import Connection
from relight.host.loop import Loop
from relight.host.ports import is_loopback, listen
from relight.link import Owner, RemoteLink
from relight.rendezvous.holding import Answer, Contact, Holding
from relight.rendezvous.meeting import Meeting
from relight.rendezvous.register import NOBODY, Record, Register

_ASK_AGAIN_S = 0.3
_STAND_BACK_S = 3.0
_MARGIN_S = 0.5
"""For clocks that run unequally fast, over a time to live."""


def own_addresses(meeting: Meeting, register: Register) -> tuple[str, ...]:
    """Return where others reach this machine; the first one must be right, or refuse nobody."""
    own = meeting.local_addr or register.own_address
    if own and (meeting.local_addr or not is_loopback(own)):
        return (own,)
    # The register is on this machine, or on a disk. Other nodes may be on this machine as well.
    likely = (names.outward_address(), socket.gethostname(), own)
    return tuple(dict.fromkeys(each for each in likely if each))


def hold(
    loop: Loop,
    meeting: Meeting,
    on_renewed: Callable[[], None],
    on_lost: Callable[[str], None],
    say: Callable[[str], None],
) -> Holding:
    """Return the hold on the register of a meeting."""
    assert meeting.register is not None

    def on_trouble(reason: str) -> None:
        left = holding.until - loop.now()
        say(f"can't renew what {meeting.where} says, for {left:.0f} s more: {reason}")

    spare_s = meeting.lease_s + _MARGIN_S
    holding = Holding(
        loop,
        meeting.register,
        meeting.ttl_s,
        spare_s,
        on_renewed=on_renewed,
        on_lost=on_lost,
        on_trouble=on_trouble,
    )
    return holding


class RegisteredLink(RemoteLink):
    """The link to the coordinator that a register names.

    Args: as for `RemoteLink`.
    """

    def __init__(self, loop: Loop, settings: Settings, join: Join, meeting: Meeting) -> None:
        super().__init__(loop, settings, join, meeting)
        self._holding = hold(loop, meeting, self._on_renewed, self._resign, self._say)
        self._record = NOBODY
        self._sock: socket.socket | None = None
        self._reached = False
        self._enough = False
        """Whether so many nodes reach this coordinator that they may train."""
        self._first = False
        """Whether the coordinator's first address was dialled, rather than another one."""

    def open(self, owner: Owner) -> None:
        """Find the coordinator, or become it, and join."""
        self._owner = owner
        self._since = self._loop.now()
        self._say(f"job {self._meeting.job} meets at {self._meeting.where}")
        self._seek()

    def close(self, give_up: Callable[[], bool]) -> None:
        """End, and give the record back."""
        super().close(give_up)
        self._drop_socket()
        self._holding.close()

    # Seeking.

    def _seek(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._closed or self._connection or self._group:
            return
        if not self._holding.take(self._contact, self._on_found):
            self._timer = self._loop.call_after(_ASK_AGAIN_S, self._seek)

    def _look_up(self) -> None:
        self._seek()

    def _contact(self) -> str:
        """Return what to write into the register, empty for nothing."""
        if self._meeting.hosted is False or self._unfit_since is not None:
            return ""  # who does not know the job's token must not found another group
        self._sock = self._sock or listen("", 0)
        if self._sock is None:
            return ""
        port = self._sock.getsockname()[1]
        addresses = own_addresses(self._meeting, self._holding.register)
        return Contact(self._join.host, addresses, port).to_text()

    def _on_found(self, found: Answer) -> None:
        if self._closed:
            return
        self._reached = self._reached or isinstance(found, Record)
        if isinstance(found, UsageError) and not self._reached:
            hint = f"; {found.hint}" if found.hint else ""
            self._owner.told(End(found.exit_code, found.message + hint, (), None))
        elif isinstance(found, Exception):
            self._retry(str(found), seconds=_ASK_AGAIN_S)  # what has worked once may work again
        elif found.ours and self._sock is not None:
            sock, self._sock = self._sock, None
            self._coordinator = self._make_coordinator(sock)
            self._coordinator.holds = self._holding.holds
            self._confirmed = self._owner.announce() is None
            self._serve(self._coordinator)
        elif not found.value:
            self._retry("no node has become the coordinator", seconds=_ASK_AGAIN_S)
        else:
            self._record = found
            self._call(Contact.of(found.value))

    def _call(self, contact: Contact | None) -> None:
        """Dial the coordinator that the register names, at its first address every other time."""
        if contact is None:
            self._retry("its record is not one of relight's", seconds=_ASK_AGAIN_S)
            return
        self._turn += 1
        first, *others = contact.addresses
        self._first = not others or not self._first
        address = first if self._first else others[self._turn // 2 % len(others)]
        names.resolve(self._loop, address, contact.port, self._on_addresses)

    def _on_addresses(self, addresses: list[tuple[str, int]], error: str) -> None:
        if self._closed or self._connection or self._group:
            return
        if addresses:
            self._dial(addresses[0], timeout_s=2 * self._meeting.lease_s)
        else:
            self._retry(error, seconds=_ASK_AGAIN_S)

    def opened(self, connection: Connection, hello: Message) -> None:
        """The coordinator has answered."""
        super().opened(connection, hello)
        self._drop_socket()

    def closed(self, connection: Connection, reason: str) -> None:
        """The connection is gone, or could not be made."""
        record, self._record = self._record, NOBODY
        if connection.refused and self._is_evidence(record):
            self._holding.evict(record, self._seek)
        super().closed(connection, reason)

    def _is_evidence(self, record: Record) -> bool:
        """Whether a refusal says that the coordinator's process has ended.

        Only at its first address, and not at a loopback address that may be another machine's.
        """
        contact = Contact.of(record.value)
        if contact is None or not self._first:
            return False
        return contact.host == self._join.host or not is_loopback(str(self._target[0]))

    def _renew_by_refusal(self) -> None:
        """A coordinator that is gone proves nothing: another one may have taken over."""

    # Hosting.

    def _on_renewed(self) -> None:
        if self._group is None:
            return
        if self._confirmed:
            self._lease(self._holding.until)
        had_enough, self._enough = self._enough, len(self._group.sinks) >= self._settings.least
        if had_enough and not self._enough:
            # The others may see each other, and the register, but not this node.
            self._holding.step_down(lambda: None)
            self._resign("too few nodes reach it", _STAND_BACK_S)

    def _lease_of_own(self) -> None:
        """The workers here may run for as long as this process coordinates."""
        self._confirmed = True
        self._lease(self._holding.until)

    def _resign(self, reason: str, stand_back_s: float = 0.0) -> None:
        coordinator = self._coordinator
        if coordinator is None or self._closed:
            return
        self._coordinator = self._group = None
        coordinator.close()
        self._say(f"this node coordinates the group no longer: {reason}")
        self._since = self._loop.now()
        self._enough = False
        self._timer = self._loop.call_after(stand_back_s, self._seek)

    def _say(self, text: str) -> None:
        self._owner.say(text)

    def _drop_socket(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None
