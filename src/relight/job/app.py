"""Describes a job independently of its scheduler: an app has roles, and a role has replicas that
all run the same command.

Names and meanings match TorchX's specs (nightly 2026-10), so that only one line of a TorchX
component file has to be changed. The types are plain dataclasses, because code written for TorchX
copies, pickles and modifies them. A runner works on its own copy. `to_json` and `from_json` are in
`job/serial.py`.
"""

import inspect
import os
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from threading import Lock, RLock
from types import MappingProxyType
from typing import Any, ClassVar

from relight.base.errors import UsageError
from relight.base.text import did_you_mean
from relight.job.states import AppState as AppState

NOTHING: Mapping[str, Any] = MappingProxyType({})


class RetryPolicy(StrEnum):
    """The scope of a restart after a replica failure: the replica, its role, or the whole app."""

    REPLICA = "REPLICA"
    ROLE = "ROLE"
    APPLICATION = "APPLICATION"


NAME_TAG = "torchx/named_resources.name"
FRACTIONAL_TAG = "torchx/named_resources.is_fractional"


@dataclass
class Resource:
    """The resources that one replica needs. -1 means unspecified.

    The `cpu` field is the number of logical cores, `gpu` the number of devices, and `memMB` is in
    MiB. The `devices` field maps the Kubernetes names of extended resources to amounts.
    """

    cpu: int
    gpu: int
    memMB: int  # noqa: N815  # the name in TorchX and of the flag
    capabilities: dict[str, Any] = field(default_factory=dict)
    devices: dict[str, int] = field(default_factory=dict)
    tags: dict[str, Any] = field(default_factory=dict)

    def is_fractional(self) -> bool:
        """Return whether this is a slice of a larger named resource, according to its tags."""
        return bool(self.tags.get(FRACTIONAL_TAG))

    def get_resource_name(self) -> str | None:
        """Return the name of this named resource, or None."""
        name = self.tags.get(NAME_TAG)
        return None if name is None else str(name)

    @staticmethod
    def copy(original: "Resource", **capabilities: Any) -> "Resource":
        """Return a copy of a resource with additional capabilities."""
        return replace(
            original,
            capabilities={**original.capabilities, **capabilities},
            devices={**original.devices},
            tags={**original.tags},
        )


def unspecified() -> Resource:
    """Return a resource that doesn't specify any requirements."""
    return Resource(-1, -1, -1)


NULL_RESOURCE = unspecified()


@dataclass
class BindMount:
    """A directory or file on the host that replicas can access."""

    src_path: str
    dst_path: str
    read_only: bool = False


@dataclass
class VolumeMount:
    """A named volume managed by the scheduler."""

    src: str
    dst_path: str
    read_only: bool = False


@dataclass
class DeviceMount:
    """A device on the host that replicas can access. The `permissions` field is a combination of
    the letters `rwm`.
    """

    src_path: str
    dst_path: str
    permissions: str = "rwm"


Mount = BindMount | VolumeMount | DeviceMount


@dataclass
class Workspace:
    """Local directories and files to copy, each with its target directory in the copy. An empty
    target means the root of the copy.
    """

    projects: dict[str, str]

    @staticmethod
    def from_str(workspace: str | None) -> "Workspace":
        """Parse the syntax of `--workspace`."""
        from relight.job import workspaces

        return Workspace(dict(workspaces.pairs(workspace)) if workspace else {})

    def is_unmapped_single_project(self) -> bool:
        """Return whether there is exactly one directory and it is copied to the root."""
        return list(self.projects.values()) == [""]

    def merge_into(self, outdir: str | os.PathLike[str]) -> None:
        """Copy everything to a directory, except the files that `.relightignore` excludes.

        Raises:
            UsageError: if a path doesn't exist, or its target is outside the directory.
            MachineError: if a file can't be read or written.
        """
        from relight.job import workspaces

        if self.projects:
            workspaces.pack(str(self), os.fspath(outdir))

    def __bool__(self) -> bool:
        return bool(self.projects)

    def __hash__(self) -> int:
        return hash(frozenset(self.projects.items()))

    def __str__(self) -> str:
        """Return the workspace in the syntax of `--workspace`."""
        return ";".join(
            f"{path}:{below}" if below else path for path, below in self.projects.items()
        )


@dataclass
class Role:
    """A set of replicas that run the same command. A replica is a node (such as a container or a
    Slurm task), not a rank.

    The `min_replicas` field is the minimum number of replicas that the job needs to run, or None
    for all of them. `args` and the values of `env` and `metadata` may contain macros for values
    that only the scheduler knows (`job/macros.py`). The `overrides` field maps field names to
    functions or awaitables that return the field's value. Each is called or awaited once, when its
    field is first read.
    """

    name: str
    image: str
    min_replicas: int | None = None
    entrypoint: str = "<MISSING>"
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    num_replicas: int = 1
    max_retries: int = 0
    retry_policy: RetryPolicy = RetryPolicy.APPLICATION
    resource: Resource = field(default_factory=unspecified)
    port_map: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    mounts: list[Mount] = field(default_factory=list)
    workspace: Workspace | None = None
    overrides: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.args, str):  # it would become a list of characters
            raise TypeError(f"args of role {self.name}: expected a list, not {self.args!r}")
        self.args = list(self.args)
        self.mounts = list(self.mounts)

    def __getattribute__(self, name: str) -> Any:
        own = object.__getattribute__(self, "__dict__")
        overrides = own.get("overrides")
        if not overrides or name not in overrides:
            return object.__getattribute__(self, name)
        return _once(overrides, name, f"role {own.get('name')}")()

    @property
    def least_replicas(self) -> int:
        """The minimum number of replicas that the job needs to run."""
        return self.num_replicas if self.min_replicas is None else self.min_replicas

    @property
    def is_elastic(self) -> bool:
        """Whether the job can run with fewer than its maximum number of replicas."""
        return self.least_replicas < self.num_replicas

    def pre_proc(self, scheduler: str, dryrun_info: Any) -> Any:  # noqa: ARG002
        """Return the scheduler's request unchanged. A subclass may modify the request, as in
        TorchX.
        """
        return dryrun_info


@dataclass
class AppDef:
    """A job with its roles. All roles of a job start and end together."""

    name: str
    roles: list[Role] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.roles = list(self.roles)

    def get_role(self, name: str) -> Role:
        """Return the role with this name.

        Raises:
            KeyError: if the name is unknown.
        """
        found = self._find_role(name)
        if found is not None:
            return found
        known = [role.name for role in self.roles]
        hint = did_you_mean(name, known, f"it has {', '.join(known) or 'no roles'}")
        raise KeyError(f"app {self.name} has no role {name}; {hint}")

    __iter__: ClassVar[None] = None
    """As in TorchX, `for role in app` raises TypeError, instead of calling `__getitem__(0)`."""

    def __getitem__(self, name: str) -> Role:
        """Return the role with this name, as `get_role` does."""
        return self.get_role(name)

    def __contains__(self, name: object) -> bool:
        """Return whether a role has this name."""
        return self._find_role(name) is not None

    def _find_role(self, name: object) -> Role | None:
        return next((role for role in self.roles if role.name == name), None)


class _Once:
    """An override that calls or awaits its producer only once, even if several threads need the
    value. After an error, the next read tries again.
    """

    def __init__(self, producer: Any, what: str) -> None:
        self._producer, self._what = producer, what
        self._lock = RLock()  # the producer may read its own role
        self._value: tuple[Any, ...] = ()

    def __call__(self) -> Any:
        awaitable = inspect.isawaitable(self._producer)
        if awaitable and not self._value:
            # Before the lock: another thread may hold it and wait for this thread's event loop.
            _check_loop(self._producer, self._what)
        with self._lock:
            if not self._value:
                value = _awaited(self._producer) if awaitable else self._producer()
                self._value = (value,)
            return self._value[0]

    def __reduce__(self) -> Any:  # a lock can't be copied
        if self._value:
            return partial, (_same, *self._value)
        return _Once, (self._producer, self._what)


_wrapping = Lock()


def _once(overrides: dict[str, Any], name: str, role: str) -> Any:
    with _wrapping:
        found = overrides[name]
        if not isinstance(found, _Once):
            found = overrides[name] = _Once(found, f"override {name} of {role}")
    return found


def _same(value: Any) -> Any:
    return value


def _check_loop(awaitable: Awaitable[Any], what: str) -> None:
    """Reject a pending task whose event loop can't run while this thread waits for the task.

    Raises:
        UsageError: if the loop is closed, or is running in this thread.
    """
    import asyncio

    if not isinstance(awaitable, asyncio.Future) or awaitable.done():
        return
    loop = awaitable.get_loop()
    if loop is asyncio._get_running_loop() or loop.is_closed():
        why = "closed" if loop.is_closed() else "blocked while the field is read"
        raise UsageError(
            f"{what} needs an event loop that is {why}",
            hint="await the task before the field is read, or pass a coroutine",
        )


def _awaited(awaitable: Awaitable[Any]) -> Any:
    # This import takes 30 ms and is only needed for images that are still being built.
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    async def wait() -> Any:
        return await awaitable

    with ThreadPoolExecutor(1) as thread:  # an event loop may be running in this thread
        if not isinstance(awaitable, asyncio.Future):
            return thread.submit(asyncio.run, wait()).result()
        if awaitable.done():
            return awaitable.result()
        loop = awaitable.get_loop()
        if loop.is_running():
            return asyncio.run_coroutine_threadsafe(wait(), loop).result()
        return thread.submit(loop.run_until_complete, awaitable).result()
