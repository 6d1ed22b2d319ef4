"""By default, the first generation in these tests waits for named modules."""

from functools import partial

import pytest
from conftest import FIRST_WARM, Launch, Start


@pytest.fixture
def launch(launch: Launch) -> Launch:
    """Run a relight command line."""
    return partial(launch, command=FIRST_WARM)


@pytest.fixture
def start(start: Start) -> Start:
    """Start a relight command line."""
    return partial(start, command=FIRST_WARM)
