"""A coordinator that is no agent of a job: written down in a register, or waiting to be.

WAITING       another process is written down; looked after once a second
  | nobody is, or nobody listens where it says           -> COORDINATING
COORDINATING  serves the job's agents
  | another one is written down, or the register has not answered for too long -> WAITING
"""

import socket
from collections.abc import Callable

from relight.coordinator import Coordinator
from relight.errors import UsageError
from relight.host import background
from relight.host.loop import Loop
from relight.registered import hold, own_addresses
from relight.rendezvous.holding import Answer, Contact
from relight.rendezvous.meeting import Meeting
from relight.rendezvous.register import Record

_LOOK_S = 1.0
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
        self.error: UsageError | None = None
        """Why the register will never answer, if so."""
        self._holding = hold(loop, meeting, lambda: None, self._on_lost, say)
        coordinator.holds = self._holding.holds
        self._look()

    def close(self) -> None:
        """Let another one be written down."""
        self._holding.close()

    def _look(self) -> None:
        if not self._holding.take(self._contact, self._on_found):
            self._loop.call_after(_LOOK_S, self._look)

    def _contact(self) -> str:
        addresses = own_addresses(self._meeting, self._holding.register)
        return Contact(socket.gethostname(), addresses, self._port).to_text()

    def _on_found(self, found: Answer) -> None:
        if isinstance(found, UsageError):
            self.error = found
        elif isinstance(found, Exception):
            self._tell(f"{self._meeting.where} does not answer: {found}")
            self._loop.call_after(_LOOK_S, self._look)
        elif found.ours:
            self._tell(f"coordinating job {self._meeting.job} on port {self._port}")
        else:
            self._look_after(found)

    def _look_after(self, record: Record) -> None:
        """See whether the one that is written down still listens."""
        contact = Contact.of(record.value)
        if contact is None:
            self._tell("waiting: what is written down is no record of relight's")
            self._loop.call_after(_LOOK_S, self._look)
            return
        self._tell(f"waiting: {contact.host} coordinates job {self._meeting.job}")
        address = contact.addresses[0], contact.port

        def on_answer(result: Exception | None) -> None:
            if isinstance(result, ConnectionRefusedError):
                self._holding.evict(record, self._look)
            else:
                self._loop.call_after(_LOOK_S, self._look)

        background.call(
            self._loop, lambda: socket.create_connection(address, _DIAL_S).close(), on_answer
        )

    def _on_lost(self, reason: str) -> None:
        self._coordinator.resign()
        self._tell(f"coordinating no longer: {reason}")
        self._look()

    def _tell(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._say(text)
