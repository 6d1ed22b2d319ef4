"""Chooses each worker's CPUs for `--numa-binding`, from the topology under /sys.

A worker's home is the NUMA node that its GPU is attached to. The mode determines which CPUs in that
node the worker may use. The modes have the same meaning as in torchrun (torch 2.13). The masks are
set with sched_setaffinity, so numactl is not needed.
"""

import os
import re
from collections.abc import Callable
from itertools import pairwise

from relight.base.env import Environment
from relight.base.errors import UsageError
from relight.host.devices import Device, accelerators

Cpus = frozenset[int]


def bind(
    mode: str, local_world_size: int, env: Environment, root: str = "/", allowed: Cpus | None = None
) -> tuple[Cpus, ...]:
    """Return each worker's affinity mask, ordered by local rank.

    - `node`: all CPUs of the worker's home;
    - `socket`: all CPUs of the NUMA nodes on the same socket;
    - `exclusive`: the worker's own share of the home's physical cores; remaining cores go to the
      lowest local ranks;
    - `core-complex`: the home's cores that share one last-level cache, assigned round-robin,
      largest group first.

    A worker's home is the NUMA node of the GPU whose index is the worker's local rank. With
    `exclusive` and `core-complex`, visible GPUs without a worker also get a share of the CPUs,
    which remains unused. Without GPUs (a case that torchrun rejects), the workers' homes are spread
    evenly over the cores. For example, if there are 4 workers and 2 equal nodes, each node is the
    home of 2 workers.

    Args:
        mode: one of the four modes.
        local_world_size: the number of workers on this node.
        env: the environment, with the variables that hide devices.
        root: where /proc, /dev and /sys are; for tests.
        allowed: the CPUs that may be used; by default, the affinity mask of this process.

    Raises:
        UsageError: if this machine does not support the mode.
    """
    topology = _Topology(
        mode, root, frozenset(os.sched_getaffinity(0)) if allowed is None else allowed
    )
    found = accelerators(env, root)
    if local_world_size > len(found) > 0:
        raise UsageError(
            f"--numa-binding={mode}: more workers ({local_world_size}) than GPUs ({len(found)})",
            hint=(
                f"--nproc-per-node={len(found)}; or hide the GPUs with CUDA_VISIBLE_DEVICES= if "
                "workers don't use them"
            ),
        )
    if found:
        homes = [topology.gpu_node(index, gpu) for index, gpu in enumerate(found)]
    else:
        homes = topology.spread(local_world_size)
    word = "GPUs" if found else "workers"
    masks: dict[int, Cpus] = {}
    for node in dict.fromkeys(homes[:local_world_size]):
        # GPUs without a worker also get a share.
        at_home = [index for index, home in enumerate(homes) if home == node]
        masks.update(zip(at_home, topology.share(node, len(at_home), word), strict=True))
    return tuple(masks[local_rank] for local_rank in range(local_world_size))


class _Topology:
    """This machine's NUMA nodes, with the CPUs in each node that may be used."""

    def __init__(self, mode: str, root: str, allowed: Cpus) -> None:
        self.mode = mode
        self.cpu_folder = os.path.join(root, "sys/devices/system/cpu")
        self.pci_folder = os.path.join(root, "sys/bus/pci/devices")
        folder = os.path.join(root, "sys/devices/system/node")
        try:
            names = os.listdir(folder)
        except OSError:
            raise self._missing(folder) from None
        numbers = sorted(int(name[4:]) for name in names if re.fullmatch("node[0-9]+", name))
        self.all_cpus = {n: self._cpus_in(f"{folder}/node{n}/cpulist") for n in numbers}
        self.cpus = {node: cpus & allowed for node, cpus in self.all_cpus.items()}

    def gpu_node(self, index: int, gpu: Device) -> int:
        """Return the NUMA node that a GPU is attached to, or 0 if the firmware doesn't report
        it.
        """
        if not gpu.pci:
            raise UsageError(
                f"--numa-binding={self.mode}: the driver's files don't contain the location "
                f"of GPU {index}{f' ({gpu.uuid})' if gpu.uuid else ''}",
                hint="select devices by number, or leave --numa-binding out",
            )
        return max(0, int(self._read(f"{self.pci_folder}/{gpu.pci}/numa_node")))

    def spread(self, local_world_size: int) -> list[int]:
        """Return a home for each of `local_world_size` workers that don't have a GPU."""
        # Spread by cores rather than by nodes, because a container may have more cores on one node
        # than on another.
        homes = [node for node, cpus in self.cpus.items() for _ in self._cores(cpus)]
        if not homes:
            raise UsageError(
                f"--numa-binding={self.mode}: none of the allowed CPUs belongs to a NUMA node",
                hint="leave --numa-binding out",
            )
        return [homes[index * len(homes) // local_world_size] for index in range(local_world_size)]

    def share(self, node: int, number: int, word: str) -> list[Cpus]:
        """Return the CPUs for each of `number` GPUs or workers whose home is this node."""
        cpus = self._socket(node) if self.mode == "socket" else self.cpus.get(node, frozenset())
        if not cpus:
            raise UsageError(
                f"--numa-binding={self.mode}: there are GPUs on NUMA node {node}, "
                f"but none of the CPUs {'in its socket' if self.mode == 'socket' else 'there'} "
                "may be used here",
                hint="widen the CPU set of this shell or container, or leave --numa-binding out",
            )
        if self.mode in ("node", "socket"):
            return [cpus] * number
        if self.mode == "core-complex":
            caches = self._groups(cpus, self._sharing_last_cache)
            caches.sort(key=lambda cache: -len(cache))
            return [caches[index % len(caches)] for index in range(number)]
        cores = self._cores(cpus)
        each, more = divmod(len(cores), number)
        if not each:
            raise UsageError(
                f"--numa-binding=exclusive: NUMA node {node} has fewer physical cores "
                f"({len(cores)}) than {word} ({number})",
                hint="--numa-binding=node shares them",
            )
        ends = [index * each + min(index, more) for index in range(number + 1)]
        return [frozenset().union(*cores[start:end]) for start, end in pairwise(ends)]

    def _socket(self, node: int) -> Cpus:
        socket = self._cpu_socket(node)
        nodes = [other for other in self.cpus if self._cpu_socket(other) == socket]
        return frozenset().union(*(self.cpus[other] for other in nodes))

    def _cpu_socket(self, node: int) -> int:
        cpus = self.all_cpus.get(node)
        if not cpus:
            return -1 - node  # no CPUs, or absent: treat it as a separate socket
        return int(self._read(f"{self.cpu_folder}/cpu{min(cpus)}/topology/physical_package_id"))

    def _cores(self, cpus: Cpus) -> list[Cpus]:
        return self._groups(
            cpus,
            lambda cpu: self._cpus_in(f"{self.cpu_folder}/cpu{cpu}/topology/thread_siblings_list"),
        )

    def _sharing_last_cache(self, cpu: int) -> Cpus:
        folder = f"{self.cpu_folder}/cpu{cpu}/cache"
        levels: dict[int, str] = {}
        try:
            names = os.listdir(folder)
        except OSError:
            raise self._missing(folder) from None
        for name in names:
            if re.fullmatch("index[0-9]+", name):
                cache = f"{folder}/{name}"
                if self._read(f"{cache}/type") != "Instruction":
                    levels[int(self._read(f"{cache}/level"))] = cache
        if not levels:
            raise self._missing(f"{folder}/index*")
        return self._cpus_in(f"{levels[max(levels)]}/shared_cpu_list")

    def _groups(self, cpus: Cpus, sharing: Callable[[int], Cpus]) -> list[Cpus]:
        """Group the CPUs that share a resource. Order the groups by the lowest CPU in each group,
        including CPUs that may not be used.
        """
        groups: dict[int, Cpus] = {}
        left = set(cpus)
        while left:
            cpu = min(left)
            whole = sharing(cpu) | {cpu}
            groups[min(whole)] = cpus & whole
            left -= whole
        return [groups[first] for first in sorted(groups)]

    def _cpus_in(self, path: str) -> Cpus:
        """Parse a CPU list such as `0-3,8`."""
        cpus: set[int] = set()
        for part in self._read(path).split(","):
            first, _, last = part.partition("-")
            if first:
                cpus.update(range(int(first), int(last or first) + 1))
        return frozenset(cpus)

    def _read(self, path: str) -> str:
        try:
            with open(path) as file:
                return file.read().strip()
        except OSError:
            raise self._missing(path) from None

    def _missing(self, path: str) -> UsageError:
        return UsageError(
            f"--numa-binding={self.mode}: can't read this machine's topology from {path}",
            hint="leave --numa-binding out",
        )
