"""Opens the registry for a rendezvous backend: etcd, a shared directory, or a plug-in.

A plug-in is an entry point in the group `relight.rendezvous`. Its name is the backend's name, and
it refers to a `leader_lock.Open`. See CONTRIBUTING.md, "A new way for nodes to meet".
"""

from collections.abc import Mapping
from typing import cast

from relight.base import plugins
from relight.base.errors import UsageError
from relight.base.values import BACKENDS
from relight.rendezvous.leader_lock import ENTRY_POINTS, LeaderLock, Open

_OF_TORCH = "torchrun.handlers"
"""torchrun's entry point group for rendezvous handlers (torch 2.13,
elastic/rendezvous/registry.py).
"""
_OF_PROCESS_GROUPS = ("nccl", "gloo", "mpi", "ucc", "xccl", "hccl")
_PARTS = ("hold", "evict", "release", "close", "own_address")


def open(backend: str, endpoint: str, job: str, pairs: Mapping[str, str]) -> LeaderLock:
    """Return a job's registry for `--rdzv-backend`, without contacting the registry yet.

    Raises:
        UsageError: if the backend is unknown, or doesn't support this endpoint or these settings.
    """
    # Each registry is loaded only when it is used.
    if backend in ("etcd", "etcd-v2"):
        from relight.rendezvous import etcd

        return etcd.open(endpoint, job, pairs, backend)
    if backend == "file":
        from relight.rendezvous import file

        return file.open(endpoint, job)
    plug_in = _load(backend)
    try:
        register: object = plug_in(endpoint, job, pairs)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"--rdzv-backend={backend}: the plug-in can't open {endpoint}: {error!r}",
            hint="report this to the plug-in's authors",
        ) from None
    missing = [name for name in _PARTS if not hasattr(register, name)]
    if missing:
        raise UsageError(
            f"--rdzv-backend={backend}: the plug-in returned {register!r:.80}, which lacks "
            f"{', '.join(missing)}",
            hint="report this to the plug-in's authors",
        )
    return cast("LeaderLock", register)


def check(backend: str) -> None:
    """Check that a backend name is known.

    Raises:
        UsageError: if the backend is unknown. The error lists the known backends.
    """
    if backend in BACKENDS:
        return
    known = (*BACKENDS, *sorted(plugins.find(ENTRY_POINTS)))
    if backend not in known and (point := plugins.find(_OF_TORCH).get(backend)):
        raise UsageError(
            f"--rdzv-backend={backend} is torch's plug-in {point.value} (entry point group "
            f"{_OF_TORCH}); it requires torch, which relight does not import",
            hint=f"use one of {', '.join(known)}; for relight's own plug-ins (group "
            f"{ENTRY_POINTS}), see CONTRIBUTING.md",
        )
    is_other = backend.lower() in _OF_PROCESS_GROUPS
    hint = f"--rdzv-backend says how nodes meet; {backend} goes into the script's "
    hint += "init_process_group(backend=…)"
    plugins.check("--rdzv-backend", backend, BACKENDS, ENTRY_POINTS, hint if is_other else "")


def _load(backend: str) -> Open:
    check(backend)
    point = plugins.find(ENTRY_POINTS)[backend]
    try:
        found: Open = point.load()
    except Exception as error:
        raise UsageError(
            f"--rdzv-backend={backend}: can't load the plug-in {point.value}: {error!r}",
            hint="report this to the plug-in's authors",
        ) from None
    return found
