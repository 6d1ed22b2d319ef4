"""Notes about environment variables that users expect to have an effect, but that relight doesn't
read. This module is loaded only if such a variable is set.
"""

from collections.abc import Iterable, Mapping

from relight.base.text import closest_match
from relight.flags.spec import FLAGS, LaunchSpec

_OF_A_WORKER = ("LOCAL_RANK", "TORCHELASTIC_RUN_ID")
_PLACE = ("master-addr", "master-port", "rdzv-endpoint")
_DEVICES = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""ROCm prefers the first of them."""
_SIMILARITY = 0.82
"""The minimum similarity of a misspelled name (difflib)."""


def notes(
    spec: LaunchSpec,
    given: set[str],
    variables: Mapping[str, str],
    local_world_size: int,
    unknown: Iterable[str] = (),
) -> list[str]:
    """Return a note for each unused variable.

    Args:
        spec: the launch options, with the cluster's settings.
        given: the flags set by the user or the cluster.
        variables: the environment.
        local_world_size: the number of workers on this node.
        unknown: the variables from `unknown_variables`.
    """
    if any(name in variables for name in _OF_A_WORKER):
        return []  # they were set by another launcher, which knows better
    found = _address_notes(spec, given, variables) if spec.runs_locally() else []
    found += _misspelled(unknown)
    name = next((name for name in _DEVICES if variables.get(name)), "")
    count = len(list(filter(None, variables.get(name, "").split(","))))
    if count > 1 and local_world_size == 1 and "nproc-per-node" not in given:
        found.append(
            f"starting 1 worker, which sees all {count} devices in {name}; "
            f"--nproc-per-node={count} starts one per device, --nproc-per-node=1 hides this note"
        )
    return found


def _address_notes(spec: LaunchSpec, given: set[str], variables: Mapping[str, str]) -> list[str]:
    """Return a note about MASTER_ADDR and MASTER_PORT in a single-node job. No note is needed for
    values that were also passed as flags.
    """
    flags = [name for name in _PLACE if name in given and not spec.standalone]
    endpoint = spec.rdzv_endpoint
    chosen = (spec.master_addr, str(spec.master_port), endpoint.host, str(endpoint.port))
    place = {name: variables.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT")}
    place = {name: x for name, x in place.items() if x and not (flags and x in chosen)}
    if not place:
        return []
    if flags:
        why = f"the address comes from {' and '.join(f'--{name}' for name in flags)}"
    elif spec.standalone:
        why = "with --standalone, workers rendezvous at a free port"
    else:
        port = variables.get("MASTER_PORT") or "PORT"
        why = "in a single-node job, workers rendezvous at a free port "
        why += f"(set it with --master-port={port})"
    shown = ", ".join(f"{name}={value}" for name, value in place.items())
    return [f"{shown}: no effect, as in torchrun; {why}"]


def _misspelled(unknown: Iterable[str]) -> list[str]:
    """Return a note for each variable whose name is similar to a flag's variable, or is equal to it
    except for the prefix. Other unknown variables may belong to the script.
    """
    by_name = {flag.source.partition("_")[2]: flag.source for flag in FLAGS if flag.source}
    found = []
    for variable in unknown:
        meant = closest_match(variable.partition("_")[2], list(by_name), cutoff=_SIMILARITY)
        if meant:
            found.append(f"{variable} is ignored; did you mean {by_name[meant]}?")
    return found
