"""Here the first generation waits for named modules, unless a test says otherwise."""

from functools import partial

import pytest
from conftest import FIRST_WARM, Launch, Start


@pytest.fixture
def launch(launch: Launch) -> Launch:
    """Run a command line of relight."""
    return partial(launch, command=FIRST_WARM)


@pytest.fixture
def start(start: Start) -> Start:
    """Start a command line of relight."""
    return partial(start, command=FIRST_WARM)
