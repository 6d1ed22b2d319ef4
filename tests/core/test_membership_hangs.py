"""A generation is stopped as hung once the workers on all nodes are idle."""

from plays import Table, table

from relight.base.errors import EXIT_HUNG
from relight.core.group.messages import StopWorkers


def running_group(max_restarts: int = 3) -> Table:
    played = table(2, 2, max_restarts)
    return played.play("""
        0 a joins
        0 b joins
        -> form 0: a b
        """)


def test_generation_is_stopped_as_hung_once_all_nodes_are_idle() -> None:
    played = running_group().play("""
        100 a quiet10
        105 b quiet12
        -> look and stop 0: a b
        106 a ready
        106 b ready
        -> form 1 restart 1: a b
        """)
    assert "no rank has made progress for 12 s; restart 1 of 3" in played.last["a"].generation.cause


def test_stop_after_a_hang_allows_time_for_stack_dumps() -> None:
    played = running_group().play("""
        100 a quiet10
        100 b quiet10
        -> look and stop 0: a b
        """)
    stops = [m for node in "ab" for m in played.heard[node] if isinstance(m, StopWorkers)]
    assert [stop.limit_s for stop in stops] == [1, 1]


def test_hang_timeout_counts_from_last_activity_on_any_node() -> None:
    """B was active until 95, and both nodes' users set a limit of 10 s."""
    running_group().play("""
        100 a quiet10
        101 b quiet6
        104 - -
        104.9 - -
        106 - -
        -> look and stop 0: a b
        """)


def test_one_active_node_keeps_the_whole_job_running() -> None:
    running_group().play("""
        100 a quiet10
        101 a quiet0
        102 b quiet11
        200 - -
        201 a quiet10
        -> look and stop 0: a b
        """)


def test_worker_success_counts_as_activity() -> None:
    """B waits for a's workers, which succeed at 100."""
    running_group().play("""
        95 b quiet20
        100 a done
        -> confirm 0, 0 done: b
        109 - -
        111 - -
        -> look and stop 0: a b
        """)


def test_hung_job_without_remaining_restarts_exits_with_124() -> None:
    played = running_group(max_restarts=0).play("""
        100 a quiet10
        100 b quiet10
        -> look and stop 0: a b
        106 a ready
        106 b ready
        -> end 124: a b
        """)
    assert played.end("a").reason == "no rank has made progress for 10 s"


def test_worker_failure_while_a_hung_job_stops_is_the_root_cause() -> None:
    played = running_group(max_restarts=0).play("""
        100 a quiet10
        100 b quiet10
        -> look and stop 0: a b
        106 a ends
        106 b ready
        -> end 7: a b
        """)
    assert "exited with code 7" in played.end("b").report[0]


def test_idle_report_from_an_older_generation_is_ignored() -> None:
    played = running_group().play("""
        100 a quiet10
        101 b failed
        -> stop 0: a b
        102 a ready
        102 b ends
        -> form 1 restart 1: a b
        110 b quiet10
        200 - -
        """)
    stops = [m for m in played.heard["a"] if isinstance(m, StopWorkers)]
    assert len(stops) == 1
    assert EXIT_HUNG == 124
