"""Nothing in the shared import list can crash the agent."""

import mmap
import os
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relight.host.loop import Loop
from relight.warm.watched_worker import WatchedWorker


@pytest.fixture(scope="module")
def watched() -> Iterator[WatchedWorker]:
    loop = Loop()
    found = WatchedWorker(loop)
    yield found
    found.close()
    loop.close()


@pytest.mark.filterwarnings("error")
@given(st.one_of(st.binary(max_size=300), st.lists(st.binary(), max_size=9).map(b"\n=".join)))
@example(b"=\\\n")
@example(b"=\\x\n=A=\\q\n=B=1\n")
@example(b"\xff" * (1 << 20))
def test_agent_survives_garbage_in_shared_import_list(watched: WatchedWorker, data: bytes) -> None:
    with mmap.mmap(watched._fd, 0) as memory:
        memory[:] = data.ljust(len(memory), b"\0")
    assert all(isinstance(name, str) for name in watched.imports())
    for name, value in watched.writes().items():
        assert isinstance(name, str) and isinstance(value, str | None)


def test_worker_cannot_truncate_shared_memory(watched: WatchedWorker) -> None:
    """If the agent accessed memory past the end, it would get SIGBUS."""
    with pytest.raises(PermissionError):
        os.truncate(f"/proc/self/fd/{watched._fd}", 0)
