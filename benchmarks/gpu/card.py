"""The GPU as reported by the driver: its name, the memory in use, and its processes.

Memory is read through NVML (libnvidia-ml, which nvidia-smi also uses), because a call to nvidia-smi
can take longer than the second that is being measured. NVML's `nvmlMemory_t` and
`nvmlDeviceGetName` are documented at https://docs.nvidia.com/deploy/nvml-api.
"""

import ctypes
import subprocess
from contextlib import suppress
from typing import NamedTuple, Protocol

SMI_LIMIT_S = 15.0
_MIB = 1 << 20
_NAME_LEN = 96


class Card(Protocol):
    """A device whose memory usage can be read."""

    name: str
    driver: str
    uuid: str

    def used_mib(self) -> float:
        """Return the memory in use by all processes."""

    def release(self) -> None:
        """Close the device files until the next reading, because health checks look for their
        holders.
        """


class NoCard:
    """The card for `--device cpu`."""

    name = "no GPU"
    driver = ""
    uuid = ""

    def used_mib(self) -> float:
        """Return 0."""
        return 0.0

    def release(self) -> None:
        """Do nothing."""


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class NvmlCard:
    """The first GPU, read through NVML.

    Raises:
        OSError: if the driver library is missing, or finds no GPU.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self._handle: ctypes.c_void_p | None = None
        self._open()
        self.name = self._text("nvmlDeviceGetName", self._handle)
        self.uuid = self._text("nvmlDeviceGetUUID", self._handle)
        self.driver = self._text("nvmlSystemGetDriverVersion")

    def used_mib(self) -> float:
        """Return the memory in use by all processes."""
        self._open()
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", self._handle, ctypes.byref(memory))
        return float(memory.used) / _MIB

    def release(self) -> None:
        """Close the device files, until the next reading."""
        if self._handle is not None:
            self._handle = None
            self._call("nvmlShutdown")

    def _open(self) -> None:
        if self._handle is None:
            self._call("nvmlInit_v2")
            handle = ctypes.c_void_p()
            self._call("nvmlDeviceGetHandleByIndex_v2", 0, ctypes.byref(handle))
            self._handle = handle

    def _text(self, function: str, *arguments: object) -> str:
        buffer = ctypes.create_string_buffer(_NAME_LEN)
        self._call(function, *arguments, buffer, _NAME_LEN)
        return buffer.value.decode(errors="replace")

    def _call(self, function: str, *arguments: object) -> None:
        code = getattr(self._library, function)(*arguments)
        if code:
            raise OSError(f"{function} of libnvidia-ml returned {code}")


class SmiCard:
    """The first GPU, read by running nvidia-smi.

    Raises:
        OSError: if nvidia-smi is missing, or fails.
    """

    def __init__(self) -> None:
        self.name, self.driver, self.uuid = _query("name,driver_version,uuid")

    def used_mib(self) -> float:
        """Return the memory in use by all processes."""
        return float(_query("memory.used")[0])

    def release(self) -> None:
        """Do nothing, because nvidia-smi is not running between readings."""


def find() -> Card:
    """Return the first GPU.

    Raises:
        OSError: if the GPU or its driver is missing.
    """
    try:
        return NvmlCard()
    except (OSError, AttributeError):
        return SmiCard()


class ComputeApps(NamedTuple):
    """The processes that nvidia-smi lists, or the reason why it lists none."""

    pids: frozenset[int]
    problem: str


def compute_apps() -> ComputeApps:
    """Return the processes with a CUDA context.

    In a container, the driver may list nothing, or the pids of another namespace. A missing pid is
    only evidence if the list includes another process that is known to have a context.
    """
    try:
        lines = smi("--query-compute-apps=pid", "--format=csv,noheader,nounits")
    except OSError as error:
        return ComputeApps(frozenset(), str(error))
    return ComputeApps(frozenset(int(word) for word in lines.split() if word.isdecimal()), "")


def smi(*words: str) -> str:
    """Return the output of nvidia-smi.

    Raises:
        OSError: if nvidia-smi is missing, fails, or hangs.
    """
    process = subprocess.Popen(
        ["nvidia-smi", *words],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        text, _ = process.communicate(timeout=SMI_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # inside the driver, it may ignore signals
            process.communicate(timeout=1)
        raise OSError(f"nvidia-smi gave no answer in {SMI_LIMIT_S:.0f} s") from None
    if process.returncode:
        raise OSError(f"nvidia-smi exited with {process.returncode}: {text.strip()[-200:]}")
    return text


def _query(fields: str) -> list[str]:
    lines = smi(f"--query-gpu={fields}", "--format=csv,noheader,nounits").splitlines()
    if not lines:
        raise OSError("nvidia-smi lists no GPU")
    return [word.strip() for word in lines[0].split(",")]
