"""Finds errors from NVIDIA GPUs and NVSwitches in the kernel log.

    NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus.
    NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.
    nvidia-nvswitch3: SXid (PCI:0000:84:00.0): 12028, Fatal, Link 46 …

ECC memory errors and NVLink errors are also reported as Xids. `nvidia-smi` is not used, because it
hangs if the driver is broken. Sources:
https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, 2025-10, for `_MEANINGS` and
`_HARDWARE`; NVIDIA's Fabric Manager user guide for SXids. Loaded only after a failure.
"""

import os
import re
from collections.abc import Iterable
from typing import NamedTuple

from relight.host import kernel_log

_DRIVER = "/proc/driver/nvidia"
_RECENT_S = 600.0
"""How long before a failure its cause may have occurred. Torch's collectives time out after ten
minutes.
"""
_XID = re.compile(
    rb"^NVRM: Xid \((?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})[^)]*\): (\d{1,5}),? ?"
    rb"(?:pid='?(?:(\d{1,9})|[^',]*)'?, )?(?:name=[^,]*, )?([^\n]*)"
)
_OFF_THE_BUS = re.compile(
    rb"^NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})"
    rb".*fallen off the bus"
)
_SXID = re.compile(
    rb"^nvidia-nvswitch\d+: SXid \(PCI:([0-9a-fA-F:]+)[^)]*\): (\d{1,5}), (Fatal[^\n]*)"
)
_FALLEN_OFF, _CLEANUP, _ACTION = 79, 45, 154
_MEANINGS = {
    11: "Invalid or corrupted push buffer stream",
    13: "Graphics Engine Exception",
    31: "GPU memory page fault",
    32: "Invalid or corrupted push buffer stream",
    39: "Copy Engine Exception",
    43: "GPU stopped processing",
    46: "GPU stopped processing",
    48: "Double Bit ECC Error",
    54: "Auxiliary power is not connected to the GPU board",
    62: "Internal micro-controller halt",
    63: "GPU memory remapping event",
    64: "GPU memory remapping failure",
    69: "Graphics Engine class error",
    74: "NVLINK Error",
    _FALLEN_OFF: "GPU has fallen off the bus",
    80: "Corrupted data sent to GPU",
    92: "High single-bit ECC error rate",
    94: "Contained memory error",
    95: "Uncontained memory error",
    109: "Context Switch Timeout Error",
    110: "Security Fault Error",
    119: "GSP RPC Timeout",
    120: "GSP Error",
    121: "C2C Error",
    136: "NVLink training failed",
    137: "NVLink Privilege Error",
    140: "ECC Unrecovered Error",
    143: "GPU Initialization Error",
    144: "NVLINK: SAW Error",
    145: "NVLINK: RLW Error",
    146: "NVLINK: TLW Error",
    147: "NVLINK: TREX Error",
    148: "NVLINK: NVLPW_CTRL Error",
    149: "NVLINK: NETIR Error",
    150: "NVLINK: MSE Error",
    155: "NVLINK: SW Defined Error",
    156: "Resource Retirement Event",
    157: "Resource Retirement Failure",
    158: "GPU Fatal Timeout",
}
_HARDWARE = frozenset(
    (46, 48, 54, 62, 64, 74, _FALLEN_OFF, 95, 109, 110, 119, 120, 136, 140, 143, *range(144, 151),
     155, 156, 158)
)  # fmt: skip
"""Xids for which NVIDIA recommends resetting the GPU, restarting the machine or checking its links.
Most other Xids are caused by a program.
"""


class GpuError(NamedTuple):
    """A GPU error in the kernel log.

    The `pci` field is the device address without the function, such as `0000:3b:00`. The `pid`
    field is the process that was using the device, or 0 if unknown. The `at` field is on the
    monotonic clock, and `says` is the text from the log.
    """

    code: int
    pci: str
    pid: int
    at: float
    says: str
    is_switch: bool = False

    @property
    def is_hardware(self) -> bool:
        """Whether the device needs a reset or a repair, no matter what the program did."""
        return self.is_switch or (self.code in _HARDWARE and "Nonfatal" not in self.says)

    def text(self, before: float, *, own: bool) -> str:
        """Describe the error, and how long before the given time it happened. The argument `own`
        means that the error occurred on the reported rank's GPU.
        """
        device = "NVSwitch" if self.is_switch else "its GPU" if own else "GPU"
        kind = "SXid" if self.is_switch else "Xid"
        meaning = _MEANINGS.get(self.code, "") if not self.is_switch else ""
        meaning = meaning or self.says[:60].strip(" .,")
        named = f" ({meaning})" if meaning else ""
        ago = f"{max(0.0, before - self.at):.1f} s before"
        return f"{device} {self.pci}.0 reported {kind} {self.code}{named} {ago} (kernel log)"


def recent(now: float, root: str = "/") -> list[GpuError]:
    """Return the GPU errors from the last ten minutes. The result is empty if NVIDIA's driver is
    not loaded or the kernel log can't be read.

    Args:
        now: the time on the monotonic clock.
        root: where /proc and /dev are; for tests.
    """
    if not os.path.isdir(os.path.join(root, _DRIVER.lstrip("/"))):
        return []
    found = parse(kernel_log.records(os.path.join(root, "dev/kmsg")) or (), now - _RECENT_S)
    return found if kernel_log.sees_all_pids() else [each._replace(pid=0) for each in found]


def parse(lines: Iterable[bytes], since: float) -> list[GpuError]:
    """Return the GPU errors that have been logged since this time on the monotonic clock.

    Entries that are merely consequences of other errors, such as clean-ups and recommended actions,
    are omitted.
    """
    found = []
    for at, text in filter(None, map(kernel_log.record, lines)):
        if at < since - kernel_log.CLOCKS_DIFFER_S:
            continue
        if match := _XID.match(text):
            code, pid = int(match[2]), int(match[3] or 0)
            if code not in (_CLEANUP, _ACTION):
                says = match[4].decode(errors="replace")
                found.append(GpuError(code, _address(match[1]), pid, at, says))
        elif match := _OFF_THE_BUS.match(text):
            found.append(GpuError(_FALLEN_OFF, _address(match[1]), 0, at, ""))
        elif match := _SXID.match(text):
            pci, says = _address(match[1]), match[3].decode(errors="replace")
            found.append(GpuError(int(match[2]), pci, 0, at, says, is_switch=True))
    return found


def explain_exit(
    errors: Iterable[GpuError], *, pid: int, pci: str, visible: Iterable[str], at: float,
    blames_gpu: bool,
) -> tuple[str, bool]:  # fmt: skip
    """Return a description of the GPU error that may explain why a worker ended, or an empty
    string, and whether the worker's own GPU is broken.

    Args:
        errors: the errors in the log.
        pid: the worker.
        pci: the address of its GPU, or empty if unknown.
        visible: the addresses of the job's GPUs on this node.
        at: when the worker ended, on the monotonic clock.
        blames_gpu: whether the worker was killed by a signal from another process or printed a CUDA
            error; otherwise only broken hardware counts.
    """
    job = [_device(each) for each in visible]
    before = [each for each in errors if each.at <= at + kernel_log.CLOCKS_DIFFER_S]
    own = [e for e in before if (e.pid and e.pid == pid) or (pci and e.pci == _device(pci))]
    others = [e for e in before if e.is_switch or (not pci and (e.pci in job or not job))]
    for candidates, is_own in ((own, True), (others if blames_gpu else [], False)):
        counted = [e for e in candidates if blames_gpu or e.is_hardware]
        if counted:
            error = max(counted, key=lambda e: (e.is_hardware, e.at))
            return error.text(at, own=is_own), is_own and error.is_hardware
    return "", False


def _address(text: bytes) -> str:
    return text.decode().lower()


def _device(pci: str) -> str:
    return pci.lower().rpartition(".")[0]
