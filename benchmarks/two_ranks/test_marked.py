"""The two-rank tests, with the plugin's mark."""

import pytest

from . import checks


@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("name", ["all_reduce", "step"])
@pytest.mark.distributed(world_size=2)
def test_it(name: str, number: int) -> None:
    """Run the check."""
    del number
    getattr(checks, name)()
