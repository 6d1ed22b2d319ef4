"""Describes a job independently of its scheduler: an app of roles, each with replicas of a command.

Names and meanings are those of TorchX's specs (nightly 2026-10), so that a component file needs
only one changed line. All types are immutable; `to_json` and `from_json` are in `job/serial.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any

NOTHING: Mapping[str, Any] = MappingProxyType({})


def _nothing() -> Mapping[str, Any]:
    return NOTHING


class RetryPolicy(StrEnum):
    """What is restarted when a replica fails: the replica, its role, or the whole app."""

    REPLICA = "REPLICA"
    ROLE = "ROLE"
    APPLICATION = "APPLICATION"


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


@dataclass(frozen=True)
class Resource:
    """The resources that one replica needs. -1 means unspecified.

    `cpu` and `gpu` are numbers of logical cores and of devices, `memMB` is in MiB. `devices` are
    extended resources by their Kubernetes names.
    """

    cpu: int
    gpu: int
    memMB: int  # noqa: N815  # the field's name in TorchX, and of the flag
    capabilities: Mapping[str, Any] = field(default_factory=_nothing)
    devices: Mapping[str, int] = field(default_factory=_nothing)
    tags: Mapping[str, Any] = field(default_factory=_nothing)

    @staticmethod
    def copy(original: "Resource", **capabilities: Any) -> "Resource":
        """Return a copy of `original` with more capabilities."""
        return replace(original, capabilities={**original.capabilities, **capabilities})


UNSPECIFIED = Resource(-1, -1, -1)


@dataclass(frozen=True)
class BindMount:
    """A directory or file of the host."""

    src_path: str
    dst_path: str
    read_only: bool = False


@dataclass(frozen=True)
class VolumeMount:
    """A named volume of the scheduler."""

    src: str
    dst_path: str
    read_only: bool = False


@dataclass(frozen=True)
class DeviceMount:
    """A device of the host. `permissions` are letters of `rwm`."""

    src_path: str
    dst_path: str
    permissions: str = "rwm"


Mount = BindMount | VolumeMount | DeviceMount


@dataclass(frozen=True)
class Role:
    """Replicas of one command. A replica is a node (a container, a task of Slurm), not a rank.

    `min_replicas` is the least number with which the job may run; None for all. `args` and the
    values of `env` and `metadata` may have macros for values that only the scheduler knows
    (`job/macros.py`).
    """

    name: str
    image: str
    min_replicas: int | None = None
    entrypoint: str = "<MISSING>"
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=_nothing)
    num_replicas: int = 1
    max_retries: int = 0
    retry_policy: RetryPolicy = RetryPolicy.APPLICATION
    resource: Resource = UNSPECIFIED
    port_map: Mapping[str, int] = field(default_factory=_nothing)
    metadata: Mapping[str, Any] = field(default_factory=_nothing)
    mounts: Sequence[Mount] = ()

    def __post_init__(self) -> None:
        if isinstance(self.args, str):  # it would become a list of letters
            raise TypeError(f"args of the role {self.name}: expected a list, not {self.args!r}")
        object.__setattr__(self, "args", tuple(self.args))
        object.__setattr__(self, "mounts", tuple(self.mounts))


@dataclass(frozen=True)
class AppDef:
    """A job: its roles run and end together."""

    name: str
    roles: Sequence[Role] = ()
    metadata: Mapping[str, str] = field(default_factory=_nothing)

    def __post_init__(self) -> None:
        object.__setattr__(self, "roles", tuple(self.roles))
