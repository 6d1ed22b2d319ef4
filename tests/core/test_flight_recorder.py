"""What dumps from torch's flight recorder reveal about ranks that wait for each other."""

from typing import Any

import pytest
from plays import record

from relight.base.fields import Malformed
from relight.core.diagnosis import failure_text, flight_recorder_text, hang_text
from relight.core.diagnosis.excerpts import count_rows
from relight.core.failure import Collective, Failure, WorkerState


def entry(number: int, name: str = "all_reduce", group: str = "0", **others: Any) -> dict[str, Any]:
    """Return an entry as written by `_dump_fr_trace` in torch 2.13, without the fields that are
    never read.
    """
    pair = ("0", "default_pg") if group == "0" else (group, "undefined")
    return {
        "process_group": pair, "collective_seq_id": number, "profiling_name": f"gloo:{name}",
        "input_sizes": [[4, 2]], "state": "scheduled", "retired": False, "is_p2p": False,
        "frames": [{"name": name, "filename": "train.py", "line": 3}], **others,
    }  # fmt: skip


def dump(*entries: object) -> dict[str, Any]:
    return {"version": "2.10", "pg_config": {}, "entries": list(entries)}


def failure(rank: int, *entries: object) -> Failure:
    found = flight_recorder_text.last_collectives(dump(*entries))
    return record(rank)._replace(collectives=found)


def rows(*known: Failure) -> list[str]:
    return [row.strip() for row in flight_recorder_text.lines(known)[1:]]


def test_flight_recorder_shows_last_collective_of_each_group() -> None:
    found = flight_recorder_text.last_collectives(
        dump(
            entry(1, retired=True),
            entry(2, "broadcast"),
            entry(9, "send", is_p2p=True),
            entry(1, group="1", state="completed"),
        )
    )
    assert found == (
        Collective("default_pg", 2, "broadcast", "[4, 2]", is_done=False),
        Collective("group 1", 1, "all_reduce", "[4, 2]", is_done=True),
    )


@pytest.mark.parametrize(
    "text",
    [None, [], {}, {"entries": 3}, dump(3), dump({}), dump(entry(1, input_sizes="4"))],
)
def test_malformed_flight_recorder_dump_is_rejected(text: object) -> None:
    with pytest.raises(Malformed):
        flight_recorder_text.last_collectives(text)


def test_flight_recorder_names_rank_that_has_not_entered_the_collective() -> None:
    done = entry(41, "broadcast", retired=True)
    assert rows(failure(0, entry(42)), failure(1, entry(42)), failure(2, done)) == [
        "ranks 0-1 are in all_reduce, number 42 of default_pg, sizes [4, 2]",
        "rank 2 has not entered number 42; the last was 41, broadcast, sizes [4, 2]",
    ]


def test_flight_recorder_distinguishes_ranks_in_different_collectives() -> None:
    other = entry(7, "broadcast", input_sizes=[[1]])
    assert rows(failure(0, entry(7)), failure(1, other)) == [
        "rank 0 is in all_reduce, number 7 of default_pg, sizes [4, 2]",
        "rank 1 is in broadcast, number 7 of default_pg, sizes [1]",
    ]


def test_flight_recorder_names_rank_that_entered_no_collective() -> None:
    assert rows(failure(0, entry(1)), failure(1)) == [
        "rank 0 is in all_reduce, number 1 of default_pg, sizes [4, 2]",
        "rank 1 has entered none",
    ]


def test_uninformative_flight_recorder_dumps_are_omitted() -> None:
    done = entry(3, retired=True)
    assert rows(failure(0, done), failure(1, done)) == []
    assert rows(failure(0, entry(3)), record(1)) == [], "nothing is known of rank 1"


def test_flight_recorder_report_on_many_groups_is_short() -> None:
    first = [entry(1, group=str(each)) for each in range(1, 9)]
    second = [entry(2, group=str(each)) for each in range(1, 9)]
    found = flight_recorder_text.lines([failure(0, *first), failure(1, *second)])
    assert len(found) == 7
    assert found[-1] == "  … and 11 more lines"


def test_hang_report_includes_flight_recorder_findings() -> None:
    doing = WorkerState(" in read (train.py:3)", ("line",) * 40, expects_peers=False)
    known = [failure(0, entry(1))._replace(doing=doing), failure(1)._replace(doing=doing)]
    hang = hang_text.diagnose(known, "no rank has made progress for 5 min")
    assert hang is not None
    text = hang.render(formed_at=0.0, ended="12:00", verdict="no restarts")
    assert "  rank 1 has entered none" in text
    assert len(text) <= 25


def test_only_timeout_reports_include_flight_recorder_findings() -> None:
    lines = ("RuntimeError: Timed out waiting 1000ms for recv operation to complete",)
    known = [failure(0, entry(1))._replace(last_lines=lines), failure(1)._replace(stop_signal=15)]
    text = failure_text.diagnose(known).render(formed_at=0.0, ended="12:00", verdict="no restarts")
    assert "  rank 1 has entered none" in text
    known[0] = known[0]._replace(last_lines=("ValueError: bad",))
    text = failure_text.diagnose(known).render(formed_at=0.0, ended="12:00", verdict="no restarts")
    assert "torch's flight recorder:" not in text


@pytest.mark.parametrize("size", [1, 10, 40])
def test_timeout_report_with_flight_recorder_findings_fits_25_rows(size: int) -> None:
    lines = ("RuntimeError: Timed out waiting 1000ms for recv operation to complete" * size,) * 9
    groups = [[entry(each, group=str(group)) for group in range(8)] for each in range(1, 6)]
    known = [
        failure(rank, *entries)._replace(
            last_lines=lines,
            log="/logs" * size,
            evidence="full disk" * size,
            stop_signal=15 * (rank > 0),
        )
        for rank, entries in enumerate(groups)
    ]
    text = failure_text.diagnose(known).render(formed_at=0.0, ended="12:00", verdict="no restarts")
    assert count_rows(["relight: " + text[0], *text[1:]]) <= 25
