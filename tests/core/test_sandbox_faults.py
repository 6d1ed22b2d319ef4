"""Fault files: meaning, rejected contents, and when each fault is due."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.base.errors import UsageError
from relight.sandbox.faults import ALL, HOST, RANK, Fault, Moment, Plan, read

GOOD = [
    ("at 5s kill host 2", Fault(1, Moment("at", 5.0), "kill", HOST, 2)),
    ("at 1.5m   kill rank 3", Fault(1, Moment("at", 90.0), "kill", RANK, 3)),
    ("at 0s freeze host2  # it hangs", Fault(1, Moment("at", 0.0), "freeze", HOST, 2)),
    ("at 1h continue rank 0", Fault(1, Moment("at", 3600.0), "continue", RANK, 0)),
    ('when "step 10" cut host 1', Fault(1, Moment("when", text="step 10"), "cut", HOST, 1)),
    ("when 'a # \"b\"' heal", Fault(1, Moment("when", text='a # "b"'), "heal", ALL)),
    ("when done start host 3", Fault(1, Moment("when", text="done"), "start", HOST, 3)),
    ("at 200ms delay 50ms", Fault(1, Moment("at", 0.2), "delay", ALL, 0, 0.05)),
    ("at 2s loss 12.5% host 3", Fault(1, Moment("at", 2.0), "loss", HOST, 3, 0.125)),
]

WRONG = [
    ("at 5s kil host 2", "unknown action: 'kil'", "did you mean kill?"),
    ("at 5s suspend host 2", "unknown action: 'suspend'", "did you mean freeze?"),
    ("wen x heal", "unknown moment: 'wen'", "did you mean when?"),
    ("kill host 2", "unknown moment: 'kill'", "moments: at, after, when"),
    ("at 5 kill host 2", "'5' is not a time", "a number with its unit"),
    ("at", "nothing follows at", "at 5s"),
    ("at 5s", "the action is missing", "actions: kill, start"),
    ("at 5s kill", "the host or rank is missing", "kill host 2"),
    ("at 5s kill hots 2", "expected host or rank, not 'hots'", "did you mean host?"),
    ("at 5s kill host", "the number of the host is missing", "kill host 2"),
    ("at 5s kill host two", "'two' is not a number", "kill host 2"),
    ("at 5s kill host 0", "no host 0", "hosts are 1 to 3"),
    ("at 5s kill host 4", "no host 4", "hosts are 1 to 3"),
    ("at 5s kill rank 6", "no rank 6", "ranks are 0 to 5"),
    ("at 5s cut rank 1", "expected host, not 'rank'", "cut host 2"),
    ("at 5s kill host 2 now", "unexpected 'now'", "kill host 2"),
    ("at 5s loss 101% host 2", "'101%' is not a percentage", "from 0% to 100%"),
    ("at 5s delay host 2", "'host' is not a time", "50ms"),
    ("at 5s delay 61s", "61s is too long", "at most 60s"),
    ("after 5s heal", "`after` on the first line", "`at` for times since the start"),
    ('when "" heal', "the text is empty", 'when "step 10"'),
    ('when "step heal', "unclosed quote", ""),
]


@pytest.mark.parametrize(("line", "fault"), GOOD, ids=[line for line, _ in GOOD])
def test_fault_file_line_parses_to_a_fault(line: str, fault: Fault) -> None:
    assert read(line, "f", hosts=3, ranks=6) == [fault]


@pytest.mark.parametrize(("line", "what", "hint"), WRONG, ids=[line for line, *_ in WRONG])
def test_invalid_fault_file_line_is_rejected_with_location_and_hint(
    line: str, what: str, hint: str
) -> None:
    with pytest.raises(UsageError) as raised:
        read(f"# three hosts\n\n{line}", "f.txt", hosts=3, ranks=6)
    assert raised.value.message.startswith(f"f.txt:3: {line}")
    assert what in raised.value.message
    assert hint in raised.value.hint


@given(st.text())
def test_arbitrary_fault_file_text_parses_or_is_rejected(text: str) -> None:
    try:
        faults = read(text, "f", hosts=3)
    except UsageError:
        return
    for fault in faults:  # a fault's text parses to the same fault
        again = read(f"at 0s {fault}", "f", hosts=3)[0]
        assert again[2:5] == fault[2:5]


def names(faults: list[Fault]) -> list[str]:
    return [fault.action for fault in faults]


def test_faults_fire_in_chronological_order() -> None:
    plan = Plan(read("at 5s heal\nat 2s cut host 1\nat 2s delay 1s", "f", hosts=1))
    assert (plan.deadline(), plan.due(1.9)) == (2.0, [])
    assert names(plan.due(6.0)) == ["cut", "delay", "heal"]
    assert (plan.deadline(), plan.due(9.0), plan.left()) == (None, [], [])


def test_time_given_with_after_counts_from_the_previous_fault() -> None:
    text = 'when "step 3" cut host 1\nafter 2s heal\nafter 1s kill host 1'
    plan = Plan(read(text, "f", hosts=1))
    assert plan.deadline() is None and plan.watches
    assert plan.printed("step 2", 4.0) == []
    assert names(plan.printed("rank 0: step 3 of 9", 10.0)) == ["cut"]
    assert plan.printed("step 3", 10.5) == [] and not plan.watches
    assert plan.deadline() == 12.0
    assert names(plan.due(12.5)) == ["heal"]
    assert plan.deadline() == 13.0
    assert names(plan.left()) == ["kill"]


@given(st.lists(st.tuples(st.sampled_from(["at", "after"]), st.integers(0, 9)), max_size=6))
def test_every_timed_fault_is_due_exactly_once(moments: list[tuple[str, int]]) -> None:
    lines = [f"{word if number else 'at'} {seconds}s heal"
             for number, (word, seconds) in enumerate(moments)]  # fmt: skip
    plan, found = Plan(read("\n".join(lines), "f", hosts=1)), []
    for now in range(100):
        found += plan.due(now)
    assert sorted(found) == sorted(read("\n".join(lines), "f", hosts=1))
