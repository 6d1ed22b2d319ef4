"""Under `smart`, each node lost without progress delays the next generation further."""

import pytest
from plays import table

from relight.core.group.group_types import GroupSettings
from relight.core.group.restart_budget import GenerationRun, RestartHistory

SHORT = GenerationRun(1.0, None)


def history(*, smart: bool = True) -> RestartHistory:
    return RestartHistory(GroupSettings(1, 4, 3, smart=smart), 0, "origin", 0.0)


def check_waits(waits: list[float]) -> None:
    """Check that the first wait is 0 and the next about 1 s, each up to a half shorter, doubling
    up to a minute.
    """
    assert waits[0] == 0.0
    for number, wait in enumerate(waits[1:]):
        assert min(2.0**number, 60.0) / 2 <= wait <= min(2.0**number, 60.0)


def test_backoff_starts_at_second_lost_node_and_is_capped() -> None:
    of_job = history()
    check_waits([of_job.after_lost_node(SHORT) for _ in range(12)])


@pytest.mark.parametrize("run", [GenerationRun(1.0, True), GenerationRun(300.0, None)])
def test_progress_resets_backoff_for_lost_nodes(run: GenerationRun) -> None:
    """Without other evidence, five minutes of running count as progress."""
    of_job = history()
    assert [of_job.after_lost_node(each) > 0 for each in (SHORT, SHORT, run, SHORT, SHORT)] == [
        False, True, False, False, True,
    ]  # fmt: skip


def test_long_run_without_progress_does_not_reset_backoff() -> None:
    of_job = history()
    check_waits([of_job.after_lost_node(GenerationRun(4000.0, False)) for _ in range(8)])


def test_failures_and_lost_nodes_share_one_backoff() -> None:
    of_job = history()
    waits = []
    for restart in range(3):
        waits += [of_job.after_lost_node(SHORT), of_job.after_failure(SHORT, restart, 0.0).delay_s]
    check_waits(waits)
    assert not of_job.after_failure(SHORT, 3, 0.0).restarts  # three restarts were allowed


def test_plain_restart_policy_has_no_backoff_for_lost_nodes() -> None:
    of_job = history(smart=False)
    assert {of_job.after_lost_node(SHORT) for _ in range(9)} == {0.0}


@pytest.mark.parametrize("smart", [True, False])
def test_next_generation_starts_only_after_the_backoff(smart: bool) -> None:
    """After the second of two nodes lost in a row, no generation forms for half a second."""
    game = table(1, 3, smart=smart)
    game.play("""
        0 a b c joins
        -> form 0: a b c
        1 c lost
        -> stop 0: a b
        1.1 a b ready
        -> form 1: a b
        2 b lost
        -> stop 1: a
    """)
    game.play("2.1 a ready\n" + "-> form 2: a" * (not smart))
    if smart:
        game.play("2.59 a -\n")
        game.play("3.1 a -\n-> form 2: a")
    assert game.group.restarts.number == 0
