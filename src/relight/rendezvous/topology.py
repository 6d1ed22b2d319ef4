"""Finds this node's place in the network, for `--rank-order=topology`.

The place is the path of switches above the node, starting at the top, such as `spine1.leaf3`. It
is read from the first of these sources that specifies it:

RELIGHT_TOPOLOGY       the place
--rank-order=…=FILE    lines of `HOSTS PLACE`; hosts as in Slurm's lists, # begins a comment
SLURM_TOPOLOGY_ADDR    the place and the node's name: `spine1.leaf3.node7` with topology/tree,
                       `block2.node7` with topology/block (24.11), `node7` without a plug-in
                       (srun(1); `topology_p_get_node_addr` in its plug-ins)

A GPU's NVLink domain is not included, because only the driver knows it and relight doesn't open
GPUs.
"""

import socket
from collections.abc import Mapping

from relight.base import hostlist
from relight.base.errors import UsageError
from relight.base.fields import MAX_NAME

TOPOLOGY = "RELIGHT_TOPOLOGY"
UNKNOWN = (
    f"--rank-order=topology: this node's place in the network is unknown (neither {TOPOLOGY} nor "
    "SLURM_TOPOLOGY_ADDR names a switch), so its ranks come last"
)
_EXAMPLE = "spine1.leaf3"


def find(variables: Mapping[str, str], file: str) -> tuple[str, list[str]]:
    """Return this node's place (an empty string if it is unknown) and notes for the user.

    Args:
        variables: the environment.
        file: the user's file, or empty.

    Raises:
        UsageError: if the file can't be read or a place is invalid.
    """
    place = variables.get(TOPOLOGY, "").rstrip(".")  # an unnamed domain leaves a trailing dot
    if place:
        return _checked(place, TOPOLOGY), []
    if file:
        names = [variables.get("RELIGHT_NODE_NAME"), variables.get("SLURMD_NODENAME")]
        host = socket.gethostname()
        place = _from_file(file, {*filter(None, names), host, host.partition(".")[0]})
        note = f"--rank-order: {file} does not list {host}, so its ranks come last"
        return place, [] if place else [note]
    address, node = variables.get("SLURM_TOPOLOGY_ADDR", ""), variables.get("SLURMD_NODENAME", "")
    place = (address.removesuffix(node) if node else address.rpartition(".")[0]).rstrip(".")
    return place, [] if place else [UNKNOWN]


def _from_file(path: str, names: set[str]) -> str:
    """Return the place in the first line that lists one of these names, or an empty string."""
    try:
        with open(path) as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a text"
        raise UsageError(f"--rank-order: can't read {path}: {why}") from None
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        try:
            hosts = hostlist.expand(words[0]) if words else []
        except ValueError:
            words = []
        if len(words) != 2 and line.partition("#")[0].strip():
            raise UsageError(
                f"--rank-order: {path}, line {number}: {line.strip()[:80]!r}: expected HOSTS PLACE",
                hint=f"such as node[1-16] {_EXAMPLE}",
            )
        if not names.isdisjoint(hosts):
            return _checked(words[1], f"--rank-order: {path}, line {number}")
    return ""


def _checked(place: str, source: str) -> str:
    if len(place) > MAX_NAME or not place.isprintable() or " " in place:
        raise UsageError(
            f"{source}={place[:80]!r}: expected the names of the switches, from the top down",
            hint=f"such as {_EXAMPLE}, at most {MAX_NAME} characters",
        )
    return place
