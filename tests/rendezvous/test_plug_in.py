"""A rendezvous backend can be a plug-in: the example in `plugin/`, found by its entry point."""

import signal
import subprocess
from pathlib import Path

import pytest
from conftest import Launch
from nodes.jobs import Job, OneMachine

pytestmark = pytest.mark.forked

PLUGIN = str(Path(__file__).with_name("plugin"))


@pytest.mark.slow
def test_nodes_rendezvous_through_a_plug_in(tmp_path: Path) -> None:
    """Two nodes find each other through an SQLite file, and a killed coordinator is replaced."""
    where = f"--rdzv-endpoint={tmp_path}/meet.db"
    flags = ("--rdzv-backend=sqlite", where, "--rdzv-id=job", "--nnodes=1:3")
    with OneMachine() as here:
        job = Job(here, tmp_path, *flags, "--rdzv-conf=last_call_timeout=2,my_own_key=1")
        agents = [job.start(f"agent{number}", PYTHONPATH=PLUGIN) for number in range(3)]
        job.until_runs(agents, 3)
        # Whether or not agent0 is the coordinator, the others continue.
        job.kill(agents[0], signal.SIGKILL)
        job.until_runs(agents[1:], 2, generation=1)
        job.tell("stop")
        assert [agent.wait() for agent in agents[1:]] == [0, 0]


def refusal(launch: Launch, *flags: str) -> str:
    result: subprocess.CompletedProcess[str] = launch(
        "run", "--nnodes=2", "--rdzv-id=x", *flags, "--no-python", "true", PYTHONPATH=PLUGIN
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert "Traceback" not in result.stderr
    return result.stderr


def test_unknown_backend_error_lists_known_backends(launch: Launch) -> None:
    """The error lists all known backends, including plug-ins."""
    text = refusal(launch, "--rdzv-backend=sqlit", "--rdzv-endpoint=/x.db")
    assert "static, c10d, etcd, etcd-v2, file, broken, sqlite; did you mean sqlite?" in text
    assert "relight.rendezvous" in text


def test_broken_plug_in_is_reported_on_one_line(launch: Launch) -> None:
    text = refusal(launch, "--rdzv-backend=broken", "--rdzv-endpoint=/x")
    assert "can't load the plug-in relight_nowhere:open: ModuleNotFoundError" in text


def test_plug_in_can_reject_endpoint_up_front(launch: Launch) -> None:
    text = refusal(launch, "--rdzv-backend=sqlite", "--rdzv-endpoint=/x")
    assert "--rdzv-endpoint=/x: expected the path of a .db file" in text


def test_unknown_backend_is_rejected_even_for_a_single_node(launch: Launch) -> None:
    """A single node needs no rendezvous, but the backend is checked nevertheless."""
    result = launch("run", "--rdzv-backend=c10", "--no-python", "true")
    assert result.returncode == 2
    assert "did you mean c10d?" in result.stderr
