"""Hosts for the tests of several nodes."""

from collections.abc import Iterator

import pytest
from netlab import Lab, lab_unavailable

HOSTS = ["node1", "node2", "node3", "node4"]


@pytest.fixture
def lab() -> Iterator[Lab]:
    """Four hosts that see each other."""
    reason = lab_unavailable()
    if reason:
        pytest.skip(reason)
    with Lab(hosts=HOSTS) as lab:
        yield lab
