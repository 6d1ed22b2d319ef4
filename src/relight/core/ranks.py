"""Computes all ranks in a generation, and the environment variables that pass these ranks to the
workers.

The variables' names and meanings come from torch.distributed.elastic.agent.server.api (torch 2.13),
in particular `_assign_worker_ranks` and `LocalElasticAgent._start_workers`.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from relight.base.errors import UsageError


class NodeSize(NamedTuple):
    """The number of workers on one node, and their role."""

    local_world_size: int
    role: str


class GenerationId(NamedTuple):
    """The identity of a generation. The `number` field increases from one generation to the next
    and is shown to users. However, a coordinator that does not know about earlier generations
    starts at 0, so two generations may have the same number.

    The `origin` field is random and identifies the group that formed the generation.
    """

    number: int
    origin: str


NO_GENERATION = GenerationId(-1, "")


class Generation(NamedTuple):
    """The parameters of a generation, which are identical on every node. The `restart` field counts
    only failures. The `failed_host` field is the host where the previous generation failed, or a
    host that was lost, or an empty string.
    """

    id: GenerationId
    restart: int
    master_addr: str
    master_port: int
    cause: str
    failed_host: str = ""

    @property
    def number(self) -> int:
        """The generation number shown to users."""
        return self.id.number


class Place(NamedTuple):
    """One node's place in a generation, which determines its workers' ranks."""

    group_rank: int
    group_world_size: int
    first_rank: int
    world_size: int
    local_world_size: int
    role: str
    first_role_rank: int
    role_world_size: int


class Assignment(NamedTuple):
    """One worker's place in a generation."""

    local_rank: int
    rank: int
    world_size: int
    local_world_size: int
    group_rank: int
    group_world_size: int
    role: str
    role_rank: int
    role_world_size: int


def places(nodes: Sequence[NodeSize]) -> list[Place]:
    """Return each node's place. The nodes are given in rank order.

    Ranks are consecutive across the workers on all nodes. Role ranks are consecutive across the
    workers with the same role.
    """
    world_size = 0
    role_sizes: dict[str, int] = {}
    starts = []
    for node in nodes:
        starts.append((world_size, role_sizes.get(node.role, 0)))
        world_size += node.local_world_size
        role_sizes[node.role] = starts[-1][1] + node.local_world_size
    return [
        Place(
            group_rank=group_rank,
            group_world_size=len(nodes),
            first_rank=first_rank,
            world_size=world_size,
            local_world_size=node.local_world_size,
            role=node.role,
            first_role_rank=first_role_rank,
            role_world_size=role_sizes[node.role],
        )
        for group_rank, (node, (first_rank, first_role_rank)) in enumerate(
            zip(nodes, starts, strict=True)
        )
    ]


def arrange(survivors: Sequence[str | None], newcomers: Sequence[str], most: int) -> list[str]:
    """Return the nodes of the next generation in rank order.

    Survivors keep their order, newcomers take the places of lost nodes, and the remaining newcomers
    come last. Places that remain empty are removed.

    Args:
        survivors: the nodes of the last generation, with None for a lost node.
        newcomers: the new nodes, in order of arrival.
        most: the maximum number of nodes.
    """
    left = list(newcomers[::-1])
    order = [node or (left.pop() if left else None) for node in survivors]
    kept = [node for node in order if node is not None]
    return (kept + left[::-1])[:most]


def as_numbered(order: Sequence[str], numbers: Mapping[str, int]) -> list[str]:
    """Sort the numbered nodes by number, keeping the set of places that they occupy. All other
    nodes keep their places.
    """
    numbered = iter(sorted((node for node in order if node in numbers), key=numbers.__getitem__))
    return [next(numbered) if node in numbers else node for node in order]


def natural(host: str) -> tuple[tuple[bool, int, str], ...]:
    """Return a sort key that puts node2 before node10."""
    parts = ((digits, "".join(part)) for digits, part in groupby(host, str.isdecimal))
    return tuple((not digits, int(part) if digits else 0, part) for digits, part in parts)


def assign(place: Place) -> list[Assignment]:
    """Return the assignments for one node's workers, in local rank order."""
    return [
        Assignment(
            local_rank=local_rank,
            rank=place.first_rank + local_rank,
            world_size=place.world_size,
            local_world_size=place.local_world_size,
            group_rank=place.group_rank,
            group_world_size=place.group_world_size,
            role=place.role,
            role_rank=place.first_role_rank + local_rank,
            role_world_size=place.role_world_size,
        )
        for local_rank in range(place.local_world_size)
    ]


def worker_variables(
    assignment: Assignment, generation: Generation, *, agent_store: bool, virtual: bool
) -> dict[str, str]:
    """Return the environment variables that specify a worker's place.

    Args:
        assignment: the worker's place.
        generation: the worker's generation.
        agent_store: whether the agent serves MASTER_PORT, so that every rank is a client.
        virtual: whether LOCAL_RANK is 0 for every worker (`--virtual-local-rank`).
    """
    return {
        "LOCAL_RANK": "0" if virtual else str(assignment.local_rank),
        "RANK": str(assignment.rank),
        "GROUP_RANK": str(assignment.group_rank),
        "ROLE_RANK": str(assignment.role_rank),
        "ROLE_NAME": assignment.role,
        "LOCAL_WORLD_SIZE": str(assignment.local_world_size),
        "WORLD_SIZE": str(assignment.world_size),
        "GROUP_WORLD_SIZE": str(assignment.group_world_size),
        "ROLE_WORLD_SIZE": str(assignment.role_world_size),
        "MASTER_ADDR": generation.master_addr,
        "MASTER_PORT": str(generation.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(generation.restart),
        "TORCHELASTIC_USE_AGENT_STORE": str(agent_store),
    }


def visible_devices(variables: Mapping[str, str], local_rank: int) -> dict[str, str]:
    """Return the variables that make one GPU visible to a worker under `--virtual-local-rank`.

    HIP_VISIBLE_DEVICES takes precedence over CUDA_VISIBLE_DEVICES on ROCm (torch 2.15). Without
    either variable, devices are numbered from 0.

    Args:
        variables: the agent's variables.
        local_rank: the worker's real local rank.

    Raises:
        UsageError: if the list lacks an entry for this worker.
    """
    cuda, hip = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
    name = hip if variables.get(hip) else cuda
    listed = variables.get(name)
    if listed is None:
        return {cuda: str(local_rank)}
    devices = listed.split(",")
    if local_rank >= len(devices) or not listed:
        raise UsageError(
            f"{name}={listed} has no device for local rank {local_rank}",
            hint="start fewer workers or list more devices",
        )
    return dict.fromkeys([cuda, name], devices[local_rank])
