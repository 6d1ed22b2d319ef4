"""Finds the workers on this node that other workers are waiting for in init_process_group.

A worker that has reached init_process_group is connected to the store. proc(5) shows which process
a connection belongs to: /proc/<pid>/net/tcp{,6} lists the sockets connected to the store's port,
and /proc/<pid>/fd lists the inodes of the process's descriptors.
"""

import os
from collections.abc import Iterable

from relight.core.group.messages import GenerationFormed
from relight.host.files import open_descriptors, sockets_on_port
from relight.net.store_port import StorePort
from relight.processes.worker_processes import Workers


def explain(workers: Workers, formed: GenerationFormed, store: StorePort | None) -> str:
    """Describe which workers have not connected to the store. The result is empty if all workers or
    none have connected.

    Args:
        workers: the workers on this node.
        formed: the workers' generation.
        store: the generation's store, if it is on this node.
    """
    place, port = formed.place, formed.generation.master_port
    if not os.path.isdir("/proc/self/net"):  # only the number of connected workers is known
        come = store.clients if store is not None else 0
        if not 0 < come < place.world_size:
            return ""
        return f"{come} of {place.world_size} workers have reached init_process_group"
    here = arrived(workers.pids.values(), port)
    late = [
        f"rank {workers.ranks[local_rank]} (pid {pid})"
        for local_rank, pid in workers.pids.items()
        if pid not in here
    ]
    counts = store is not None and store.served and place.group_rank == 0
    come = store.clients if store is not None and counts else len(here)
    if not 0 < come < place.world_size or not (late or place.group_rank == 0):
        return ""
    text = f"{come} of {place.world_size} workers have"
    if not late:
        return f"{text} reached init_process_group, including all those on this node"
    if place.group_rank:  # the store, which counts all workers, is on another node
        text = "the other workers on this node have"
    have = "has" if len(late) == 1 else "have"
    return f"{', '.join(late)} on this node {have} not reached init_process_group; {text}"


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
