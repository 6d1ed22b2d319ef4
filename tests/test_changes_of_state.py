"""Each state change of a core is logged as an event, in real jobs and in simulated ones."""

import json
from collections import defaultdict
from enum import Enum
from pathlib import Path

import pytest
from conftest import LIMIT_S, Launch, Start
from documentation import events
from nodes.jobs import Job, OneMachine
from simulation import node
from simulation.__main__ import play

from relight.core.group.group_types import GroupState, NodeLost, Received
from relight.core.group.messages import NodeLeaving
from relight.core.link.election import BallotReceived, ElectionState
from relight.core.link.link_state import LinkState, Opened
from relight.core.link.votes import VoteRelease
from relight.core.workers.supervision import SupervisionState
from relight.events import event_types
from relight.events.event_types import StateChanged, Tick, changed
from relight.output.journal import EventLog

FIRST = {
    "supervision": "running", "link": "seeking", "membership": "gathering",
    "agreement": "idle", "reachability": "idle", "election": "follower",
    "candidacy": "waiting", "activity": "active",
}  # fmt: skip
"""The state in which each core starts."""


def changes(log: Path, core: str) -> list[str]:
    """Return a core's changes in an event log, each as `before -> after`."""
    lines = map(json.loads, log.read_text().splitlines())
    return [f"{x['before']} -> {x['after']}" for x in lines if x.get("core") == core]


def test_local_job_logs_worker_and_group_state_transitions(launch: Launch, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal, time\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "    open('ready.' + os.environ['RANK'], 'w').close()\n"
        "    while not os.path.exists('ready.1'): time.sleep(0.02)\n"
        "    if os.environ['RANK'] == '0': raise SystemExit(3)\n"
        "    time.sleep(600)\n"
    )
    words = ("--nproc-per-node=2", "--max-restarts=1", "--shutdown-timeout=0.2", "--log-dir=logs")
    assert launch("run", *words, script).returncode == 0
    (log,) = tmp_path.glob("logs/*/events.jsonl")
    assert changes(log, "supervision") == [
        "running -> stopping", "stopping -> killing", "killing -> ended", "running -> ended",
    ]  # fmt: skip
    assert changes(log, "membership") == [
        "gathering -> running", "running -> stopping", "stopping -> running", "running -> ended",
    ]  # fmt: skip


def test_nodes_log_link_and_lease_state_transitions(tmp_path: Path) -> None:
    """One node coordinates through a file and the other connects to it; heartbeats log nothing."""
    flags = ("--rdzv-backend=file", f"--rdzv-endpoint={tmp_path}/meet", "--rdzv-id=changes")
    with OneMachine() as machine:
        job = Job(machine, tmp_path, *flags, "--nnodes=2")
        agents = [job.start(f"agent{number}", f"--log-dir=logs{number}") for number in range(2)]
        job.until_runs(agents, 2)
        job.until(lambda: min(job.counts().values(), default=0) > 50, "workers that count")
        assert job.stop() == [0, 0]
    logs = sorted(tmp_path.glob("logs*/*/events.jsonl"), key=lambda log: len(changes(log, "link")))
    host, other = logs
    assert changes(host, "candidacy") == ["waiting -> holding", "holding -> waiting"]
    assert changes(host, "link") == ["seeking -> hosting", "hosting -> over"]
    assert changes(host, "membership") == ["gathering -> running", "running -> ended"]
    assert changes(other, "link") == [
        "seeking -> joining", "joining -> connected", "connected -> over",
    ]  # fmt: skip
    assert not changes(other, "candidacy") + changes(other, "membership")
    assert changes(host, "supervision") == changes(other, "supervision") == ["running -> ended"]


def test_consequences_of_a_failure_share_its_stimulus_on_all_nodes(
    start: Start, launch: Launch, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, time\n"
        "open('ready.' + os.environ['RANK'], 'w').close()\n"
        "while not os.path.exists('ready.0'): time.sleep(0.02)\n"
        "if os.environ['RANK'] == '1': raise SystemExit(3)\n"
        "time.sleep(600)\n"
    )
    meet = ("--nnodes=2", "--rdzv-backend=file", f"--rdzv-endpoint={tmp_path}/meet", "--rdzv-id=x")
    agents = [start("run", *meet, f"--log-dir=logs{number}", script) for number in range(2)]
    assert [agent.wait(LIMIT_S) for agent in agents] == [3, 3]
    logs = [str(log) for log in tmp_path.glob("logs*/*/events.jsonl")]
    exits = [launch("events", "--json", "--name=WorkerExited", log).stdout for log in logs]
    (failure,) = [event for text in exits if (event := json.loads(text))["exitcode"] == 3]
    caused = [launch("events", f"--stimulus={failure['stimulus']}", log).stdout for log in logs]
    assert any("GroupStopped" in text for text in caused)
    assert all("supervision: running -> " in text for text in caused), caused


def test_logged_state_transitions_have_no_gaps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under all simulated faults, no transition is missed, and none leaves the state unchanged."""
    told: dict[tuple[int, str, str], list[StateChanged]] = defaultdict(list)
    logs: list[node.EventLog] = []
    write = node.EventLog.write

    def keep(log: node.EventLog, event: event_types.Event) -> event_types.LoggedEvent:
        if isinstance(event, StateChanged):
            logs.append(log)  # so that its id is not reused
            told[id(log), event.core, event.job].append(event)
        return write(log, event)

    monkeypatch.setattr(node.EventLog, "write", keep)
    for seed, mode in (
        (0, "endpoint"),
        (0, "hosts"),
        (1, "hosts"),
        (0, "register"),
        (8_050_320, ""),
    ):
        assert not play(seed, mode)[2]
    assert {core for _, core, _ in told} >= FIRST.keys() - {"activity", "reachability"}
    elected = [
        [each.after for each in found] for (_, core, _), found in told.items() if core == "election"
    ]
    assert ["candidate", "coordinator"] in [states[:2] for states in elected]
    for (_, core, _), found in told.items():
        state = FIRST[core]
        for each in found:
            assert each.before in (state, FIRST[core]), found
            assert each.before != each.after
            assert {each.before, each.after} <= events.STATES[core].keys()
            state = each.after


def test_events_page_lists_all_states() -> None:
    kinds: dict[str, type[Enum]] = {
        "supervision": SupervisionState, "link": LinkState, "membership": GroupState,
        "election": ElectionState,
    }  # fmt: skip
    assert events.STATES.keys() == FIRST.keys()
    for core, states in events.STATES.items():
        if core in kinds:
            assert states.keys() - {"about"} == {state.value for state in kinds[core]}
        assert FIRST[core] in states


@pytest.mark.parametrize(
    ("taken", "cause"),
    [
        (Tick(), "Tick"),
        (Opened("10.0.0.1:29400"), "Opened"),
        (NodeLost("a1", "no heartbeat for 1.3 s"), "NodeLost: no heartbeat for 1.3 s"),
        (
            Received("a1", NodeLeaving("its agent got SIGTERM")),
            "NodeLeaving: its agent got SIGTERM",
        ),
        (BallotReceived(VoteRelease(1, "ab", 0.0)), "VoteRelease"),
        (event_types.GroupStopped(0, "x" * 9999), "GroupStopped: " + "x" * 286),
    ],
)
def test_cause_of_state_transition_names_input_and_reason(taken: object, cause: str) -> None:
    assert changed("link", "joining", "seeking", taken).cause == cause


def test_flapping_link_does_not_evict_other_events() -> None:
    log = EventLog("")
    log.write(event_types.WorkerStarted(0, 0, 1))
    log.write(StateChanged("election", "follower", "candidate", "Tick"))
    for _ in range(2000):
        log.write(StateChanged("link", "seeking", "joining", "Opened"))
    kept = log.after(0)
    assert [each.number for each in kept] == sorted(each.number for each in kept)
    assert [each.number for each in kept[:2]] == [1, 2]
    assert kept[-1].number == 2002
    assert len(kept) < 100
