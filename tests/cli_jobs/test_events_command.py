"""`relight events` and the lines printed by one rank, for jobs started by `relight run` and
submitted ones.
"""

import json
import re
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S, Start

from relight.events import event_lines, event_types
from relight.output.journal import EventLog
from relight.processes.running_jobs import JobDirectory

pytestmark = pytest.mark.forked

Command = Callable[..., "subprocess.CompletedProcess[str]"]
FAILS_ONCE = """\
import os, time
rank, restart = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
print(f"attempt {restart} of rank {rank}", flush=True)
if restart == "0" and rank == 3 % int(os.environ["WORLD_SIZE"]):
    raise ValueError("bad batch")
while restart == "0" or not os.path.exists("go"):
    time.sleep(0.05)
"""


def names(text: str) -> list[str]:
    return [json.loads(line)["event"] for line in text.splitlines()]


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_agent_provides_events_of_job_without_log_files(
    start: Start, relight: Command, script: Callable[[str], Path], variables: dict[str, str],
) -> None:  # fmt: skip
    """The events are followed until the job is over, even after the workers have exited."""
    path = script(FAILS_ONCE)
    agent = start("run", "--nproc-per-node=2", "--max-restarts=1", "--preload=off", path,
                  cwd=path.parent, variables=variables)  # fmt: skip
    jobs = JobDirectory(variables)
    wait_for(lambda: any(job.restart == 1 and job.ranks for job in jobs.running()))
    found = relight("events", "--json", "train")
    assert names(found.stdout)[:6] == [
        "StateChanged", "Formed", "WorkerStarted", "WorkerStarted", "StateChanged", "WorkerExited",
    ]  # fmt: skip
    assert names(relight("events", "--json", "train", "--name", "Restarting").stdout) == [
        "Restarting"
    ]
    in_words = relight("events", "train", "--name", "Restarting").stdout
    # On a busy machine, rank 0 may be caught handling an exception while its interpreter starts.
    assert re.search(r" Restarting       restart 1 of 1: (probably )?rank 1", in_words)
    assert in_words.count("restart 1") == 1
    event = json.loads(relight("events", "--json", "train", "--name", "Restarting").stdout)
    assert event["budget"] == "restart 1 of 1" and "restart" not in event["reason"]
    of_rank = names(relight("events", "--json", "train", "--rank", "1").stdout)
    assert of_rank == ["WorkerStarted", "WorkerExited", "FailureNoticed", "WorkerStarted"]
    assert relight("events", "--json", "train", "--since", "1h").stdout == found.stdout
    words = ("logs", "train", "--rank", "0", "--grep", "attempt 1")
    wait_for(lambda: relight(*words).stdout == "attempt 1 of rank 0\n")
    refused = relight("logs", "train", "--rank", "7")
    assert (refused.returncode, "no rank 7 on this machine" in refused.stderr) == (2, True)
    follower = start("events", "-f", "--json", "train", variables=variables)
    first = follower.stdout.readline()
    assert names(first) == ["StateChanged"]
    (path.parent / "go").touch()
    assert agent.wait(LIMIT_S) == 0
    assert follower.wait(LIMIT_S) == 0
    assert names(follower.stdout.read())[-3:] == ["WorkerExited", "StateChanged", "Ended"]
    over = relight("events", "train")
    assert (over.returncode, "has ended and kept no event log" in over.stderr) == (2, True)


def test_internal_events_are_hidden_by_default(relight: Command, tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    events = (event_types.StateChanged("link", "a", "b", "Tick"), event_types.Restarting(1, 3, "x"))
    lines = [event_types.format_line(event_types.LoggedEvent(1, 1.0, 1.0, each)) for each in events]
    log.write_text("".join(f"{line}\n" for line in lines))

    def shown(*flags: str) -> list[str]:
        return [line.split()[1] for line in relight("events", log, *flags).stdout.splitlines()]

    assert shown() == ["Restarting"]
    assert shown("--all") == ["StateChanged", "Restarting"]
    assert shown("--name", "StateChanged") == ["StateChanged"]
    assert names(relight("events", "--json", log).stdout) == ["StateChanged", "Restarting"]


def test_recorded_group_steps_can_be_replayed(
    launch: Command, relight: Command, script: Callable[[str], Path], tmp_path: Path,
) -> None:  # fmt: skip
    path = script("import os, sys\nsys.exit(int(os.environ['TORCHELASTIC_RESTART_COUNT']) < 1)\n")
    logs = tmp_path / "logs"
    job = launch("run", "--max-restarts=1", "--record-group", f"--log-dir={logs}", path)
    assert job.returncode == 0, job.stderr
    (log,) = logs.glob("*/events.jsonl")
    found = relight("events", "--replay", log)
    assert found.returncode == 0, found.stdout
    assert "generation 1 runs on 1 node" in found.stdout
    assert found.stdout.endswith("all with the recorded effects\n")
    log.write_text(
        log.read_text().replace('"generation": {"number": 0', '"generation": {"number": 9')
    )
    differs = relight("events", "--replay", log.parent)
    assert differs.returncode == 1
    assert "had effects that differ from the recorded ones" in differs.stdout


@pytest.mark.slow
def test_submitted_job_events_and_logs_are_available_by_rank(
    submitted: Callable[..., str], relight: Command, script: Callable[[str], Path],
) -> None:  # fmt: skip
    """Ranks are numbered across all nodes. The event logs show which files belong to a rank."""
    path = script("import os\nprint('a word of rank', os.environ['RANK'])\n")
    handle = submitted("dist.ddp", "-j", "2x2", "--script", path)
    assert relight("wait", handle).returncode == 0
    for rank in (0, 3):
        found = relight("logs", handle, "--rank", str(rank))
        assert found.stdout == f"a word of rank {rank}\n"
    lines = [json.loads(line) for line in relight("events", "--json", handle).stdout.splitlines()]
    assert {line["rank"] for line in lines if line["event"] == "WorkerStarted"} == {0, 1, 2, 3}
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    ranks = {node: {line["rank"] for line in lines if line["node"] == node and "rank" in line}
             for node in {line["node"] for line in lines}}  # fmt: skip
    assert ranks == {0: {0, 1}, 1: {2, 3}}  # from each line, even those before the generation
    assert {line["host"] for line in lines} == {socket.gethostname()}
    assert len({line["log"] for line in lines}) == 2
    assert json.loads(relight("status", "--json", handle).stdout)["goodput"]["generations"] == 1
    refused = relight("logs", handle, "--rank", "4")
    assert (refused.returncode, refused.stderr.splitlines()[1]) == (2, "hint: it has ranks 0 to 3")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("events",), "needs one job or file"),
        (("events", "x", "--name", "WorkerExit"), "did you mean WorkerExited?"),
        (("events", "x", "--replay", "--rank=1"), "combined with --rank"),
        (("events", "/tmp/is-not-there/events.jsonl"), "No such file"),
        (("events", "x"), "no such job: x"),
        (("events", "/usr"), "/usr contains no event log\nhint: pass a run directory"),
        (("logs", "x", "--grep", "a", "--regex", "b"), "mutually exclusive"),
        (("run", "--record-group", "x.py"), "has no log files"),
    ],
)  # fmt: skip
def test_invalid_events_arguments_are_rejected(
    relight: Command, words: tuple[str, ...], why: str
) -> None:
    found = relight(*words)
    assert found.returncode
    assert why in found.stderr


@pytest.mark.parametrize(
    ("rubbish", "flags"),
    [
        (bytes(range(256)) * 20, ()),
        (bytes(5000), ("-f",)),
        (b"a word\n" * 9, ("--replay",)),
    ],
    ids=["bytes", "zeros", "words"],
)
def test_file_that_is_not_an_event_log_is_rejected(
    relight: Command, tmp_path: Path, rubbish: bytes, flags: tuple[str, ...]
) -> None:
    (tmp_path / "events.jsonl").write_bytes(rubbish)
    found = relight("events", *flags, tmp_path)
    assert (found.returncode, found.stdout) == (2, "")
    assert f"{tmp_path}/events.jsonl is not an event log" in found.stderr


def test_agent_keeps_latest_64_kib_of_events(tmp_path: Path) -> None:
    """The limit holds however long their texts are, and their numbers reveal gaps."""
    log = EventLog("")
    for number in range(2000):
        log.write(event_types.GroupStopped(number, "x" * (number % 4096)))
    kept = log.after(0)
    assert [each.number for each in kept] == list(range(kept[0].number, 2001))
    assert 5 < len(kept) < 2000
    assert sum(len(event_types.format_line(each)) for each in kept) < 64 * 1024
    assert [each.number for each in log.after(1999)] == [2000]
    assert not list(tmp_path.iterdir())
    first = event_lines.read(event_types.format_line(kept[0]))
    assert first is not None
    assert first.fields["generation"] == kept[0].number - 1
