"""Differences between nodes: at most one sentence for each fact."""

import pytest

from relight.core.env_diff import compare


def known(**values: str) -> dict[str, dict[str, str]]:
    return {host.replace("_", "-"): {"torch": value} for host, value in values.items()}


@pytest.mark.parametrize(
    ("others", "value", "lines"),
    [
        ({}, "2.13.0", []),
        ({"gpu_01": "2.13.0"}, "2.13.0", []),
        (
            {"gpu_01": "2.13.0", "gpu_03": "2.13.0"},
            "2.12.0",
            ["torch differs between the nodes: 2.12.0 on gpu-02, 2.13.0 on gpu-01, gpu-03"],
        ),
        ({"gpu_01": "2.13.0", "gpu_03": "2.12.0"}, "2.13.0", []),
        (
            {"gpu_01": "2.13.0", "gpu_03": "2.12.0"},
            "2.9.0",
            [
                "torch differs between the nodes: 2.9.0 on gpu-02, 2.12.0 on gpu-03, "
                "2.13.0 on gpu-01"
            ],
        ),
        (
            {"gpu_02": "2.12.0"},
            "2.13.0",
            ["torch differs between the nodes: 2.12.0 on gpu-02, 2.13.0 on gpu-02"],
        ),
    ],
)
def test_differing_value_is_reported_only_when_first_seen(
    others: dict[str, str], value: str, lines: list[str]
) -> None:
    """The rarest value comes first."""
    assert compare(known(**others), "gpu-02", {"torch": value}) == lines


def test_fact_known_on_only_one_node_is_not_compared() -> None:
    assert compare({"a": {"torch": "1"}}, "b", {"Python": "3.11.2"}) == []
    assert compare({"a": {}}, "b", {"torch": "1"}) == []


def test_value_held_by_the_fewest_nodes_is_listed_first() -> None:
    """The value held by the fewest nodes is named first, whatever it is."""
    (line,) = compare(known(a="2.12.0", b="2.12.0"), "c", {"torch": "2.13.0"})
    assert line.endswith(": 2.13.0 on c, 2.12.0 on a, b")


def test_mismatch_names_four_hosts_and_counts_the_rest() -> None:
    """Hosts are sorted in natural order."""
    others = {f"node{i}": {"torch": "2.13.0"} for i in range(1, 16)}
    (line,) = compare(others, "bad", {"torch": "2.12.0"})
    assert line.endswith("2.12.0 on bad, 2.13.0 on node1, node2, node3 and 12 more")
    (line,) = compare({h: others[h] for h in list(others)[:4]}, "bad", {"torch": "2.12.0"})
    assert line.endswith("on node1, node2, node3, node4")


def test_mismatch_lists_at_most_four_values() -> None:
    others = {f"node{i}": {"arguments": f"--rank {i}"} for i in range(9)}
    (line,) = compare(others, "node9", {"arguments": "--rank 9"})
    assert line.startswith("the script's arguments differ between the nodes: --rank 0 on node0, ")
    assert line.endswith("--rank 3 on node3, 6 other values elsewhere")


def test_mismatch_of_long_values_shows_first_difference() -> None:
    """Long values are shown from the first difference on."""
    start = "--data /mnt/a/long/path --model transformer-with-a-long-name --epochs 3"
    (line,) = compare(
        {"a": {"arguments": f"{start} --lr 0.1"}},
        "b",
        {"arguments": f"{start} --lr 0.2 {'x' * 99}"},
    )
    assert "… 0.1 on a" in line
    assert "… 0.2 xxx" in line
    assert len(line) < 200
    (line,) = compare({"a": {"arguments": start}}, "b", {"arguments": f"{start} --resume"})
    assert line.endswith("nothing more on a, … --resume on b")


def test_each_differing_fact_is_reported_on_its_own_line() -> None:
    """Two differing facts take two lines, with no line break inside either."""
    lines = compare(
        {"a": {"script": "0f", "--nnodes": "2", "relight": "1"}},
        "b",
        {"relight": "1", "script": "1e", "--nnodes": "3"},
    )
    assert lines == [
        "the script's content differs between the nodes: 0f on a, 1e on b",
        "--nnodes differs between the nodes: 2 on a, 3 on b",
    ]
