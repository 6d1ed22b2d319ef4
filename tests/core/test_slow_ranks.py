"""Straggler detection: the rules behind --watch-slow-ranks, applied to simulated training."""

import random
from collections.abc import Callable, Sequence

import pytest

from relight.core.diagnosis import stack_text
from relight.core.diagnosis.stack_text import Frame
from relight.core.group.messages import SlowNode, WaitSamples
from relight.core.group.straggler_detector import WINDOWS, Change, StragglerDetector, describe
from relight.core.ranks import GenerationId, NodeSize, places

GENERATION = GenerationId(0, "")
LOOKS, STEPS = 100, 40
TOLD_AFTER = 2 * WINDOWS
TORCH = "/env/lib/python3.11/site-packages/torch"
OWN = Frame("/home/u/train.py", 88, "main")

Times = Callable[[int, int, int], float]
"""Returns how long a rank works on a step, given the window, the step and the rank."""


class Job:
    """A multi-node job that trains window by window, and its reports."""

    def __init__(self, *sizes: int, seed: int = 0, jitter: float = 0.1) -> None:
        self.sizes = sizes
        self.chance = random.Random(seed)
        self.jitter = jitter
        located = places([NodeSize(size, "") for size in sizes])
        self.compares = StragglerDetector((place, f"node{place.group_rank}") for place in located)
        self.told: list[Change] = []
        self.now = 0.0

    def windows(
        self, count: int, times: Times, *, reports: bool = False, meets: bool = True
    ) -> "Job":
        """Train for a number of windows. With `meets`, all ranks meet at the end of each step."""
        size = sum(self.sizes)
        for window in range(count):
            busy, total = [0.0] * size, [0.0] * size
            for step in range(STEPS):
                works = [
                    times(window, step, rank) * max(0.1, self.chance.gauss(1, self.jitter))
                    for rank in range(size)
                ]
                for rank, work in enumerate(works):
                    busy[rank] += work
                    total[rank] += (max(works) if meets else work) + 0.02
            steps = [round(STEPS * min(total) / each) if reports else -1 for each in total]
            waits = [
                sum(self.chance.random() > works / all_of_it for _ in range(LOOKS))
                for works, all_of_it in zip(busy, total, strict=True)
            ]
            self.hear(waits if meets else [0] * size, steps)
        return self

    def hear(self, waits: Sequence[int], steps: Sequence[int], looks: int = LOOKS) -> None:
        """Report a window from all nodes."""
        self.now += 10
        first = 0
        for node, size in enumerate(self.sizes):
            part = slice(first, first + size)
            pace = WaitSamples(GENERATION, (looks,) * size, tuple(waits[part]), tuple(steps[part]))
            change = self.compares.hear(node, pace, self.now)
            self.told += [change] if change else []
            first += size

    @property
    def named(self) -> list[tuple[int, ...]]:
        """Return the ranks named in each report."""
        return [tuple(rank for node in change.nodes for rank in node.ranks) for change in self.told]


def slow(*ranks: int, by: float) -> Times:
    return lambda _, __, rank: 1 + by if rank in ranks else 1.0


def equal(*_: int) -> float:
    return 1.0


@pytest.mark.parametrize("by", [0.2, 0.3, 0.5])
@pytest.mark.parametrize("rank", [0, 3])
def test_straggler_is_reported_once(rank: int, by: float) -> None:
    job = Job(4).windows(3 * TOLD_AFTER, slow(rank, by=by))
    assert job.named == [(rank,)]
    (node,) = job.told[0].nodes
    assert node.slower == pytest.approx(by, abs=0.06)
    assert node.waited == pytest.approx(1 - 1 / (1 + by), abs=0.06)
    assert not node.is_whole


def test_slower_of_two_ranks_is_reported() -> None:
    assert Job(1, 1).windows(2 * TOLD_AFTER, slow(1, by=0.2)).named == [(1,)]


def test_rank_that_is_ten_percent_slower_is_reported_eventually() -> None:
    assert Job(4, jitter=0.05).windows(5 * TOLD_AFTER, slow(2, by=0.1)).named == [(2,)]


@pytest.mark.parametrize("sizes", [(2, 2), (4, 4), (2, 2, 2)])
def test_ranks_on_a_slow_node_are_reported_together(sizes: tuple[int, ...]) -> None:
    whole = range(sizes[0], sizes[0] + sizes[1])
    job = Job(*sizes).windows(3 * TOLD_AFTER, slow(*whole, by=0.3))
    assert job.named == [tuple(whole)]
    assert [(node.host, node.is_whole) for node in job.told[0].nodes] == [("node1", True)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sizes", [(2,), (4,), (2, 2), (4, 4)])
@pytest.mark.parametrize("jitter", [0.05, 0.2])
def test_equally_fast_ranks_yield_no_straggler(
    sizes: tuple[int, ...], jitter: float, seed: int
) -> None:
    assert not Job(*sizes, seed=seed, jitter=jitter).windows(150, equal).named


def test_rank_that_checkpoints_occasionally_is_not_a_straggler() -> None:
    def times(window: int, step: int, rank: int) -> float:
        return 15.0 if rank == 0 and window % 3 == 0 and step == 5 else 1.0

    assert not Job(4).windows(100, times).named


def test_rank_that_checkpoints_in_every_window_is_a_straggler() -> None:
    """The other ranks keep waiting for the rank that checkpoints."""
    job = Job(4).windows(50, lambda _, step, rank: 8.0 if (rank, step) == (0, 5) else 1.0)
    assert job.named == [(0,)]


def test_evenly_spread_rank_speeds_yield_no_straggler() -> None:
    """The data may cause this, and the slowest rank isn't an outlier."""
    assert not Job(8).windows(100, lambda _, __, rank: 1 + 0.1 * rank).named


def test_ranks_without_shared_collectives_are_not_compared() -> None:
    """Pipeline stages are an example: one may simply have more to do than another."""
    assert not Job(4).windows(100, slow(1, by=0.5), meets=False).named


def test_ranks_without_collectives_are_compared_by_reported_steps() -> None:
    job = Job(4).windows(50, slow(1, by=0.3), meets=False, reports=True)
    assert job.named == [(1,)]
    assert job.told[0].nodes[0].slower == pytest.approx(0.3, abs=0.06)
    assert job.told[0].nodes[0].waited == 0


def test_rank_that_runs_the_evaluation_is_not_a_straggler() -> None:
    job = Job(4).windows(WINDOWS, equal)
    for _ in range(5 * WINDOWS):
        job.hear([0, LOOKS, LOOKS, LOOKS], [-1] * 4)
    assert not job.windows(WINDOWS, equal).named


def test_straggler_detection_ignores_phase_without_steps() -> None:
    job = Job(4).windows(WINDOWS, equal, reports=True)
    for _ in range(5 * WINDOWS):
        job.hear([0, 40, 40, 40], [0] * 4)
    assert not job.windows(WINDOWS, equal, reports=True).named


def test_straggler_detection_ignores_sparsely_sampled_windows() -> None:
    job = Job(4)
    for _ in range(5 * WINDOWS):
        job.hear([0, 3, 3, 3], [-1] * 4, looks=4)
    assert not job.named


def test_report_with_wrong_number_of_ranks_is_ignored() -> None:
    job = Job(1, 1)
    assert job.compares.hear(0, WaitSamples(GENERATION, (9, 9), (0,), (-1,)), 0.0) is None
    assert job.windows(2 * TOLD_AFTER, slow(1, by=0.3)).named == [(1,)]


def test_single_rank_is_never_reported_as_slow() -> None:
    """An agent wouldn't report a single rank, but any peer could."""
    assert not Job(1).windows(3 * WINDOWS, equal).named


def test_recovery_of_a_straggler_is_reported_once() -> None:
    job = Job(4).windows(2 * TOLD_AFTER, slow(1, by=0.3)).windows(3 * TOLD_AFTER, equal)
    assert job.named == [(1,), ()]


def test_second_straggler_is_reported_along_with_the_first() -> None:
    job = Job(8).windows(2 * TOLD_AFTER, slow(1, by=0.3))
    assert job.windows(3 * TOLD_AFTER, slow(1, 5, by=0.3)).named == [(1,), (1, 5)]


def test_straggler_report_says_when_the_rank_became_slow() -> None:
    job = Job(4).windows(50, equal)
    began = job.now
    job.windows(2 * TOLD_AFTER, slow(1, by=0.4))
    assert began < job.told[0].since <= began + 10 * WINDOWS


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (
            [SlowNode("gpu-03", (5,), False, 0.28, 0.22)],
            "rank 5 on gpu-03 is 28% slower than the others: they wait for it 22% of the time, "
            "since 14:02",
        ),
        (
            [SlowNode("gpu-03", (8, 9), True, 0.28, 0.22)],
            "all ranks on gpu-03 are 28% slower than the others: they wait for them 22% of the "
            "time, since 14:02",
        ),
        (
            [SlowNode("a", (0, 2), False, 0.1, 0.0), SlowNode("b", (4,), True, 0.2, 0.0)],
            "ranks 0, 2 on a are 10% slower than the others, since 14:02; rank 4 on b is 20% "
            "slower than the others, since 14:02",
        ),
        ([], "no rank is slower than the others anymore"),
    ],
)
def test_stragglers_are_described_in_one_line(nodes: list[SlowNode], expected: str) -> None:
    assert describe(nodes, "14:02") == expected


def test_slow_nodes_beyond_the_listed_ones_are_counted() -> None:
    nodes = [SlowNode(f"n{number}", (number,), True, 0.1, 0.1) for number in range(9)]
    assert describe(nodes, "14:02").endswith("; and ranks on 5 more nodes")


C10D, AUTOGRAD = f"{TORCH}/distributed/distributed_c10d.py", f"{TORCH}/autograd/graph.py"


@pytest.mark.parametrize(
    ("state", "called", "expected"),
    [
        ("S", [(C10D, "all_reduce")], True),
        ("R", [(C10D, "all_reduce")], True),  # NCCL spins
        ("S", [(AUTOGRAD, "_engine_run_backward")], True),  # as in DistributedDataParallel
        ("R", [(AUTOGRAD, "_engine_run_backward")], False),  # it is computing gradients
        ("S", [(f"{TORCH}/nn/parallel/distributed.py", "DDP._sync_buffers")], True),
        ("R", [(f"{TORCH}/nn/functional.py", "relu"),
               (f"{TORCH}/distributed/fsdp/fsdp.py", "FSDP.forward")], False),
        ("S", [(C10D, "recv")], False),  # a pipeline stage waits for the one before it
        ("S", [(C10D, "batch_isend_irecv"),
               (f"{TORCH}/distributed/pipelining/schedules.py", "step")], False),
        ("S", [(f"{TORCH}/distributed/checkpoint/filesystem.py", "write")], False),
        ("S", [(f"{TORCH}/utils/data/dataloader.py", "__next__")], False),
        ("S", [], False),
        ("D", [], False),
    ],
)  # fmt: skip
def test_only_calls_that_wait_for_all_ranks_count_as_waiting(
    state: str, called: list[tuple[str, str]], expected: bool
) -> None:
    """The result doesn't depend on which of the user's functions makes the call."""
    frames = [*(Frame(file, 1, name) for file, name in called), OWN, Frame(C10D, 1, "barrier")]
    assert stack_text.waits_for_all(frames, state) is expected
