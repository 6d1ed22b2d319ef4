"""torchrun's side of the comparisons, made ahead of the tests that need it."""

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
    """A test may wait for torchrun's recordings of all tests before it; each has a limit."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.timeout(900))


class Recordings:
    """What torchrun does with cases; it takes seconds to start, so they are run ahead."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._futures: dict[str, Future[Recording]] = {}

    def begin(self, case: Case) -> None:
        """Run a case in the background, unless it was begun."""
        if case.name not in self._futures:
            place = self._folder / str(len(self._futures))
            self._futures[case.name] = self._pool.submit(record, case, TORCHRUN, place)

    def of(self, case: Case) -> Recording:
        """Wait for the recording of a case."""
        return self._futures[case.name].result()

    def close(self) -> None:
        """Leave out cases that have not begun, and wait for the rest."""
        self._pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def torchruns(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recordings]:
    """All recordings of this process of the tests."""
    recordings = Recordings(tmp_path_factory.mktemp("torchrun"))
    yield recordings
    recordings.close()


@pytest.fixture(scope="module", autouse=True)
def reference(request: pytest.FixtureRequest, torchruns: Recordings) -> Reference:
    """Return torchrun's recording of a case; all cases of the file are begun, in its order."""
    for item in request.session.items:
        spec = getattr(item, "callspec", None)
        if item.path == request.path and spec and isinstance(spec.params.get("case"), Case):
            torchruns.begin(spec.params["case"])
    return torchruns.of
