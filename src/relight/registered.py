"""The link of a job whose coordinator is written down in a register: etcd, a file, a plug-in.

As `RemoteLink` (`link.py`), but for how the coordinator is found:

    seeking      asks the register, and writes itself down if nobody is there
      | we are written down                            -> hosting, on a port of our own
      | somebody else is, and answers                  -> connected
      | a coordinator that was reached before refuses now, and does not renew its record: its
        process has ended, so the record is evicted; asks again
    hosting      renews the record; coordinates, and lets its workers run, as long as it holds it
      | that is over, or another is written down, or a node was lost while the register is silent,
        or so many nodes were lost that the rest may not train without them, while they may be able
        to                                             -> seeking; all agents are sent away

A holder lets go (`rendezvous/holding`) before the register may name another one, and earlier by the
time that the leases it gave may still run. So no successor begins while workers of the old group
run, whatever stood still in between (fencing; docs/decisions/0012). While the register does not
answer, nobody else can be written down, and a running group goes on.
"""

import socket
from collections.abc import Callable, Iterable

from relight.core.fields import Message
from relight.core.group import Settings
from relight.core.messages import End, Join
from relight.errors import UsageError
from relight.group import Group
from relight.host import names
from relight.host.connection import Connection
from relight.host.loop import Loop
from relight.host.ports import is_loopback, is_ours, listen
from relight.link import Owner, RemoteLink
from relight.rendezvous.holding import SIGN_OF_LIFE_S, Answer, Contact, Holding, words
from relight.rendezvous.meeting import Meeting
from relight.rendezvous.register import NOBODY, Record, Register

SILENT_S = 5.0
"""A register that has not answered for so long is said to be silent."""
SILENT = f"it has not answered for {SILENT_S:g} s"
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
        more = f"this node coordinates for {left:.0f} s more" if left >= 1 else "it is about to end"
        say(f"can't renew what {meeting.where} says, {more}: {reason}")

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


def is_evidence(contact: Contact, address: str, *, reached: bool) -> bool:
    """Return whether a refusal at its first address says that a coordinator has ended.

    A firewall may refuse in the name of any other machine. So it does not, unless that coordinator
    was reached from here before. A loopback address may be another machine's.
    """
    if is_loopback(address):
        return contact.host == socket.gethostname()
    return reached or is_ours(address)


def is_rivalled(holding: Holding, groups: Iterable[Group]) -> bool:
    """Return whether nodes that were lost may be in another group.

    They may have taken the register from us: we do not hear of it while the register is silent.
    """
    if holding.is_fresh():
        return False
    return any(group.membership.lost() for group in groups)


class RegisteredLink(RemoteLink):
    """The link to the coordinator that a register names.

    Args: as for `RemoteLink`.
    """

    def __init__(self, loop: Loop, settings: Settings, join: Join, meeting: Meeting) -> None:
        super().__init__(loop, settings, join, meeting)
        self._holding = hold(loop, meeting, self._on_renewed, self._resign, self._say)
        self._record = NOBODY
        self._sock: socket.socket | None = None
        self._answered = False
        self._reached = ""
        """The revision of the last record whose coordinator has answered."""
        self._refused: tuple[str, float] = ("", 0.0)
        """The revision of the last record whose coordinator refused, and since when."""
        self._enough = False
        """Whether so many nodes reach this coordinator that they may train."""
        self._first = False
        """Whether the coordinator's first address was dialled, rather than another one."""

    def open(self, owner: Owner) -> None:
        """Find the coordinator, or become it, and join."""
        self._owner = owner
        self._since = self._loop.now()
        self._say(f"{self._meeting.who} meets at {self._meeting.where}")
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
        if self._holding.take(self._contact, self._on_found):
            self._timer = self._loop.call_after(SILENT_S, self._seek)
        elif self._holding.waiting_s() >= SILENT_S:
            self._retry(SILENT, seconds=_ASK_AGAIN_S)
        else:
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
        if self._timer is not None:
            self._timer.cancel()
        self._answered = self._answered or isinstance(found, Record)
        if isinstance(found, UsageError) and not self._answered:
            report = (f"error: {found.message}", *([f"hint: {found.hint}"] if found.hint else []))
            self._owner.told(End(found.exit_code, found.message, report, None))
        elif isinstance(found, Exception):
            self._retry(words(found), seconds=_ASK_AGAIN_S)  # what has worked once may work again
        elif found.ours and self._sock is not None:
            sock, self._sock = self._sock, None
            self._coordinator = self._make_coordinator(sock)
            self._coordinator.holds = self._holds
            self._confirmed = self._owner.announce() is None
            self._serve(self._coordinator)
        elif not found.value:
            reason = "no node has become the coordinator"
            if self._unfit_since is not None:
                reason += f", and the last one turned us away: {self._unfit}"
            self._retry(reason, seconds=_ASK_AGAIN_S)
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
        self._reached = self._record.revision
        self._first = False  # the next one is dialled at its first address first
        super().opened(connection, hello)
        self._drop_socket()

    def closed(self, connection: Connection, reason: str) -> None:
        """The connection is gone, or could not be made."""
        record, self._record = self._record, NOBODY
        contact = Contact.of(record.value)
        if connection.refused and contact is not None and not self._closed:
            reason = self._doubt(contact, record)
        super().closed(connection, reason)

    def _doubt(self, contact: Contact, record: Record) -> str:
        """Nobody listens where the record says, or a firewall says so; return that in words."""
        now = self._loop.now()
        if self._refused[0] != record.revision:
            self._refused = record.revision, now
        address = str(self._target[0])
        if self._first and is_evidence(contact, address, reached=self._reached == record.revision):
            # Without workers here nobody waits for us: until all leases of its group are over.
            here = self._owner.announce() is not None or is_ours(address)
            patience_s = SIGN_OF_LIFE_S if here else self._settings.lost_after_s * 2
            self._holding.evict(record, patience_s, lambda _: self._seek())
        where = (
            f"{contact.host}, which coordinates, refuses at {names.text_of(address, contact.port)}"
        )
        if now - self._refused[1] > self._meeting.ttl_s:
            return f"{where}, but lives: it renews its record (is there a firewall?)"
        return where

    def _renew_by_refusal(self) -> None:
        """A coordinator that is gone proves nothing: another one may have taken over."""

    # Hosting.

    def _holds(self) -> bool:
        """Whether this process coordinates, and nobody else can."""
        if not self._holding.holds():
            return False
        if self._group is None or not is_rivalled(self._holding, [self._group]):
            return True
        self._loop.call_after(0, self._let_go)
        return False

    def _let_go(self) -> None:
        if self._group is not None:
            self._holding.let_go()
            self._resign("a node was lost while the register does not answer")

    def _on_renewed(self) -> None:
        if self._group is None:
            return
        if self._confirmed:
            self._lease(self._holding.until)
        present = self._group.membership.present()
        had_enough, self._enough = self._enough, present >= self._settings.least
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
        if self._leased_until > self._loop.now():
            self._lease(self._loop.now())  # the next one may be at work
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
