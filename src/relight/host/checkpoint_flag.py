"""A byte in shared memory that the agent sets and its workers read (`worker.should_checkpoint`)."""

import mmap
import os


class CheckpointFlag:
    """The byte, 0 at first. It needs no directory: workers open it through /proc."""

    VARIABLE = "RELIGHT_CHECKPOINT_FLAG"
    """The environment variable with its path, for workers."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("relight-checkpoint")
        os.ftruncate(self._fd, 1)
        self._memory = mmap.mmap(self._fd, 1)

    @property
    def path(self) -> str:
        """Where workers find it."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def set(self, value: bool) -> None:
        """Set the byte that the workers read."""
        self._memory[0] = int(value)
