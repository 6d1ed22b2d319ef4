"""The states of apps and replicas."""

from enum import IntEnum


class AppState(IntEnum):
    """The state of an app or a replica."""

    UNSUBMITTED = 0
    SUBMITTED = 1
    PENDING = 2
    RUNNING = 3
    SUCCEEDED = 4
    FAILED = 5
    CANCELLED = 6
    UNKNOWN = 7

    @property
    def is_over(self) -> bool:
        """Whether the state is final."""
        return self in (AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED)
