"""A registry service, such as etcd or a directory on a shared disk.

It may answer late, not at all, or only some machines.
"""

from relight.rendezvous.leader_lock import NOBODY, Record

from .sockets import Later
from .world import Process, World


class Service:
    """The record, kept by a server whose clock is accurate."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.silent_for: set[int] = set()
        """Machines whose requests are never answered."""
        self.late_s = 0.0
        self.lost_until = 0.0
        """When the last lost request times out."""
        self.holder: Client | None = None
        self.value = ""
        self.revision = 0
        self.renewals = 0
        self.until = 0.0

    def lapse(self) -> None:
        """Release the lock if its lease has expired."""
        if self.holder is not None and self.world.now >= self.until:
            self.world.log(f"the register lets go of {self.holder.process.name}")
            self.holder = None

    def take(self, holder: "Client | None") -> None:
        """Record a new holder, or none."""
        self.holder = holder
        self.revision += 1
        name = holder.process.name if holder is not None else "nobody"
        self.world.log(f"the register names {name}")


class Client:
    """Replaces `relight.rendezvous.leader_lock.Register`."""

    def __init__(self, service: Service, process: Process) -> None:
        self.own_address = process.host.address
        self.process = process
        self.answer_s = 0.0
        """How long its next answer takes to arrive."""
        self.reached_at = 0.0
        """When the registry last answered this client."""
        self.evicted_at = float("-inf")
        """When another process last removed its record."""
        self.ttl_s = 0.0
        self._service = service
        self._phase: dict[str, object] = {}

    def _reach(self, step: str) -> None:
        """Contact the server. It may answer late or never."""
        service, world = self._service, self.process.world
        host = self.process.host
        if self._phase.pop(f"lost {step}", None) or (
            host.number in service.silent_for and world.random.random() < 0.5
        ):
            raise OSError("the register is not responding")
        if host.number in service.silent_for:
            self._phase[f"lost {step}"] = True
            self.answer_s = 0.0
            lost_s = world.random.choice((0.5, 2.0, 6.0))
            service.lost_until = max(service.lost_until, world.now + lost_s)
            raise Later(lost_s)
        if service.late_s and step not in self._phase:
            self._phase[step] = True
            raise Later(world.random.uniform(0, service.late_s))
        self._phase.pop(step, None)
        self.reached_at = world.now
        service.lapse()

    def hold(self, value: str, ttl_s: float) -> Record:
        self._reach("hold")
        service, self.ttl_s = self._service, ttl_s
        if service.holder is None and value:
            service.take(self)
        if service.holder is self and value:
            service.value, service.until = value, self.process.world.now + ttl_s
            service.renewals += 1
        self.answer_s = self.process.world.random.uniform(0, service.late_s)
        if service.holder is None:
            return NOBODY
        return Record(service.value, str(service.revision), service.holder is self)

    def evict(self, record: Record, patience_s: float = 0.0) -> bool:
        service = self._service
        seen = self._phase.pop("seen", None)
        if seen is None:
            self._reach("evict")
            self._phase["seen"] = service.revision, service.renewals
            raise Later(patience_s)
        service.lapse()
        now = service.revision, service.renewals
        if seen != now or record.revision != str(service.revision) or service.holder is None:
            return False
        service.holder.evicted_at = self.process.world.now
        service.take(None)
        return True

    def release(self) -> None:
        self._reach("release")
        if self._service.holder is self:
            self._service.take(None)

    def close(self) -> None:
        pass
