"""How many files this process and its workers may open."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import RELIGHT, clean_environment

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
def test_workers_start_with_the_original_descriptor_limit(
    hard: int, later: int, expected: str
) -> None:
    """They get it even if the other limit has since been lowered with prlimit(1)."""
    found = subprocess.run(
        [sys.executable, "-c", PROBE, str(hard), str(later)],
        capture_output=True,
        text=True,
        check=True,
        env=clean_environment(),
    )
    assert found.stdout.strip() == expected


@pytest.mark.parametrize("flags", [(), ("--preload=json",)], ids=str)
def test_error_says_what_the_missing_descriptor_was_needed_for(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    """When `ulimit -n` allows little more than the standard streams, relight exits with 4 and
    states the purpose of the missing descriptor.
    """
    script = tmp_path / "train.py"
    script.touch()
    for limit in range(5, 10):
        found = subprocess.run(
            ["sh", "-c", f'ulimit -n {limit} && exec "$@"', "sh", *RELIGHT, "run",
             *flags, str(script)],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env=clean_environment(),
        )  # fmt: skip
        assert found.returncode == 4, found.stderr
        assert "hint: check `ulimit -n`" in found.stderr
        assert not re.search(r"refuses another|refuses OSError| to :", found.stderr), found.stderr
