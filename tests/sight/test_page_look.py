"""The content of a status page, and which part of it is sent."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from relight.core.status.rates import Rates
from relight.core.status.snapshot import NodeSnapshot, RankSnapshot, RankUse, WholeJob
from relight.core.status.timeline import TimedEvent, history
from relight.events import event_lines
from relight.events.event_types import Formed, LoggedEvent, Restarting, format_line
from relight.inspect.page.changes import changes
from relight.inspect.page.view_model import Events, Reading, look, rank_state

SECRET = "hunter2"


def rank(number: int, **fields: Any) -> RankSnapshot:
    return RankSnapshot(number, number, 100 + number, None, 0, "", "", "")._replace(**fields)


def node(*ranks: RankSnapshot, **fields: Any) -> NodeSnapshot:
    made = NodeSnapshot("train-7", "train", 7, "gpu-01", "r", ("train.py",), "/home/u", "default",
                        1.0, 5.0, "running", 0, 0, 3, "start", 0, 1, 2, None, "", "",
                        ranks)  # fmt: skip
    return made._replace(**fields)


def shown(job: WholeJob, *, answers: bool = True, gone: bool = False) -> dict[str, Any]:
    return look(Reading(job, Rates(), history({}, 0.0), answers, gone), ())


@pytest.mark.parametrize(
    ("own", "answers", "gone", "expected"),
    [
        (node(), True, False, ("running", "", False)),
        (node(generation=-1, state="waiting"), True, False,
         ("waiting", "It is waiting for a group to form.", False)),
        (node(generation=2, cause="a node came"), True, False,
         ("running", "generation 2: a node came", False)),
        (node(state="ended", exit_code=0, reason="all succeeded"), True, False,
         ("succeeded", "exit code 0: all succeeded", True)),
        (node(state="ended", exit_code=3, reason="rank 1 exited"), True, False,
         ("failed", "exit code 3: rank 1 exited", True)),
        (node(state="ended", exit_code=143, reason="SIGTERM"), True, False,
         ("cancelled", "exit code 143: SIGTERM", True)),
        (node(), False, False, ("lost", "Its agent is not responding, because it is "
        "suspended.", False)),
        (node(), False, True, ("lost", "Its agent was killed.", True)),
    ],
)  # fmt: skip
def test_page_header_shows_job_state(
    own: NodeSnapshot, answers: bool, gone: bool, expected: tuple[str, str, bool]
) -> None:
    job = shown(WholeJob((own,)), answers=answers, gone=gone)["job"]
    assert (job["shown_state"], job["notice"], job["over"]) == expected


@pytest.mark.parametrize(
    ("step", "ran_s", "expected"),
    [(None, 59.0, "generation 1: rank 1 failed"), (None, 60.0, ""), (3, 1.0, "")],
)
def test_failure_banner_disappears_once_job_makes_progress(
    step: int | None, ran_s: float, expected: str
) -> None:
    use = RankUse(100.0, 1.0, 1, step)
    own = node(rank(0, use=use), generation=1, cause="rank 1 failed", taken=100.0)
    formed = Formed(1, 1, 0, 1, 2, "gpu-01", 1, "rank 1 failed")
    seen = history({"gpu-01": [TimedEvent(100.0 - ran_s, formed)]}, 1.0)
    reading = Reading(WholeJob((own,)), Rates(), seen, answers=True, gone=False)
    assert look(reading, ())["job"]["notice"] == expected


def test_page_names_unresponsive_nodes() -> None:
    job = shown(WholeJob((node(),), ("gpu-02", "gpu-03")))["job"]
    assert job["notice"] == "No response from gpu-02, gpu-03; their ranks are not shown."


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "running"),
        ({"exitcode": 0}, "succeeded"),
        ({"exitcode": 2}, "failed (2)"),
        ({"exitcode": -9}, "killed (SIGKILL)"),
        ({"exitcode": -15, "stop_signal": 15}, "stopped"),
    ],
)
def test_displayed_rank_state_matches_exit_code(fields: dict[str, Any], expected: str) -> None:
    assert rank_state(rank(0, **fields), node()) == expected


def test_rank_that_exited_too_early_is_shown_as_failed() -> None:
    """The report names it as the cause."""
    early = rank(0, exitcode=0)
    assert rank_state(early, node()._replace(blamed=(0,))) == "failed (0)"
    assert rank_state(early, node()._replace(blamed=(1,))) == "succeeded"


def test_secrets_are_never_shown_on_page() -> None:
    """They may occur in last lines, causes, failures and events."""
    text = f"login --password {SECRET} failed, Authorization: Bearer {SECRET}"
    own = node(rank(0, last_line=text), generation=1, cause=text)
    records = {"gpu-01": [TimedEvent(2.0, Restarting(1, 3, text))]}
    events = Events()
    line = event_lines.read(format_line(LoggedEvent(1, 2.0, 2.0, Restarting(1, 3, text))))
    assert line is not None
    events.add("gpu-01", line)
    reading = Reading(WholeJob((own,)), Rates(), history(records, 1.0), True, False)
    everything = str(look(reading, ()) | {"events": events.shown()})
    assert SECRET not in everything
    assert everything.count("<hidden>") >= 6


def test_events_are_numbered_and_only_latest_are_kept() -> None:
    events = Events(most=2)
    for number in range(4):
        line = event_lines.read(format_line(LoggedEvent(1, 1.0, number, Restarting(1, 3, "why"))))
        assert line is not None
        events.add("gpu-01", line)
    assert [(each["n"], each["at"]) for each in events.shown()] == [(3, 2.0), (4, 3.0)]


ROWS = some.lists(some.tuples(some.integers(0, 9), some.integers(0, 2)).map(list),
                  unique_by=lambda row: row[0])  # fmt: skip
LOOKS = some.builds(
    lambda job, rows, upto: {"job": job, "ranks": rows, "events": [{"n": n} for n in range(upto)]},
    some.integers(0, 2), ROWS, some.integers(0, 5),
)  # fmt: skip


def applied(known: dict[str, Any], news: dict[str, Any]) -> dict[str, Any]:
    """Return the page as rendered by page.js."""
    rows = {} if news.get("full") else {row[0]: row for row in known["ranks"]}
    rows |= {row[0]: row for row in news.get("ranks", ())}
    for gone in news.get("gone", ()):
        del rows[gone]
    events = [] if news.get("full") else known["events"]
    return {
        "job": news.get("job", known.get("job")),
        "ranks": [rows[key] for key in sorted(rows)],
        "events": [*events, *news.get("events", ())],
    }


@given(some.lists(LOOKS, min_size=1, max_size=5))
def test_applying_all_changes_yields_current_state(
    looks: list[dict[str, Any]],
) -> None:
    sent: dict[str, Any] = {}
    known: dict[str, Any] = {}
    for now in sorted(looks, key=lambda each: len(each["events"])):
        news = changes(sent, now)
        known, sent = applied(known, news), now
        assert known == {**now, "ranks": sorted(now["ranks"])}
        assert not changes(sent, now)
