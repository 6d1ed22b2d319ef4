"""File trees that imitate /sys, /proc and /dev on other machines."""

from pathlib import Path
from typing import NamedTuple


class Layout(NamedTuple):
    """CPUs as Linux numbers them: the first thread of every core, then the second ones."""

    sockets: int = 1
    nodes: int = 1
    """NUMA nodes per socket."""
    cores: int = 4
    """Physical cores per node."""
    threads: int = 1
    cache: int = 4
    """Cores per last-level cache. A node's last cache may have fewer."""

    def all_nodes(self) -> range:
        return range(self.sockets * self.nodes)

    def every_core(self) -> int:
        return len(self.all_nodes()) * self.cores

    def threads_of(self, core: int) -> set[int]:
        return {core + thread * self.every_core() for thread in range(self.threads)}

    def threads_of_all(self, cores: range) -> set[int]:
        return {cpu for core in cores for cpu in self.threads_of(core)}

    def cores_of(self, node: int) -> range:
        return range(node * self.cores, (node + 1) * self.cores)

    def cpus_of(self, node: int) -> set[int]:
        return self.threads_of_all(self.cores_of(node))

    def every_cpu(self) -> frozenset[int]:
        return frozenset(cpu for node in self.all_nodes() for cpu in self.cpus_of(node))


SMALL = Layout()
DUAL_SOCKET = Layout(sockets=2, nodes=2, cores=8, threads=2, cache=8)
EPYC = Layout(sockets=1, nodes=2, cores=10, threads=2, cache=4)
"""Two nodes, each with three caches that serve 4, 4 and 2 cores."""


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def cpu_list(cpus: set[int]) -> str:
    """Format CPUs as the kernel does: `0-3,8`."""
    parts = []
    for cpu in sorted(cpus):
        if cpu - 1 not in cpus:
            last = cpu
            while last + 1 in cpus:
                last += 1
            parts.append(str(cpu) if last == cpu else f"{cpu}-{last}")
    return ",".join(parts)


def add_cpus(root: Path, layout: Layout) -> None:
    system = root / "sys/devices/system"
    write(system / "node/possible", cpu_list(set(layout.all_nodes())))
    for node in layout.all_nodes():
        write(system / f"node/node{node}/cpulist", cpu_list(layout.cpus_of(node)))
        cores = layout.cores_of(node)
        for core in cores:
            first = core - (core - cores[0]) % layout.cache
            shared = range(first, min(first + layout.cache, cores[-1] + 1))
            caches = (
                (1, "Data", layout.threads_of(core)),
                (1, "Instruction", layout.threads_of(core)),
                (2, "Unified", layout.threads_of(core)),
                (3, "Unified", layout.threads_of_all(shared)),
            )
            for cpu in layout.threads_of(core):
                folder = system / f"cpu/cpu{cpu}"
                siblings = cpu_list(layout.threads_of(core))
                write(folder / "topology/thread_siblings_list", siblings)
                write(folder / "topology/physical_package_id", node // layout.nodes)
                for index, (level, kind, sharing) in enumerate(caches):
                    write(folder / f"cache/index{index}/level", level)
                    write(folder / f"cache/index{index}/type", kind)
                    write(folder / f"cache/index{index}/shared_cpu_list", cpu_list(sharing))


def add_pci(root: Path, pci: str, node: int) -> Path:
    folder = root / "sys/bus/pci/devices" / pci
    write(folder / "numa_node", node)
    return folder


def uuid_of(minor: int) -> str:
    return f"GPU-{minor:x}{minor:x}00d5d1-b60b-a624-bf14-0a1819cfda3b"


def add_nvidia(
    root: Path,
    pci: str,
    minor: int,
    *,
    node: int = 0,
    uuid: str | None = None,
    excluded: bool = False,
    device_file: bool = True,
) -> None:
    """Add a GPU as presented by version 535 of the NVIDIA driver."""
    lines = (
        "Model: \t\t NVIDIA H100 80GB HBM3",
        "IRQ:   \t\t 10",
        f"GPU UUID: \t {uuid_of(minor) if uuid is None else uuid}",
        "Video BIOS: \t 96.00.99.00.01",
        "Bus Type: \t PCIe",
        f"Bus Location: \t {pci}",
        f"Device Minor: \t {minor}",
        f"GPU Excluded:\t {'Yes' if excluded else 'No'}",
    )
    write(root / "proc/driver/nvidia/gpus" / pci / "information", "\n".join(lines))
    add_pci(root, pci, node)
    if device_file:
        write(root / f"dev/nvidia{minor}", "")
    write(root / "dev/nvidiactl", "")
    write(root / "dev/nvidia-uvm", "")


def add_amd_node(
    root: Path,
    number: int,
    pci: str = "",
    *,
    node: int = 0,
    unique_id: int = 0,
    partition: int = 0,
    device_file: bool = True,
) -> None:
    """Add a node to amdkfd's topology: a GPU if it has an address, otherwise a CPU."""
    folder = root / "sys/class/kfd/kfd/topology/nodes" / str(number)
    write(folder / "gpu_id", 40000 + number if pci else 0)
    domain, bus, place = pci.split(":") if pci else ("0", "0", "0.0")
    slot, function = (int(part, 16) for part in place.split("."))
    location = partition << 28 | int(bus, 16) << 8 | slot << 3 | function
    lines = (
        f"cpu_cores_count {0 if pci else 64}",
        f"simd_count {1216 if pci else 0}",
        f"location_id {location}",
        f"domain {int(domain, 16)}",
        f"drm_render_minor {128 + number if pci else 0}",
        f"unique_id {unique_id}",
    )
    write(folder / "properties", "\n".join(lines))
    if pci:
        add_pci(root, pci, node)
        write(root / "dev/kfd", "")
        if device_file:
            write(root / f"dev/dri/renderD{128 + number}", "")


def add_intel(
    root: Path,
    minor: int,
    pci: str,
    *,
    driver: str = "xe",
    tiles: int = 1,
    node: int = 0,
    device_file: bool = True,
) -> None:
    """Add a render node with its links, as created by xe or another driver."""
    folder = add_pci(root, pci, node)
    drivers = root / "sys/bus/pci/drivers" / driver
    drivers.mkdir(parents=True, exist_ok=True)
    (folder / "driver").symlink_to(drivers)
    card = folder / f"drm/card{minor - 128}"
    for tile in range(tiles):
        where = folder / f"tile{tile}" if driver == "xe" else card / f"gt/gt{tile}"
        where.mkdir(parents=True)
    for name in (f"renderD{minor}", f"card{minor - 128}"):
        link = root / "sys/class/drm" / name / "device"
        link.parent.mkdir(parents=True)
        link.symlink_to(folder)
    if device_file:
        write(root / f"dev/dri/renderD{minor}", "")
