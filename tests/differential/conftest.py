"""torchrun's side of the comparisons, made ahead of the tests that need it."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from differential.cases import Case
from differential.recording import TORCHRUN, Recording, record

Reference = Callable[[Case], Recording]
AT_ONCE = 2


@pytest.fixture(scope="session", autouse=True)
def reference(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Reference]:
    """Return torchrun's recording of a case.

    torchrun takes seconds to start, so the cases of all collected tests are run in the background,
    in the order of the tests.
    """
    folder: Path = tmp_path_factory.mktemp("torchrun")
    parameters = (getattr(item, "callspec", None) for item in request.session.items)
    cases = {
        spec.params["case"].name: spec.params["case"]
        for spec in parameters
        if spec is not None and isinstance(spec.params.get("case"), Case)
    }
    pool = ThreadPoolExecutor(AT_ONCE)
    futures: dict[str, Future[Recording]] = {
        name: pool.submit(record, case, TORCHRUN, folder / str(index))
        for index, (name, case) in enumerate(cases.items())
    }
    yield lambda case: futures[case.name].result()
    pool.shutdown(cancel_futures=True)
