"""How many files this process may have open, and its workers."""

import subprocess
import sys

import pytest
from conftest import clean_environment

PROBE = """
import resource, sys
from relight.host.descriptors import raise_limit, restore_limit
hard, later = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
raise_limit()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
resource.setrlimit(resource.RLIMIT_NOFILE, (later, later))
restore_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("hard", "later", "expected"), [(200, 200, "64 200"), (200, 50, "50 50"), (64, 64, "64 64")]
)
def test_workers_have_the_limit_that_was_there(hard: int, later: int, expected: str) -> None:
    """Also where somebody has lowered the other one meanwhile (prlimit(1))."""
    found = subprocess.run(
        [sys.executable, "-c", PROBE, str(hard), str(later)],
        capture_output=True,
        text=True,
        check=True,
        env=clean_environment(),
    )
    assert found.stdout.strip() == expected
