"""Interprets the probes between all pairs of nodes to find out which pairs can't reach each other,
and why.

Each pair is probed from both sides. If TCP connections fail in only one direction, a firewall is
blocking them. If both directions fail, datagrams show whether packets get through at all, and in
which direction:

    a -> b    b -> a    received datagrams     finding
    ok        ok                               none, or MTU if large segments get stuck
    silent    ok                               b accepts no connections
    silent    silent    both                   TCP is blocked
    silent    silent    only a                 packets from a do not reach b (one-way)
    silent    silent    neither                nothing passes
    refused                                    a device rejects, or the address is another machine's
    no route  silent                           no route from a to b
    mute                                       a device in between accepts the connection
"""

from collections.abc import Iterator, Mapping, Sequence

from relight.core import env_diff
from relight.core.env_diff import by_value, format_hosts
from relight.health.doctor_messages import DoctorNode, Probe, ProbeResult
from relight.health.finding import ERROR, WARNING, Finding, format_pairs

CLOCKS_S = 1.0
"""If clocks differ by more than this, log lines from two nodes can't be put in order."""

Probes = Mapping[tuple[int, int], Probe]
"""Probes, keyed by the numbers of two nodes: the prober and its target."""


def judge(
    nodes: Sequence[DoctorNode], probes: Probes, *, port: int, missing: Sequence[int] = ()
) -> list[Finding]:
    """Return the findings about the network between the nodes.

    Args:
        nodes: all nodes that joined; the first one hosts the endpoint.
        probes: the results of their probes.
        port: the endpoint's port.
        missing: nodes that joined but sent no report.
    """
    return [
        *_connections(nodes, probes, port, missing),
        *_missing_reports(nodes, missing),
        *_datagrams(nodes, probes, port),
        *_mtus(nodes),
        *_address_translation(nodes),
        *_endpoint_names(nodes),
        *_versions(nodes),
        *_clocks(nodes),
    ]


def classify(there: Probe, back: Probe) -> str:
    """Return the problem that the probes from a to b reveal, as a key of `_KINDS`. Return an empty
    string if the probes passed, or if the problem is reported for the other direction.
    """
    if there.tcp == ProbeResult.PASSED:
        return "mtu" if there.large == ProbeResult.STUCK else ""
    if there.tcp != ProbeResult.SILENT:
        return there.tcp
    if back.tcp == ProbeResult.PASSED:
        return "closed"
    if back.tcp == ProbeResult.NO_ROUTE:
        return ""  # b can't reply to a; reported for the other direction
    a_hears = bool(there.heard or there.answered or back.answered)
    b_hears = bool(back.heard or back.answered or there.answered)
    if a_hears and b_hears:
        return "blocked"
    if a_hears:
        return "one way"
    if b_hears and back.tcp == ProbeResult.SILENT:
        return ""  # reported for the other direction
    return "nothing"


_ROUTES = "check the firewalls on both hosts and the routes between them (ip route get ADDRESS)"
_PORTS = (
    "open TCP ports {low}-{high} between the nodes (net.ipv4.ip_local_port_range), or all ports: "
    "gloo and NCCL use them; --master-port with the static rendezvous only sets the port of the "
    "workers' store"
)
_KINDS: dict[str, tuple[str, str, str]] = {
    "closed": (
        "connections to free ports get no response, but work in the other direction",
        "a firewall on the target host drops them, although the endpoint's port {port} is open",
        _PORTS,
    ),
    "blocked": (
        "TCP connections to free ports get no response, but datagrams do",
        "a firewall drops them, although the endpoint's port {port} is open",
        _PORTS,
    ),
    "one way": (
        "no packets get through in this direction, but they do in the other",
        "a route back is missing, or a firewall drops all packets from there",
        _ROUTES,
    ),
    "nothing": (
        "neither connections to free ports nor datagrams get through",
        "a firewall drops them, or there is no route; both nodes can reach the endpoint's port "
        "{port}",
        _PORTS,
    ),
    ProbeResult.REFUSED: (
        "connections are refused on a port on which the other node listens",
        "a firewall rejects them, or another machine has the same address",
        _PORTS + "; compare the output of `ip addr` and `ip neigh` on both hosts",
    ),
    ProbeResult.NO_ROUTE: (
        "there is no route",
        "the network reports that the host is unreachable",
        _ROUTES + "; use --local-addr to choose the address at which others connect",
    ),
    ProbeResult.MUTE: (
        "connections are accepted, but not by the other node",
        "there is a proxy, a load balancer or a port mapping between them",
        "make the nodes reachable directly (for containers, use the host network)",
    ),
    "mtu": (
        "small packets get through, but large ones are lost",
        "the network's maximum packet size (MTU) is smaller than that of the interfaces{sizes}",
        "set the interfaces' MTU to that of the network{command}, or let ICMP 'fragmentation "
        "needed' messages through, or set sysctl net.ipv4.tcp_mtu_probing=1",
    ),
}


def _connections(
    nodes: Sequence[DoctorNode], probes: Probes, port: int, missing: Sequence[int]
) -> Iterator[Finding]:
    by_kind: dict[str, list[tuple[int, int]]] = {}
    for (a, b), there in probes.items():
        if not there.tcp or a == b:
            continue
        back = probes.get((b, a))
        if back is None or b in missing:
            back = Probe()
        kind = classify(there, back)
        if kind:
            by_kind.setdefault(kind, []).append((a, b))
    low, high = _port_range(nodes)
    for kind, (what, why, remedy) in _KINDS.items():
        if kind not in by_kind:
            continue
        values = {"port": port, "low": low, "high": high, "sizes": "", "command": ""}
        if kind == "mtu":
            values.update(_packet_sizes(by_kind[kind], probes))
        pairs = [(nodes[a].name, nodes[b].name) for a, b in by_kind[kind]]
        where = format_pairs(pairs, [node.name for node in nodes])
        yield Finding(ERROR, what, where, why.format(**values), remedy.format(**values))


def _packet_sizes(pairs: Sequence[tuple[int, int]], probes: Probes) -> dict[str, str]:
    """Return the parts of a finding that say which packet size gets through and how to configure
    it.
    """
    mtus = [probes[pair].mtu for pair in pairs if probes[pair].mtu]
    least = min((probes[pair].answered for pair in pairs), default=0)
    if not mtus or not least:
        return {"sizes": "", "command": ""}
    return {
        "sizes": f": {least} bytes get through, but the interface sends {max(mtus)}",
        "command": f" (ip link set dev INTERFACE mtu {least})",
    }


def _port_range(nodes: Sequence[DoctorNode]) -> tuple[str, str]:
    text = nodes[0].facts.get("port range", "") if nodes else ""
    low, _, high = text.partition("-")
    return (low, high) if low and high else ("32768", "60999")


def _missing_reports(nodes: Sequence[DoctorNode], missing: Sequence[int]) -> Iterator[Finding]:
    if missing:
        yield Finding(
            ERROR,
            "reached the endpoint, but sent no report",
            format_hosts(nodes[number].name for number in missing),
            "its process or its connection ended",
            "check the output of `relight doctor` there",
        )


def _datagrams(nodes: Sequence[DoctorNode], probes: Probes, port: int) -> Iterator[Finding]:
    """Check whether datagrams, which carry the heartbeats, reach the endpoint."""
    if nodes and nodes[0].udp_taken:
        yield Finding(
            WARNING,
            f"UDP port {port} is in use by another program",
            nodes[0].name,
            "heartbeats then use TCP only and may be delayed by packet loss",
            "stop that program (ss -ulpn shows it), or use another port for the endpoint",
        )
        return
    lost = [
        (nodes[a].name, nodes[b].name)
        for (a, b), probe in probes.items()
        if b == 0 and a and probe.tcp == ProbeResult.PASSED and not probe.answered
    ]
    if lost:
        yield Finding(
            WARNING,
            f"datagrams to the endpoint's UDP port {port} are lost",
            format_pairs(lost, [node.name for node in nodes]),
            "heartbeats then use TCP only and may be delayed by packet loss",
            f"open UDP port {port} too",
        )


def _mtus(nodes: Sequence[DoctorNode]) -> Iterator[Finding]:
    by_mtu = by_value((node.mtu, node.name) for node in nodes if node.mtu)
    if len(by_mtu) > 1:
        values = ", ".join(f"{mtu} on {format_hosts(by_mtu[mtu])}" for mtu in sorted(by_mtu))
        yield Finding(
            WARNING,
            f"the MTU differs between the nodes: {values}",
            "",
            "TCP uses the smaller one; RDMA and datagrams may fail",
            "set the same MTU on all nodes",
        )


def _address_translation(nodes: Sequence[DoctorNode]) -> Iterator[Finding]:
    for node in nodes:
        if node.seen_as and node.seen_as != node.address:
            yield Finding(
                WARNING,
                f"its address is {node.address}, but others see it as {node.seen_as}",
                node.name,
                "because of address translation, workers on other nodes can't connect to it",
                "use the host network for containers, or --local-addr if the node is reachable at "
                "another address",
            )


def _endpoint_names(nodes: Sequence[DoctorNode]) -> Iterator[Finding]:
    """Check whether the endpoint's name resolves to a different machine on some nodes."""
    found = by_value(
        (", ".join(sorted(node.resolved)), node.name) for node in nodes if node.resolved
    )
    if len(found) > 1:
        values = "; ".join(f"{text} on {format_hosts(found[text])}" for text in sorted(found))
        yield Finding(
            WARNING,
            f"the endpoint's name resolves to different addresses: {values}",
            "",
            "nodes may look for the coordinator on different machines",
            "make DNS and /etc/hosts consistent, or use an IP address in --rdzv-endpoint",
        )


def _versions(nodes: Sequence[DoctorNode]) -> Iterator[Finding]:
    known = {node.name: node.facts for node in nodes}
    for fact in sorted({name for node in nodes for name in node.facts}):
        if fact == "port range":
            continue
        hosts = by_value((facts[fact], name) for name, facts in known.items() if fact in facts)
        if len(hosts) < 2:
            continue
        rarest = min(hosts, key=lambda value: (len(hosts[value]), value))
        others = {
            name: {fact: value} for value in hosts if value != rarest for name in hosts[value]
        }
        lines = env_diff.compare(others, format_hosts(hosts[rarest]), {fact: rarest})
        remedy = _REMEDIES.get(fact, f"install the same {fact} on all nodes")
        for line in lines:
            yield Finding(WARNING, line, "", "", remedy)


_REMEDIES = {
    "script": "copy the same script to all nodes, or keep it on shared storage",
    "arguments": "pass the same arguments to the script on all nodes",
    "GPUs": "check CUDA_VISIBLE_DEVICES and nvidia-smi on the nodes with fewer GPUs",
}


def _clocks(nodes: Sequence[DoctorNode]) -> Iterator[Finding]:
    known = sorted(
        (node.clock_s, number) for number, node in enumerate(nodes) if node.clock_s is not None
    )
    if len(known) < 2:
        return
    middle_s, middle = known[(len(known) - 1) // 2]
    for clock_s, number in known:
        ahead = clock_s - middle_s
        error_s = nodes[number].clock_error_s + nodes[middle].clock_error_s
        if abs(ahead) - error_s > CLOCKS_S:
            word = "ahead of" if ahead > 0 else "behind"
            yield Finding(
                WARNING,
                f"the clock is {abs(ahead):.1f} s {word} that of {nodes[middle].name}",
                nodes[number].name,
                "the nodes' log lines can't be ordered by time; relight itself does not depend on "
                "clocks",
                "synchronize the clock with chrony, ntpd or systemd-timesyncd (timedatectl)",
            )
