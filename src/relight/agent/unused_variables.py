"""Notes about environment variables that users expect to have an effect, but that relight doesn't
read. This module is loaded only if such a variable is set.
"""

from collections.abc import Mapping

from relight.flags.spec import LaunchSpec

_OF_A_WORKER = ("LOCAL_RANK", "TORCHELASTIC_RUN_ID")
_PLACE = {"master-addr", "master-port", "rdzv-endpoint"}


def notes(
    spec: LaunchSpec, given: set[str], variables: Mapping[str, str], local_world_size: int
) -> list[str]:
    """Return a note for each unused variable.

    Args:
        spec: the launch options, with the cluster's settings.
        given: the flags set by the user or the cluster.
        variables: the environment.
        local_world_size: the number of workers on this node.
    """
    if any(name in variables for name in _OF_A_WORKER):
        return []  # they were set by another launcher, which knows better
    found = []
    place = [name for name in ("MASTER_ADDR", "MASTER_PORT") if variables.get(name)]
    if place and spec.runs_locally() and not spec.standalone and not _PLACE & given:
        port = variables.get("MASTER_PORT") or "PORT"
        shown = ", ".join(f"{name}={variables[name]}" for name in place)
        found.append(
            f"{shown}: no effect, as in torchrun; in a single-node job, workers rendezvous at a "
            f"free port (set it with --master-port={port})"
        )
    devices = [each for each in variables.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
    if len(devices) > 1 and local_world_size == 1 and "nproc-per-node" not in given:
        found.append(
            f"starting 1 worker, which sees all {len(devices)} devices in CUDA_VISIBLE_DEVICES; "
            f"--nproc-per-node={len(devices)} starts one per device, --nproc-per-node=1 hides "
            "this note"
        )
    return found
