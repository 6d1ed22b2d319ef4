"""torchrun's side of the comparisons, recorded before the tests need it."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from differential.cases import Case
from differential.recording import TORCHRUN, Recording, record

Reference = Callable[[Case], Recording]
AT_ONCE = 2
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Extend timeouts: a test may wait for torchrun's recordings of all earlier tests."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.timeout(900))


class Recordings:
    """torchrun's recordings of cases, made in advance because torchrun takes seconds to start."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._futures: dict[str, Future[Recording]] = {}

    def begin(self, case: Case) -> None:
        """Run a case in the background, unless it has already been started."""
        if case.name not in self._futures:
            place = self._folder / str(len(self._futures))
            self._futures[case.name] = self._pool.submit(record, case, TORCHRUN, place)

    def of(self, case: Case) -> Recording:
        """Wait for a case's recording."""
        return self._futures[case.name].result()

    def close(self) -> None:
        """Skip cases that have not started, and wait for the rest."""
        self._pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def torchruns(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recordings]:
    """All recordings in this test process."""
    recordings = Recordings(tmp_path_factory.mktemp("torchrun"))
    yield recordings
    recordings.close()


@pytest.fixture(scope="module", autouse=True)
def reference(request: pytest.FixtureRequest, torchruns: Recordings) -> Reference:
    """Return torchrun's recording of a case; start all cases of the file, in its order."""
    for item in request.session.items:
        spec = getattr(item, "callspec", None)
        if item.path == request.path and spec and isinstance(spec.params.get("case"), Case):
            torchruns.begin(spec.params["case"])
    return torchruns.of
