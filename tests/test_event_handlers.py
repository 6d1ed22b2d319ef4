"""Event handlers are plug-ins: the examples in `event_handlers/`, found by their entry points."""

import getpass
import json
import socket
import subprocess
from pathlib import Path

import pytest
from conftest import Launch

from relight import __version__

pytestmark = pytest.mark.forked

PLUGIN = str(Path(__file__).with_name("event_handlers"))
OF_A_JOB = [
    "StateChanged", "Formed", "WorkerStarted", "StateChanged", "WorkerExited", "StateChanged",
    "Ended",
]  # fmt: skip


def run(launch: Launch, name: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    words = ("run", f"--event-log-handler={name}", "--no-python", "echo", "hello")
    return launch(*words, PYTHONPATH=PLUGIN, **variables)


def test_event_handler_receives_all_events_of_short_job(launch: Launch, tmp_path: Path) -> None:
    path = tmp_path / "events"
    done = run(launch, "writes", EVENTS_FILE=str(path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")
    assert path.read_text().split() == OF_A_JOB


def test_logging_handler_receives_json_lines(launch: Launch, tmp_path: Path) -> None:
    path = tmp_path / "events"
    assert run(launch, "logs", EVENTS_FILE=str(path)).returncode == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["event"] for line in lines] == OF_A_JOB
    assert [line["n"] for line in lines] == list(range(1, 8))


def test_events_sent_to_handler_identify_job_and_host(launch: Launch, tmp_path: Path) -> None:
    path = tmp_path / "events"
    assert run(launch, "logs", EVENTS_FILE=str(path), PBS_JOBID="3.head").returncode == 0
    origins = [json.loads(line)["agent"] for line in path.read_text().splitlines()]
    assert origins == [
        {
            "user": getpass.getuser(),
            "host": socket.gethostname(),
            "version": __version__,
            "scheduler": "pbs",
            "scheduler_job": "3.head",
        }
    ] * len(OF_A_JOB)


def test_event_handler_receives_events_while_job_is_running(launch: Launch, tmp_path: Path) -> None:
    path = tmp_path / "events"
    done = launch("run", "--event-log-handler=writes", "--no-python", "sh", "-c",
                  'while [ "$(wc -l < "$EVENTS_FILE")" != 3 ]; do sleep 0.05; done',
                  PYTHONPATH=PLUGIN, EVENTS_FILE=str(path))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert path.read_text().split() == OF_A_JOB


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "it raised ValueError: no StateChanged here; further errors are not shown"),
        ("colours", "it raised ValueError: \ufffd[2Jno \ufffd]0;title\ufffd here; further errors "
        "are not shown"),
        ("exits", "it has exited and receives no more events"),
        ("missing", "it can't be loaded: ModuleNotFoundError: No module named 'relight_nowhere'"),
        pytest.param("blocks", "it took too long and has not received all events",
                     marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_failing_event_handler_loses_only_its_own_events(
    launch: Launch, name: str, said: str
) -> None:
    done = run(launch, name)
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert done.stderr == f"relight: --event-log-handler={name}: {said}\n"


def test_unknown_event_handler_error_lists_known_ones(launch: Launch) -> None:
    done = run(launch, "write")
    assert (done.returncode, done.stdout) == (2, "")
    assert "is not one of null, console, dynamic_rendezvous, blocks" in done.stderr
    assert "did you mean writes?" in done.stderr
