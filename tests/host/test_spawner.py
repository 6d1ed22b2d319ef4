"""The end of the process that holds the workers, on its own socket."""

import os
from pathlib import Path

import pytest

from relight.host import spawner
from relight.host.spawner import WorkerPlan


@pytest.mark.parametrize("farewell", [b"", b"end\n"])
def test_who_cleans_up(tmp_path: Path, farewell: bytes) -> None:
    """When the socket ends, the workers do. Unless the agent has said that it lives, its directory
    goes as well: the socket of one that is killed ends before anything else shows that it is.
    """
    scratch = tmp_path / "scratch"
    (scratch / "attempt_0").mkdir(parents=True)
    null = os.open(os.devnull, os.O_WRONLY)
    plan = WorkerPlan(0, ("sleep", "60"), dict(os.environ), null, null, frozenset(), False)
    pid, agent = spawner.fork([plan], str(scratch))
    os.close(null)
    said = b""
    while not said.endswith(b"\n"):
        said += agent.recv(100)
    agent.sendall(farewell)
    agent.close()
    assert os.waitpid(pid, 0) == (pid, 0)
    worker = int(said.split()[2])
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
    assert scratch.exists() == bool(farewell)
