"""Jobs in which random processes are killed and stopped; `make chaos N=1000` plays many more."""

import concurrent.futures

import pytest
from chaos import play

pytestmark = pytest.mark.slow


def test_jobs_with_randomly_killed_processes_leave_nothing_behind() -> None:
    """Nothing hangs, no process or file is left behind, and exit codes are right."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        plays = list(pool.map(play, range(5)))
    assert not any(wrong for _, wrong in plays), "\n".join(wrong for _, wrong in plays)
    assert sum(done for done, _ in plays) > 5
