"""Values that modules draw during import are drawn again in each warm worker."""

import pytest

from . import draws


@pytest.mark.slow
@pytest.mark.needs_torch
@pytest.mark.long
def test_random_state_of_imports_is_not_shared() -> None:
    """No generator and no value of a module is equal in warm workers only."""
    drawn, _ = draws.compare(["torch", "uuid", "secrets", "tempfile"])
    assert not drawn, "\n".join(drawn)
