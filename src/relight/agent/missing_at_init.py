"""Finds the workers on this node that other workers are waiting for in init_process_group.

A worker that has reached init_process_group is connected to the store. proc(5) shows which process
a connection belongs to: /proc/<pid>/net/tcp{,6} lists the sockets connected to the store's port,
and /proc/<pid>/fd lists the inodes of the process's descriptors.
"""

import os
from collections.abc import Collection, Iterable

from relight.core.group.messages import GenerationFormed
from relight.host.files import open_descriptors, sockets_on_port
from relight.net.store_port import StorePort
from relight.processes.worker_processes import Workers


def explain(
    workers: Workers, alive: Collection[int], formed: GenerationFormed, store: StorePort | None
) -> str:
    """Describe which workers have not connected to the store. The result is empty if all workers or
    none have connected, or if it is unknown.

    Args:
        workers: the workers on this node.
        alive: the local ranks of those that are still running.
        formed: the workers' generation.
        store: the generation's store, if it is on this node.
    """
    place, port = formed.place, formed.generation.master_port
    serves_store = store is not None and store.served and place.group_rank == 0
    # All workers must be connected at the same time to get past init_process_group. Later they may
    # disconnect or exit.
    connected = store.most_clients if store is not None and serves_store else 0
    if serves_store and not 0 < connected < place.world_size:
        return ""
    text = f"{connected} of {place.world_size} workers have"
    if not os.path.isdir("/proc/self/net"):  # only the number of connected workers is known
        return f"{text} reached init_process_group" if serves_store else ""
    pids = {local_rank: pid for local_rank, pid in workers.pids.items() if local_rank in alive}
    here = arrived(pids.values(), port)
    late = [
        f"rank {workers.ranks[local_rank]} (pid {pid})"
        for local_rank, pid in pids.items()
        if pid not in here
    ]
    has_ended = len(pids) < len(workers.pids)
    have = "has" if len(late) == 1 else "have"
    missing = f"{', '.join(late)} on this node {have} not reached init_process_group"
    if not serves_store:
        if has_ended or not here or not late:
            return ""
        # Only the store knows whether all workers have been connected at the same time.
        left = f"{have} destroyed the process group; the other workers on this node are connected"
        return f"{missing} or {left}"
    if late:
        return f"{missing}; {text}"
    if has_ended:
        return ""
    return f"{text} reached init_process_group, including all those on this node"


def arrived(pids: Iterable[int], port: int) -> set[int]:
    """Return the pids of those processes that have a connection to a TCP port, on any machine.

    Args:
        pids: processes on this machine; those that have exited count as not connected.
        port: the store's port.
    """
    result = set()
    connected: dict[str, set[str]] = {}  # by network namespace, because the tables are long
    for pid in pids:
        try:
            network = os.readlink(f"/proc/{pid}/ns/net")
            if network not in connected:
                connected[network] = sockets_on_port(f"/proc/{pid}/net", port, listening=False)
            if not connected[network].isdisjoint(open_descriptors(f"/proc/{pid}/fd").values()):
                result.add(pid)
        except OSError:
            continue
    return result
