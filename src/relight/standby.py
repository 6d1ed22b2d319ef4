"""A coordinator that is no agent of a job: written down in a register, or waiting to be.

WAITING       another process is written down; looked after once a second
  | nobody is, or it was reached, refuses now, and does not renew its record -> COORDINATING
COORDINATING  serves the job's agents
  | another one is written down, or the register has not answered for too long -> WAITING
"""

import socket
from collections.abc import Callable

from relight.coordinator import Coordinator
from relight.errors import UsageError
from relight.host import background
from relight.host.loop import Loop, Timer
from relight.registered import SILENT, SILENT_S, hold, is_evidence, is_rivalled, own_addresses
from relight.rendezvous.holding import SIGN_OF_LIFE_S, Answer, Contact, words
from relight.rendezvous.meeting import Meeting
from relight.rendezvous.register import Record

_LOOK_S = 0.5
_DIAL_S = 1.0


class Standby:
    """The part of a coordinator's process that asks the register.

    Args:
        loop: the loop.
        meeting: with a register.
        coordinator: serves at `port` while this process is written down.
        port: where.
        say: tells the user.
    """

    def __init__(
        self,
        loop: Loop,
        meeting: Meeting,
        coordinator: Coordinator,
        port: int,
        say: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._meeting = meeting
        self._coordinator = coordinator
        self._port = port
        self._say = say
        self._said = ""
        self._reached = ""
        """The revision of the last record whose coordinator was reached."""
        self._timer: Timer | None = None
        self.error: UsageError | None = None
        """Why the register will never answer, if so."""
        self._holding = hold(loop, meeting, lambda: None, self._on_lost, say)
        coordinator.holds = self._holds
        self._look()

    def close(self) -> None:
        """Let another one be written down."""
        self._holding.close()

    def _look(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._holding.take(self._contact, self._on_found):
            self._timer = self._loop.call_after(SILENT_S, self._look)
        else:
            if self._holding.waiting_s() >= SILENT_S:
                self._tell(f"{self._meeting.where} does not answer: {SILENT}")
            self._look_later()

    def _look_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_after(_LOOK_S, self._look)

    def _contact(self) -> str:
        addresses = own_addresses(self._meeting, self._holding.register)
        return Contact(socket.gethostname(), addresses, self._port).to_text()

    def _on_found(self, found: Answer) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if isinstance(found, UsageError):
            self.error = found
        elif isinstance(found, Exception):
            self._tell(f"{self._meeting.where} does not answer: {words(found)}")
            self._look_later()
        elif found.ours:
            self._tell(f"coordinating {self._meeting.who} on port {self._port}")
        else:
            self._look_after(found)

    def _look_after(self, record: Record) -> None:
        """See whether the one that is written down still listens."""
        contact = Contact.of(record.value)
        if contact is None:
            self._tell("waiting: what is written down is no record of relight's")
            self._look_later()
            return
        self._tell(f"waiting: {contact.host} coordinates {self._meeting.who}")

        def on_answer(result: str | Exception) -> None:
            if result == "":
                self._reached = record.revision
            reached = self._reached == record.revision
            if not isinstance(result, str) or not result:
                self._look_later()
            elif is_evidence(contact, result, reached=reached):
                self._holding.evict(record, SIGN_OF_LIFE_S, lambda _: self._look())
            else:
                self._tell(f"waiting: {contact.host}, which coordinates, refuses at {result}")
                self._look_later()

        background.call(
            self._loop, lambda: _refusing(contact.addresses[0], contact.port), on_answer
        )

    def _holds(self) -> bool:
        """Whether this process coordinates, and nobody else can."""
        if not self._holding.holds():
            return False
        if not is_rivalled(self._holding, self._coordinator.groups.values()):
            return True
        self._loop.call_after(0, self._let_go)
        return False

    def _let_go(self) -> None:
        if self._holding.holds():
            self._holding.let_go()
            self._on_lost("a node was lost while the register does not answer")

    def _on_lost(self, reason: str) -> None:
        self._coordinator.resign()
        self._tell(f"coordinating no longer: {reason}")
        self._look()

    def _tell(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._say(text)


def _refusing(host: str, port: int) -> str:
    """Return the address that refuses a connection there, empty if none does. May block.

    Raises:
        OSError, ValueError: something else is wrong.
    """
    address = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
    try:
        socket.create_connection((address, port), _DIAL_S).close()
    except ConnectionRefusedError:
        return address
    return ""
