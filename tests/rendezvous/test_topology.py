"""A node's place in the network, from its environment or from a site's file."""

import socket
from pathlib import Path

import pytest

from relight.base.errors import UsageError
from relight.rendezvous.topology import UNKNOWN, find

SLURM = {"SLURMD_NODENAME": "node7", "SLURM_TOPOLOGY_ADDR": "spine1.leaf3.node7"}


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"RELIGHT_TOPOLOGY": "rack2"}, "rack2"),
        ({**SLURM, "RELIGHT_TOPOLOGY": "rack2"}, "rack2"),
        ({**SLURM, "RELIGHT_TOPOLOGY": "."}, "spine1.leaf3"),  # values of labels that a pod lacks
        (SLURM, "spine1.leaf3"),
        ({"SLURM_TOPOLOGY_ADDR": "block2.node7"}, "block2"),
        ({"SLURMD_NODENAME": "n.site", "SLURM_TOPOLOGY_ADDR": "s1.n.site"}, "s1"),
        ({"SLURMD_NODENAME": "n", "SLURM_TOPOLOGY_ADDR": "s[0-3].s4.n"}, "s[0-3].s4"),
    ],
)
def test_network_place_of_a_node_is_its_switch_path(variables: dict[str, str], place: str) -> None:
    assert find(variables, "") == (place, [])


@pytest.mark.parametrize(
    "variables", [{}, {"SLURMD_NODENAME": "node7", "SLURM_TOPOLOGY_ADDR": "node7"}]
)
def test_unknown_network_place_causes_a_note(variables: dict[str, str]) -> None:
    """Without a topology plug-in, Slurm names only the node."""
    assert find(variables, "") == ("", [UNKNOWN])


def test_site_file_maps_hosts_to_network_places(tmp_path: Path) -> None:
    """Hosts are listed by Slurm's node name or by host name, with or without a domain."""
    file = tmp_path / "topology"
    file.write_text("# leaves\n\nnode[1-4] s1.l1\nnode[5-9],node12  s1.l2 # new\n")
    assert find(SLURM, str(file)) == ("s1.l2", [])
    host = socket.gethostname()
    assert find({}, str(file)) == (
        "",
        [f"--rank-order: {file} does not list {host}, so its ranks come last"],
    )
    file.write_text(f"{host.partition('.')[0]} s9\n")
    assert find({}, str(file)) == ("s9", [])


@pytest.mark.parametrize("line", ["node1", "node1 s1 l1", "node[1- s1"])
def test_error_shows_number_of_malformed_line_in_topology_file(tmp_path: Path, line: str) -> None:
    file = tmp_path / "topology"
    file.write_text(f"\n{line}\n")
    with pytest.raises(UsageError, match=r"line 2: .*expected HOSTS PLACE"):
        find(SLURM, str(file))


def test_error_shows_path_of_missing_topology_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"can't read {tmp_path}/x: No such file"):
        find(SLURM, f"{tmp_path}/x")


@pytest.mark.parametrize("place", ["spine 1", "s\n1", "s" * 256])
def test_malformed_network_place_is_rejected(place: str) -> None:
    with pytest.raises(UsageError, match=r"RELIGHT_TOPOLOGY=.*expected the names of the switches"):
        find({"RELIGHT_TOPOLOGY": place}, "")
