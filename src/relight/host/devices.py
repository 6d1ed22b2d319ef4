"""Counts a node's devices, in order to choose its number of workers. Accelerators are counted with
the help of the drivers' files, and CPUs according to the affinity mask and the cgroup.

torch is never imported. Only devices that will be visible to a worker are counted, so variables
that hide devices are interpreted in the same way as in torch. Sources: the NVIDIA driver's
/proc/driver/nvidia/gpus and /dev/nvidia<minor>; the CUDA programming guide on CUDA_VISIBLE_DEVICES;
amdkfd's /sys/class/kfd/kfd/topology/nodes; Intel's xe and i915 under /sys/class/drm and Level
Zero's ZE_AFFINITY_MASK and ZE_FLAT_DEVICE_HIERARCHY.

GPUs are numbered by PCI address. The CUDA driver does the same if all GPUs are the same model or if
CUDA_DEVICE_ORDER is PCI_BUS_ID. Otherwise the CUDA driver puts the fastest GPU first, and no file
shows which GPU that is.
"""

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from relight.base.env import Environment
from relight.base.errors import UsageError
from relight.host import system


class Device(NamedTuple):
    """One accelerator as listed by a driver: a GPU or a tile of an Intel GPU.

    The `number` field is unique within the driver. The `pci` field is the device's address in
    /sys/bus/pci/devices, and `uuid` is the device's name in *_VISIBLE_DEVICES. Either may be empty
    if the driver doesn't provide it.
    """

    number: int
    pci: str
    uuid: str = ""


def count(word: str, env: Environment, root: str = "/") -> int:
    """Return the number of workers for `--nproc-per-node=auto|gpu|cpu|xpu`.

    Args:
        word: one of the four words.
        env: the environment, with the variables that hide devices.
        root: where /proc, /dev and /sys are; for tests.

    Raises:
        UsageError: if no device of that kind is found.
    """
    if word == "cpu":
        return cpus(root)
    find = {"auto": accelerators, "gpu": gpus, "xpu": xpus}[word]
    found = len(find(env, root))
    if found or word == "auto":
        return found or cpus(root)
    hiding = [f"{n}={env.variables[n]}" for n in _HIDING[word] if n in env.variables]
    seen = f" with {', '.join(hiding)}" if hiding else ""
    raise UsageError(
        f"--nproc-per-node={word}: no usable {word} on this machine{seen}",
        hint="--nproc-per-node=auto counts CPUs on nodes without an accelerator",
    )


def accelerators(env: Environment, root: str = "/") -> list[Device]:
    """Return the devices used for training by default, in local rank order.

    A GPU that is integrated into an Intel CPU is excluded, because nearly every laptop has such a
    GPU and hardly anyone trains on it. `xpus` includes it.
    """
    return gpus(env, root) or [xpu for xpu in xpus(env, root) if xpu.pci != _INSIDE_PROCESSOR]


def gpus(env: Environment, root: str = "/") -> list[Device]:
    """Return the GPUs visible to a worker through CUDA or, failing that, through ROCm, ordered by
    index.
    """
    found = _visible(env.variables.get("CUDA_VISIBLE_DEVICES"), _nvidia(root))
    if found:
        return found
    # ROCm filters in two steps. The second step numbers the devices that remain after the first.
    left = _visible(env.variables.get("ROCR_VISIBLE_DEVICES"), _amd(root))
    cuda = env.variables.get("CUDA_VISIBLE_DEVICES")
    return _visible(env.variables.get("HIP_VISIBLE_DEVICES", cuda), left)


def gpu_names(env: Environment) -> list[str]:
    """Return the names of the GPUs returned by `gpus`, in the form used in CUDA_VISIBLE_DEVICES."""
    number, chosen = len(gpus(env)), env.get("CUDA_VISIBLE_DEVICES")
    return [name.strip() for name in chosen.split(",")][:number] if chosen else [
        str(each) for each in range(number)]  # fmt: skip


def xpus(env: Environment, root: str = "/") -> list[Device]:
    """Return the Intel GPUs that Level Zero makes visible to a worker. A GPU integrated into the
    CPU is excluded if there is another GPU.
    """
    found = _intel(root, tiles=env.get("ZE_FLAT_DEVICE_HIERARCHY") != "COMPOSITE")
    mask = env.get("ZE_AFFINITY_MASK")
    if mask:
        # The order of the mask doesn't matter; "1.0" is a part of device 1.
        chosen = {entry.partition(".")[0].strip() for entry in mask.split(",")}
        found = [xpu for xpu in found if str(xpu.number) in chosen]
    return [xpu for xpu in found if xpu.pci != _INSIDE_PROCESSOR] or found


def cpus(root: str = "/") -> int:
    """Return how many CPUs this process may use according to its affinity mask and cgroup quota."""
    mask = system.cpus()
    quota = _cpu_quota(root)
    return mask if quota is None else max(1, min(mask, quota))


_HIDING = {
    "gpu": ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    "xpu": ("ZE_AFFINITY_MASK",),
}
_INSIDE_PROCESSOR = "0000:00:02.0"
"""The PCI address of the GPU built into an Intel CPU."""


def _nvidia(root: str) -> list[Device]:
    """Return the NVIDIA GPUs that this process may open, ordered by PCI address.

    The driver lists all of the machine's GPUs, even in a container. The device files, and the
    device cgroup of a scheduler such as Slurm, restrict a job to a subset.
    """
    minors = {
        int(name[6:])
        for name in entries(os.path.join(root, "dev"))
        if re.fullmatch("nvidia[0-9]+", name) and _usable(os.path.join(root, "dev", name))
    }
    folder = os.path.join(root, "proc/driver/nvidia/gpus")
    listed = []
    for pci in entries(folder):
        facts = values(os.path.join(folder, pci, "information"), ":")
        minor = facts.get("Device Minor", "")
        if minor.isdecimal() and facts.get("GPU Excluded") != "Yes":
            uuid = facts.get("GPU UUID", "")
            # The UUID consists of question marks until the GPU is used for the first time.
            listed.append(Device(int(minor), pci.lower(), "" if "?" in uuid else uuid))
    if not listed:
        return [Device(minor, "") for minor in sorted(minors)]
    return sorted((gpu for gpu in listed if gpu.number in minors), key=_bus_order)


def _amd(root: str) -> list[Device]:
    """Return the AMD GPUs that this process may open, in the order of the kernel's topology
    nodes.
    """
    if not _usable(os.path.join(root, "dev/kfd")):
        return []
    folder = os.path.join(root, "sys/class/kfd/kfd/topology/nodes")
    found = []
    for node in sorted(int(name) for name in entries(folder) if name.isdecimal()):
        # CPUs are also nodes, with id 0. Nodes that a container may not use can't be read.
        if content(os.path.join(folder, str(node), "gpu_id")) in ("", "0"):
            continue
        facts = values(os.path.join(folder, str(node), "properties"), " ")
        names = "domain", "location_id", "unique_id", "drm_render_minor"
        # The location consists of bus, device and function; the higher bits are the partition.
        domain, place, unique, minor = (int(facts.get(name, 0)) for name in names)
        if not _usable(os.path.join(root, f"dev/dri/renderD{minor}")):
            continue
        bus, slot, function = place >> 8 & 0xFF, place >> 3 & 0x1F, place & 7
        pci = f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}"
        found.append(Device(node, pci, f"GPU-{unique:016x}" if unique else ""))
    return found


def _intel(root: str, *, tiles: bool) -> list[Device]:
    """Return the Intel GPUs, or their tiles, that this process may open, ordered by PCI address."""
    folder = os.path.join(root, "sys/class/drm")
    cards = []
    for name in entries(folder):
        device = os.path.realpath(os.path.join(folder, name, "device"))
        driver = os.path.basename(os.path.realpath(os.path.join(device, "driver")))
        if not name.startswith("renderD") or driver not in ("xe", "i915"):
            continue
        if _usable(os.path.join(root, "dev/dri", name)):
            pci = os.path.basename(device)
            parts = _tiles(device) if tiles and pci != _INSIDE_PROCESSOR else 1
            cards += [Device(0, pci)] * parts
    # The GPU built into the CPU comes last.
    cards.sort(key=lambda card: (card.pci == _INSIDE_PROCESSOR, *_bus_order(card)))
    return [card._replace(number=number) for number, card in enumerate(cards)]


def _tiles(device: str) -> int:
    """Return how many tiles an Intel GPU has. The xe driver has tile<N>, and i915 has
    drm/card<N>/gt/gt<N>.
    """
    found = [name for name in entries(device) if re.fullmatch("tile[0-9]+", name)]
    for card in entries(os.path.join(device, "drm")):
        found += entries(os.path.join(device, "drm", card, "gt"))
    return max(1, len(found))


def _visible(text: str | None, devices: list[Device]) -> list[Device]:
    """Return the devices that a *_VISIBLE_DEVICES variable selects, in the order of its entries.

    The first entry determines whether all entries are read as numbers or as names. The list ends at
    the first entry that does not name a device. A duplicate entry hides all devices.
    """
    if text is None:
        return devices
    kind = text[:4] if text.startswith(("GPU-", "MIG-")) else ""
    keys: list[str | int] = []
    for entry in text.split(","):
        number = re.match(r"\s*([+-]?[0-9]+)", entry)
        key = entry if kind else int(number[1] if number else -1)
        if key in keys:
            return []
        if not entry.startswith(kind) or (isinstance(key, int) and key < 0):
            break
        keys.append(key)
    if kind == "MIG-":
        keys = keys[:1]  # CUDA shows a process at most one instance
    chosen: list[Device] = []
    for key in keys:
        found = devices[key : key + 1] if isinstance(key, int) else _named(key, devices, chosen)
        if len(found) != 1:
            break
        if found[0] in chosen:
            return []
        chosen += found
    return chosen


def _named(name: str, devices: list[Device], chosen: list[Device]) -> list[Device]:
    """Return the devices whose names begin with `name`.

    A name that is missing from the driver's files (a MIG instance, or a GPU that has not been used
    yet) counts as valid as long as there are devices left that no other name matches. It is unknown
    which device such a name refers to.
    """
    instance = name.startswith("MIG-")
    whole = name.removeprefix("MIG-").partition("/")[0]  # MIG-GPU-<UUID>/<instance>/<instance>
    found = [device for device in devices if device.uuid and device.uuid.startswith(whole)]
    if found:
        return found
    taken = {device.number for device in chosen}
    rest = [d for d in devices if (instance or not d.uuid) and d.number not in taken][:1]
    return rest if len(devices) == 1 else [d._replace(pci="", uuid=name) for d in rest]


def _cpu_quota(root: str) -> int | None:
    """Return the number of CPUs that the cgroup allows, rounded up (v2: cpu.max; v1:
    cpu.cfs_quota_us).
    """
    limits = []
    for folder, is_unified in cgroups(root, "cpu"):
        if is_unified:
            quota, _, period = content(os.path.join(folder, "cpu.max")).partition(" ")
        else:
            quota = content(os.path.join(folder, "cpu.cfs_quota_us"))
            period = content(os.path.join(folder, "cpu.cfs_period_us"))
        if quota.isdecimal() and period.isdecimal():  # "max" and -1 mean unlimited
            limits.append(-(-int(quota) // int(period)))
    return min(limits, default=None)


def cgroups(root: str, controller: str) -> Iterator[tuple[str, bool]]:
    """Yield the possible directories of this process's cgroup for a controller, and of the cgroup's
    parents, each with whether it belongs to the unified hierarchy (cgroups(7), version 2). Any
    parent may set a limit. A container sees its own group as the root.
    """
    for line in content(os.path.join(root, "proc/self/cgroup")).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            mounts = ("", "unified")
        elif controller in controllers.split(","):
            mounts = (controllers, controller)
        else:
            continue
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts) + 1):
            for mount in mounts:
                yield os.path.join(root, "sys/fs/cgroup", mount, *parts[:depth]), not controllers


def _bus_order(device: Device) -> tuple[int, str]:
    return len(device.pci), device.pci  # a domain may have more than 4 digits


def _usable(path: str) -> bool:
    """Return whether this process may open a device file. The check also covers the device
    cgroup.
    """
    return os.access(path, os.R_OK | os.W_OK)


def entries(folder: str) -> list[str]:
    """Return the sorted names in a system directory, or an empty list if it can't be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def content(path: str) -> str:
    """Return the stripped content of a system file, or an empty string if it can't be read."""
    try:
        with open(path, errors="surrogateescape") as file:
            return file.read().strip()
    except OSError:
        return ""


def values(path: str, separator: str) -> dict[str, str]:
    """Return the values by name in a system file that has one name and value in each line."""
    parts = (line.partition(separator) for line in content(path).splitlines())
    return {name.strip(): value.strip() for name, _, value in parts}
