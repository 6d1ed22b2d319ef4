"""Turning all pairs' probe results into findings."""

import json

import pytest
from fuzzing import Chance, fuzzed
from hypothesis import given
from hypothesis import strategies as st

from relight.base import fields
from relight.core.link import wire
from relight.doctor.network import classify, judge
from relight.health.doctor_messages import (
    DoctorNode,
    FromHost,
    Probe,
    ProbeReport,
    ProbeResult,
    Verdict,
)
from relight.health.finding import ERROR, WARNING, Finding, format_finding, format_pairs, in_order

GOOD = Probe(ProbeResult.PASSED, ProbeResult.PASSED, 1500, 1500, 1500)
DEAD = Probe(ProbeResult.SILENT, ProbeResult.UNTRIED, 0, 0, 1500)


def node(name: str, **changed: object) -> DoctorNode:
    facts = {"relight": "1.0", "torch": "2.13.0"}
    usual = DoctorNode(name, "10.0.0.1", 4000, 4001, 1500, (), facts, clock_s=0.0)
    return usual._replace(**changed)


def nodes(count: int) -> list[DoctorNode]:
    return [node(f"node{number}") for number in range(1, count + 1)]


def all_good(count: int) -> dict[tuple[int, int], Probe]:
    return {(a, b): GOOD for a in range(count) for b in range(count) if a != b}


@pytest.mark.parametrize(
    ("there", "back", "kind"),
    [
        (GOOD, GOOD, ""),
        (GOOD, DEAD, ""),
        (DEAD, GOOD, "closed"),
        (DEAD, DEAD, "nothing"),
        (DEAD, Probe(), "nothing"),
        (DEAD._replace(heard=100), DEAD._replace(heard=100), "blocked"),
        (DEAD._replace(answered=100), DEAD, "blocked"),
        (DEAD._replace(heard=100), DEAD, "one way"),
        (DEAD, DEAD._replace(heard=100), ""),
        (DEAD, DEAD._replace(tcp=ProbeResult.NO_ROUTE), ""),
        (DEAD._replace(tcp=ProbeResult.NO_ROUTE), DEAD, ProbeResult.NO_ROUTE),
        (DEAD._replace(tcp=ProbeResult.REFUSED), GOOD, ProbeResult.REFUSED),
        (DEAD._replace(tcp=ProbeResult.MUTE), GOOD, ProbeResult.MUTE),
        (GOOD._replace(large=ProbeResult.STUCK), GOOD, "mtu"),
        (GOOD._replace(answered=0), GOOD, ""),
    ],
)
def test_probe_results_in_both_directions_map_to_fault_types(
    there: Probe, back: Probe, kind: str
) -> None:
    """The rows are those of the table in the module's docstring, with both directions together."""
    assert classify(there, back) == kind


def test_successful_probes_and_identical_facts_yield_no_findings() -> None:
    assert judge(nodes(3), all_good(3), port=29400) == []


probe = st.builds(
    Probe,
    st.sampled_from(
        [
            ProbeResult.PASSED,
            ProbeResult.SILENT,
            ProbeResult.REFUSED,
            ProbeResult.NO_ROUTE,
            ProbeResult.MUTE,
        ]
    ),
    st.sampled_from([ProbeResult.UNTRIED, ProbeResult.PASSED, ProbeResult.STUCK]),
    st.sampled_from([0, 100, 1500]),
    st.sampled_from([0, 100, 1500]),
    st.just(1500),
)


@given(st.data(), st.integers(2, 5))
def test_findings_name_exactly_the_node_pairs_that_failed(data: st.DataObject, count: int) -> None:
    """The findings are exact for any probe results."""
    probes = {pair: data.draw(probe) for pair in all_good(count)}
    wrong = {
        p
        for p, found in probes.items()
        if found.tcp != ProbeResult.PASSED or found.large == ProbeResult.STUCK
    }
    told = {
        (a, b)
        for (a, b) in probes
        if classify(probes[a, b], probes[b, a]) or classify(probes[b, a], probes[a, b])
    }
    assert wrong <= told
    assert {frozenset(pair) for pair in told} == {frozenset(pair) for pair in wrong}
    found = judge(nodes(count), probes, port=29400)
    assert bool(wrong) == any(finding.level == ERROR for finding in found)
    assert all(finding.remedy and "{" not in finding.remedy + finding.why for finding in found)


@given(st.sets(st.tuples(st.integers(1, 4), st.integers(1, 4)).filter(lambda p: p[0] != p[1])))
def test_summary_of_failed_pairs_is_unambiguous(pairs: set[tuple[int, int]]) -> None:
    """`all others` means exactly that."""
    hosts = ["h1", "h2", "h3", "h4"]
    text = format_pairs({(f"h{a}", f"h{b}") for a, b in pairs}, hosts)
    read = set()
    if text == "all nodes, in both directions":
        read = {(a, b) for a in hosts for b in hosts if a != b}
    else:
        for part in filter(None, text.split("; ")):
            if part.endswith(" more like this"):
                assert read < {(f"h{a}", f"h{b}") for a, b in pairs}
                return
            source, _, target = part.partition(" -> ")
            sources = [h for h in hosts if h != target] if source == "all others" else [source]
            targets = (
                [h for h in hosts if h != source] if target == "all others" else target.split(", ")
            )
            read |= {(a, b) for a in sources for b in targets}
    assert read == {(f"h{a}", f"h{b}") for a, b in pairs}


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({"clock_s": 61.0}, WARNING, "the clock is 61.0 s ahead of that of node2"),
        ({"clock_s": -61.0}, WARNING, "the clock is 61.0 s behind that of node1"),
        ({"mtu": 9000}, WARNING, "the MTU differs between the nodes: 1500 on node1, node2; 9000"),
        (
            {"seen_as": "10.9.9.9"},
            WARNING,
            "its address is 10.0.0.1, but others see it as 10.9.9.9",
        ),
        ({"facts": {"torch": "2.1.0"}}, WARNING, "torch differs between the nodes: 2.1.0 on node3"),
        ({"facts": {"GPUs": "7"}}, None, ""),
        ({"clock_s": 0.9}, None, ""),
        ({"clock_s": 5.0, "clock_error_s": 4.5}, None, ""),
        ({"clock_s": None}, None, ""),
        ({"facts": {"port range": "1-2"}}, None, ""),
    ],
)
def test_differing_node_is_reported_with_its_host_name(
    changes: dict[str, object], level: str | None, words: str
) -> None:
    """Unknown values, and differences that may be chance, are ignored."""
    differing = [*nodes(2), node("node3", **changes)]
    found = judge(differing, all_good(3), port=29400)
    assert [f.level for f in found] == ([level] if level else [])
    assert all(words.split("; ")[0] in f.what for f in found), found


def test_endpoint_that_resolves_to_another_address_is_reported() -> None:
    """The endpoint's own host may see a different address."""
    differing = [node("a"), node("b", resolved=("1.1.1.1",)), node("c", resolved=("2.2.2.2",))]
    found = judge(differing, all_good(3), port=29400)
    assert [f.what for f in found] == [
        "the endpoint's name resolves to different addresses: 1.1.1.1 on b; 2.2.2.2 on c"
    ]


def test_finding_about_two_versions_names_both_groups_of_hosts() -> None:
    """The smaller group comes first."""
    differing = [node(f"n{i}", facts={"torch": "2.1" if i < 2 else "2.2"}) for i in range(6)]
    (found,) = judge(differing, all_good(6), port=29400)
    assert "2.1 on n0, n1, 2.2 on n2, n3, n4, n5" in found.what
    assert found.remedy == "install the same torch on all nodes"


def test_lost_datagrams_cause_a_warning_only_where_heartbeats_use_them() -> None:
    probes = {**all_good(3), (1, 0): GOOD._replace(answered=0), (1, 2): GOOD._replace(answered=0)}
    (found,) = judge(nodes(3), probes, port=29400)
    assert (found.level, found.where) == (WARNING, "node2 -> node1")
    assert "UDP port 29400" in found.remedy


def test_node_that_sent_no_report_is_named() -> None:
    """The other nodes' findings about it are kept."""
    probes = {pair: p for pair, p in all_good(3).items() if pair[0] != 2}
    probes[0, 2] = DEAD
    found = judge(nodes(3), probes, port=29400, missing=[2])
    assert [(f.level, f.where) for f in found] == [(ERROR, "node1 -> node3"), (ERROR, "node3")]


@fuzzed
def test_hostile_node_reports_yield_a_valid_verdict(chance: Chance) -> None:
    """All nodes accept the verdict, and it is safe to print."""
    came = [chance.valid(DoctorNode) for _ in range(chance.randint(2, 4))]
    report = [tried for node in came for tried in chance.valid(ProbeReport).probes]
    tried = {(chance.randrange(len(came)), target % len(came)): probe for target, probe in report}
    found = judge(came, tried, port=29400, missing=chance.sample([0, 1], chance.randrange(3)))
    verdict = Verdict(tuple(found), tuple(node.name for node in came), 1.0).bounded()
    taken = fields.message(FromHost, json.loads(json.dumps(fields.to_json(verdict))))
    lines = [line for finding in taken.findings for line in format_finding(finding)]
    assert all(line.replace("\t", "").isprintable() for line in lines)
    assert [each.level for each in taken.findings] == [each.level for each in in_order(found)]


def test_oversized_doctor_verdict_is_shortened_but_keeps_errors() -> None:
    """The other nodes accept the message."""
    many = [Finding(WARNING, *["🎈" * 9999] * 4)] * 2000 + [Finding(ERROR, "worst", "")]
    told = Verdict(tuple(many), ("node",)).bounded()
    (heard,) = wire.Decoder(wire.MAX_FRAME).feed(wire.GREETING + wire.encode(fields.to_json(told)))
    assert fields.message(FromHost, heard) == told
    assert told.findings[0].what == "worst"
