"""Arguments that the `relight_sandbox` fixture refuses."""

from pathlib import Path
from typing import Any

import pytest

from relight.base.errors import UsageError
from relight.pytest_plugin.sandbox import SandboxRunner


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"hosts": "2"}, "hosts='2': expected the number of hosts"),
        ({"hosts": 0}, "hosts=0: expected the number of hosts"),
        ({"timeout": float("nan")}, "timeout=nan: expected seconds, above 0"),
        ({"timeout": -1}, "timeout=-1: expected seconds, above 0"),
        ({"faults": "at 1s kill host 1"}, "faults='at 1s kill host 1': expected a list"),
        ({"flags": "--tee=3"}, "flags='--tee=3': expected a list"),
        ({"env": {"A": 1}}, "env: A=1: expected a string"),
    ],
)
def test_invalid_sandbox_argument_is_rejected(
    tmp_path: Path, arguments: dict[str, Any], said: str
) -> None:
    """The argument is named, and no host has been created."""
    with pytest.raises(UsageError, match=said):
        SandboxRunner(tmp_path)(**{"hosts": 1, "script": "train.py", **arguments})
