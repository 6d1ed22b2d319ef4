"""Generations whose workers do nothing: they are stopped if that is so on all nodes."""

from plays import Table, table

from relight.base.errors import EXIT_HUNG
from relight.core.group.messages import StopWorkers


def running(max_restarts: int = 3) -> Table:
    played = table(2, 2, max_restarts)
    return played.play("""
        0 a joins
        0 b joins
        -> form 0: a b
        """)


def test_a_generation_is_stopped_once_no_node_does_anything() -> None:
    played = running().play("""
        100 a quiet10
        105 b quiet12
        -> look and stop 0: a b
        106 a ready
        106 b ready
        -> form 1 restart 1: a b
        """)
    assert "no rank has made progress for 12 s; restart 1 of 3" in played.last["a"].generation.cause


def test_no_worker_is_stopped_before_all_nodes_have_had_time_to_take_their_stacks() -> None:
    played = running().play("""
        100 a quiet10
        100 b quiet10
        -> look and stop 0: a b
        """)
    stops = [m for node in "ab" for m in played.heard[node] if isinstance(m, StopWorkers)]
    assert [stop.limit_s for stop in stops] == [1, 1]


def test_a_hang_counts_from_the_last_that_any_node_did() -> None:
    """B did something until 95; its user allows 10 s, a's as well."""
    running().play("""
        100 a quiet10
        101 b quiet6
        104 - -
        104.9 - -
        106 - -
        -> look and stop 0: a b
        """)


def test_a_node_that_works_again_keeps_all_alive() -> None:
    running().play("""
        100 a quiet10
        101 a quiet0
        102 b quiet11
        200 - -
        201 a quiet10
        -> look and stop 0: a b
        """)


def test_workers_that_succeeded_did_something_until_then() -> None:
    """B waits for the workers of a, which end well at 100."""
    running().play("""
        95 b quiet20
        100 a done
        -> confirm 0, 0 done: b
        109 - -
        111 - -
        -> look and stop 0: a b
        """)


def test_without_a_restart_left_the_job_ends_with_the_code_of_a_hang() -> None:
    played = running(max_restarts=0).play("""
        100 a quiet10
        100 b quiet10
        -> look and stop 0: a b
        106 a ready
        106 b ready
        -> end 124: a b
        """)
    assert played.end("a").reason == "no rank has made progress for 10 s"


def test_a_failure_of_a_worker_that_was_not_asked_to_stop_is_the_cause() -> None:
    played = running(max_restarts=0).play("""
        100 a quiet10
        100 b quiet10
        -> look and stop 0: a b
        106 a ends
        106 b ready
        -> end 7: a b
        """)
    assert "exited with code 7" in played.end("b").report[0]


def test_what_was_said_of_an_older_generation_does_not_count() -> None:
    played = running().play("""
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
