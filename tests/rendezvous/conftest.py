"""An etcd for all tests in a run, and leader locks that are closed at the end."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from etcd_server import EtcdServer

from relight.rendezvous import backends
from relight.rendezvous.leader_lock import LeaderLock
from rendezvous.claims import Place


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """An etcd server."""
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


BACKENDS = [
    pytest.param("etcd", marks=pytest.mark.needs_etcd),
    "file",
]


@pytest.fixture(params=BACKENDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """The location of a job's leader lock that no other test uses, for each backend."""
    backend = request.param
    where = str(tmp_path / "shared") if backend == "file" else ""
    where = where or request.getfixturevalue("server").endpoint
    return Place(backend, where, f"job {uuid.uuid4()}")


@pytest.fixture
def registers() -> Iterator[Callable[[Place], LeaderLock]]:
    """Open leader locks that are closed at the end."""
    opened: list[LeaderLock] = []

    def new(place: Place, **pairs: object) -> LeaderLock:
        texts = {name: str(value) for name, value in pairs.items()}
        opened.append(backends.open(place.backend, place.endpoint, place.job, texts))
        return opened[-1]

    yield new
    for register in opened:
        register.close()


@pytest.fixture
def new(place: Place, registers: Callable[[Place], LeaderLock]) -> Callable[[], LeaderLock]:
    """Open another leader lock for the same job."""
    return lambda: registers(place)
