"""Goodput: a job's wall time, split into phases using an agent's events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.core.status.goodput import Account, Ledger, NodeFailures, Phases, format_account
from relight.events import event_types

Told = tuple[float, event_types.Event]
SINCE_1970 = 1024.0
"""The time since 1970 of 0 on the monotonic clock."""


def formed(number: int, restart: int = 0, nodes: int = 1, failed: str = "") -> event_types.Formed:
    return event_types.Formed(number, restart, 0, nodes, 2 * nodes, "10.0.0.1", 1234, "why", failed)


def generation(begin: float, number: int, restart: int = 0, *, first: bool = True) -> list[Told]:
    """Return a generation with two workers.

    It is formed after 1 s, its workers are spawned after 2 s, have imported after 5 s and have met
    after 6 s. The first step is done after 8 s.
    """
    told: list[Told] = [
        (begin + 1, formed(number, restart, failed="a" * restart)),
        (begin + 1.5, event_types.WorkerStarted(0, 0, 70)),
        (begin + 2, event_types.WorkerStarted(1, 1, 71)),
        (begin + 5, event_types.StoreReached(number, 1, 2)),
        (begin + 6, event_types.StoreReached(number, 2, 2)),
    ]
    return told if first else told[:3]


def failure(at: float, number: int, first: float | None, saved: float | None) -> list[Told]:
    """Fail a worker. The failure is noticed 0.5 s later, and the other worker exits 2 s later."""
    told: list[Told] = [
        (at + 0.5, event_types.WorkerExited(1, 1)),
        (at + 0.5, event_types.FailureNoticed(number, 1, 0.5)),
        (at + 2.5, event_types.WorkerExited(0, -15)),
    ]
    if first is not None:
        told.append((at + 2.6, event_types.StepsReported(number, 9, first, at)))
    if saved is not None:
        told.append((at + 2.6, event_types.CheckpointFound(number, SINCE_1970 + saved)))
    return told


def ledger(told: list[Told], *, checkpoints: bool = True) -> Ledger:
    found = Ledger(0.0, knows_checkpoints=checkpoints)
    for t, event in told:
        found.step(event, t, SINCE_1970 + t)
    return found


RESTARTED = [
    *generation(0, 0),
    *failure(20, 0, 8, 17),
    *generation(22.5, 1, 1),
    (40.0, event_types.WorkerExited(0, 0)),
    (40.5, event_types.WorkerExited(1, 0)),
    (40.5, event_types.StepsReported(1, 30, 30.5, 40)),
    (41.0, event_types.Ended(0, "all workers succeeded")),
]


def test_goodput_splits_wall_time_into_phases() -> None:
    account = ledger(RESTARTED).account(99.0)
    first, second = account.latest
    assert first.phases._asdict() == pytest.approx({
        "rendezvous": 1, "spawn": 1, "imports": 3, "init": 1, "first_step": 2, "productive": 9,
        "lost": 3, "detect": 0.5, "teardown": 2, "unknown": 0,
    })  # fmt: skip
    assert second.phases == Phases(
        rendezvous=1, spawn=1, imports=3, init=1, first_step=2, productive=10, lost=0, teardown=0.5,
    )  # fmt: skip
    assert account.wall_s == 41
    assert account.goodput == pytest.approx(19 / 41)
    assert (account.failures, account.generations) == (1, 2)
    assert (account.mttr_s, account.repaired_by) == (10.5, "first_step")
    assert account.mtbf_s == 34
    assert account.nodes == (NodeFailures("a", 1, 34.0),)


def test_running_generation_is_counted_up_to_the_present() -> None:
    """No event reports the generation's first step until the workers have exited."""
    running = ledger(generation(0, 0))
    assert running.account(7.0).latest[0].phases.unknown == 1
    account = running.account(18.0, 8.0)
    assert account.latest[0].phases.productive == 10
    assert (account.goodput, account.failures, account.mttr_s) == (pytest.approx(10 / 18), 0, None)


@pytest.mark.parametrize(
    ("told", "unknown", "known"),
    [
        (generation(0, 0), 14, {"rendezvous", "spawn", "imports", "init"}),
        (generation(0, 0, first=False), 18, {"rendezvous", "spawn"}),
        ([*generation(0, 0, first=False), (20.0, event_types.StepsReported(0, 1, 8.0, 19.0))], 6,
         {"rendezvous", "spawn", "productive", "lost"}),
        ([(1.0, formed(0))], 19, {"rendezvous"}),
    ],
    ids=["no progress()", "no init_process_group", "neither", "no worker"],
)  # fmt: skip
def test_time_not_explained_by_events_is_unknown(
    told: list[Told], unknown: float, known: set[str]
) -> None:
    phases = ledger(told).account(20.0).latest[0].phases
    found = {name for name, seconds in phases._asdict().items() if seconds is not None}
    assert (phases.unknown, found - {"unknown"}) == (unknown, known)


def test_lost_time_is_unknown_if_checkpoints_are_not_tracked() -> None:
    """The goodput is an upper bound in that case, and is labelled as one."""
    account = ledger(RESTARTED, checkpoints=False).account(99.0)
    assert account.latest[0].phases.lost is None
    assert account.latest[0].phases.productive == 12
    assert account.is_most
    assert format_account(account)[0].startswith("goodput at most 54% over 41.0 s")


def test_failure_before_the_first_checkpoint_loses_all_steps() -> None:
    """The same holds if the newest checkpoint is older than the generation's first step."""
    for saved in (None, 3.0):
        told = [*generation(0, 0), *failure(20, 0, 8, saved), *generation(22.5, 1, 1)]
        assert ledger(told).account(30.0).latest[0].phases.lost == 12


def interrupted(failed: str, restart: int = 0) -> Account:
    """Return an account in which this node was stopped and joined the next generation."""
    told: list[Told] = [
        (1.0, formed(0, 0, 3)), (2.0, event_types.WorkerStarted(0, 0, 70)),
        (12.0, event_types.GroupStopped(0, "why")), (13.0, event_types.WorkerExited(0, -15)),
        (14.0, formed(1, restart, 3, failed)), (15.0, event_types.WorkerStarted(0, 0, 80)),
    ]  # fmt: skip
    return ledger(told).account(20.0)


@pytest.mark.parametrize(
    ("account", "failures", "hosts"),
    [
        (interrupted("b"), 1, ["b"]),
        (interrupted("b", restart=1), 1, ["b"]),
        (interrupted("", restart=1), 1, []),
        (interrupted(""), 0, []),
        (ledger([*generation(0, 0), (9.0, event_types.SignalReceived(15)),
                 (10.0, event_types.WorkerExited(0, -15)), (10.0, event_types.WorkerExited(1, -15)),
                 (10.0, event_types.Ended(143, "signal"))]).account(10.0), 0, []),
        (ledger([*generation(0, 0), *failure(20, 0, 8, 17),
                 (23.0, event_types.NotRestarting("x", "a")),
                 (23.0, event_types.Ended(1, "failed"))]).account(23.0), 1, ["a"]),
    ],
    ids=["node lost", "worker failed", "unknown host", "node joined", "ctrl-C", "job end"],
)  # fmt: skip
def test_failures_are_counted_per_job_and_node(
    account: Account, failures: int, hosts: list[str]
) -> None:
    """A node that joins, or a signal from the user, isn't a failure."""
    assert account.failures == failures
    assert [(node.host, node.failures) for node in account.nodes] == [(h, 1) for h in hosts]


def test_failure_on_another_node_counts_towards_mttr() -> None:
    account = interrupted("b")
    assert (account.mttr_s, account.repaired_by, account.mtbf_s) == (3.0, "spawn", 15.0)


def test_nodes_with_most_failures_are_listed_first() -> None:
    told = [(float(n), formed(n, n, failed=f"h{n % 30}" if n % 2 else "b")) for n in range(100)]
    nodes = ledger(told).account(100.0).nodes
    assert nodes[0].host == "b"
    assert (len(nodes), nodes[0].failures) == (16, 49)


def test_cold_start_cost_is_known_only_until_a_restart() -> None:
    told = [*failure(20, 0, 8, 17), *generation(22.5, 1, 1)]
    assert ledger(generation(0, 0)).cold_start_s() == 3.0
    assert ledger([*generation(0, 0), *told]).cold_start_s() is None


def test_restart_cost_is_known_once_all_workers_have_met_again() -> None:
    told = [*generation(0, 0), *failure(20, 0, 8, 17), *generation(22.5, 1, 1)]
    assert ledger(told[:-1]).cold_restart() is None
    assert ledger(told).cold_restart() == (8.5, 3.0)
    assert ledger(generation(0, 0)).cold_restart() is None


def test_goodput_summary_is_three_lines() -> None:
    assert format_account(ledger(RESTARTED).account(99.0)) == [
        "goodput 46% over 41.0 s",
        "time: productive 19.0 s, imports 6.0 s, first step 4.0 s, lost since the last checkpoint "
        "3.0 s, teardown 2.5 s, rendezvous 2.0 s, spawn 2.0 s, init 2.0 s, detect 0.5 s",
        "1 failure, MTTR 10.5 s (until first step), MTBF 34.0 s",
    ]
    assert format_account(ledger(generation(0, 0)).account(20.0))[0] == (
        "goodput over 20.0 s is unknown: the workers have not reported any steps "
        "(relight.worker.progress)"
    )


KINDS = [
    formed(0),
    formed(1, 1),
    formed(2, 1, 3),
    event_types.WorkerStarted(0, 0, 7),
    event_types.WorkerExited(0, 0),
    event_types.WorkerExited(0, 1),
    event_types.StoreReached(0, 1, 2),
    event_types.StoreReached(0, 2, 2),
    event_types.FailureNoticed(0, 0, 1.5),
    event_types.GroupStopped(0, "x"),
    event_types.SignalReceived(2),
    event_types.SpawnerLost(-9),
    event_types.StepsReported(0, 5, 3.0, 9.0),
    event_types.CheckpointFound(0, 1029.0),
    event_types.Ended(1, "x"),
    event_types.Restarting(1, 3, "x"),
]


@given(st.lists(st.tuples(st.floats(0, 10), st.sampled_from(KINDS)), max_size=30), st.booleans())
def test_goodput_phases_add_up_to_wall_time(told: list[Told], checkpoints: bool) -> None:
    """The sum is right for a running job with events in any order, as long as the times in each
    event are within its generation.
    """
    now = 0.0
    times: list[Told] = []
    for pause, event in told:
        now += pause
        if isinstance(event, event_types.StepsReported):
            event = event._replace(first=now, last=now)
        if isinstance(event, event_types.FailureNoticed):
            event = event._replace(after_s=0.0)
        times.append((now, event))
    account = ledger(times, checkpoints=checkpoints).account(now)
    ended = [t for t, event in times if isinstance(event, event_types.Ended)]
    if not ended and account.generations:
        total = sum(seconds or 0.0 for seconds in account.total._asdict().values())
        assert total == pytest.approx(account.wall_s, abs=1e-6)
    assert account.goodput is None or 0 <= account.goodput <= 1
    assert format_account(account)
