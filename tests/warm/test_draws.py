"""Values that modules draw during import are drawn again in each warm worker."""

import pytest

from . import draws


@pytest.mark.slow
@pytest.mark.needs_torch
@pytest.mark.long
def test_random_state_from_preloaded_imports_is_not_shared() -> None:
    """No generators and no values in modules are equal only in warm workers."""
    drawn, _ = draws.compare(["torch", "uuid", "secrets", "tempfile"])
    assert not drawn, "\n".join(drawn)
