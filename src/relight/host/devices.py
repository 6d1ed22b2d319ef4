"""How many workers a node should have: accelerators from the drivers' files, CPUs from what we may
use.

torch is never imported. What a worker will see is what counts, so the variables that hide devices
are read as the drivers read them. Sources: the NVIDIA driver's /proc/driver/nvidia/gpus and
/dev/nvidia<minor>; the CUDA programming guide on CUDA_VISIBLE_DEVICES; amdkfd's
/sys/class/kfd/kfd/topology/nodes; Intel's xe and i915 under /sys/class/drm and Level Zero's
ZE_AFFINITY_MASK.
"""

import os

from relight.env import Environment
from relight.errors import UsageError


def count(word: str, env: Environment, root: str = "/") -> int:
    """Return the number of workers for `--nproc-per-node=auto|gpu|cpu|xpu`.

    Args:
        word: one of the four words.
        env: the environment, with the variables that hide devices.
        root: where /proc, /dev and /sys are; for tests.

    Raises:
        UsageError: there is no device of the kind.
    """
    if word == "cpu":
        return cpus(root)
    gpus, xpus = 0, 0
    if word in ("gpu", "auto"):
        gpus = cuda_devices(env, root) or rocm_devices(env, root)
        if gpus:
            return gpus
    if word in ("xpu", "auto"):
        xpus = xpu_devices(env, root)
        if xpus:
            return xpus
    if word == "auto":
        return cpus(root)
    hidden = [name for name in _HIDING if name in env.variables]
    seen = f" with {', '.join(f'{n}={env.variables[n]}' for n in hidden)}" if hidden else ""
    raise UsageError(
        f"--nproc-per-node={word}: this machine has no {word}{seen}",
        hint="--nproc-per-node=auto takes the CPUs where there is no accelerator",
    )


_HIDING = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
)


def cpus(root: str = "/") -> int:
    """Return how many CPUs we may keep busy: the affinity mask, or the cgroup's quota if that is
    less.
    """
    mask = len(os.sched_getaffinity(0))
    quota = _cpu_quota(root)
    return mask if quota is None else max(1, min(mask, int(quota + 0.999)))


def cuda_devices(env: Environment, root: str = "/") -> int:
    """Return how many NVIDIA GPUs CUDA shows to a worker."""
    minors = _nvidia_minors(root)
    visible = env.variables.get("CUDA_VISIBLE_DEVICES")
    return len(minors) if visible is None else _visible(visible, len(minors))


def rocm_devices(env: Environment, root: str = "/") -> int:
    """Return how many AMD GPUs HIP shows to a worker."""
    folder = os.path.join(root, "sys/class/kfd/kfd/topology/nodes")
    found = 0
    for node in _list(folder):
        gpu_id = _read(os.path.join(folder, node, "gpu_id"))
        found += gpu_id not in ("", "0")  # a CPU is a node as well, with id 0
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        visible = env.variables.get(name)
        if visible is not None:
            found = _visible(visible, found)
    return found


def xpu_devices(env: Environment, root: str = "/") -> int:
    """Return how many Intel GPUs Level Zero shows to a worker."""
    folder = os.path.join(root, "sys/class/drm")
    found = 0
    for name in _list(folder):
        if name.startswith("renderD"):
            driver = os.path.basename(os.path.realpath(os.path.join(folder, name, "device/driver")))
            found += driver in ("xe", "i915")
    mask = env.variables.get("ZE_AFFINITY_MASK")
    if not mask:
        return found
    devices = {entry.partition(".")[0].strip() for entry in mask.split(",")}
    return sum(1 for device in devices if device.isdecimal() and int(device) < found)


def _nvidia_minors(root: str) -> list[int]:
    """Return the minor numbers of the GPUs that have both a driver entry and a device file.

    A container may be given the device files of a part of the machine's GPUs only.
    """
    devices = {
        int(name[6:])
        for name in _list(os.path.join(root, "dev"))
        if name[6:].isdecimal() and name.startswith("nvidia")
    }
    folder = os.path.join(root, "proc/driver/nvidia/gpus")
    minors = []
    for gpu in _list(folder):
        for line in _read(os.path.join(folder, gpu, "information")).splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "Device Minor" and value.strip().isdecimal():
                minors.append(int(value))
    return sorted(devices & set(minors)) if minors else sorted(devices)


def _visible(text: str, present: int) -> int:
    """Return how many devices a *_VISIBLE_DEVICES variable leaves.

    The list ends at the first entry that is no device; an entry that comes twice hides everything.
    An entry with a name (GPU-…, MIG-…) is taken as valid: names are known to the driver only.
    """
    entries: list[str] = []
    for entry in (part.strip() for part in text.split(",")):
        if entry.isdecimal():
            if int(entry) >= present:
                break
            entry = str(int(entry))
        elif not entry.startswith(("GPU-", "MIG-")) or not present:
            break
        if entry in entries:
            return 0
        entries.append(entry)
    migs = [entry for entry in entries if entry.startswith("MIG-")]
    return 1 if migs else len(entries)  # CUDA shows a process one MIG instance at most


def _cpu_quota(root: str) -> float | None:
    """Return the CPUs that the cgroup allows (v2: cpu.max; v1: cpu.cfs_quota_us)."""
    limits = []
    for line in _read(os.path.join(root, "proc/self/cgroup")).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "" or "cpu" in controllers.split(","):
            # Any group above may be the one with the limit; a container sees its own as the root.
            parts = [part for part in path.split("/") if part]
            groups = ["/".join(parts[:depth]) for depth in range(len(parts) + 1)]
            limits += [_quota_of(root, controllers, group) for group in groups]
    return min((limit for limit in limits if limit is not None), default=None)


def _quota_of(root: str, controllers: str, path: str) -> float | None:
    if controllers == "":
        for mount in ("sys/fs/cgroup", "sys/fs/cgroup/unified"):
            words = _read(os.path.join(root, mount, path, "cpu.max")).split()
            if len(words) == 2 and words[0].isdecimal():
                return int(words[0]) / int(words[1])
        return None
    for mount in (controllers, "cpu"):
        folder = os.path.join(root, "sys/fs/cgroup", mount, path)
        quota = _read(os.path.join(folder, "cpu.cfs_quota_us"))
        period = _read(os.path.join(folder, "cpu.cfs_period_us"))
        if quota.isdecimal() and period.isdecimal():
            return int(quota) / int(period)
    return None


def _list(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""
