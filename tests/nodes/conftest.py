"""Hosts for the multi-node tests."""

from collections.abc import Iterator

import pytest
from netlab import Lab

HOSTS = ["node1", "node2", "node3", "node4"]


@pytest.fixture
def lab() -> Iterator[Lab]:
    """Four hosts that can reach each other."""
    with Lab(hosts=HOSTS) as lab:
        yield lab
