"""A generation and its nodes -> every rank, and the environment that tells a worker its own.

Source of the names and their meaning: torch.distributed.elastic.agent.server.api (torch 2.13),
`_assign_worker_ranks` and `LocalElasticAgent._start_workers`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from relight.errors import UsageError


class Node(NamedTuple):
    """A member of a generation: who it is and what it brings."""

    id: str
    host: str
    local_world_size: int
    role: str


class Generation(NamedTuple):
    """An agreed membership, replaced whole. `nodes` are in rank order; `restart` counts failures
    only.
    """

    number: int
    restart: int
    nodes: tuple[Node, ...]
    master_addr: str
    master_port: int
    cause: str

    @property
    def world_size(self) -> int:
        """The number of workers of all nodes."""
        return sum(node.local_world_size for node in self.nodes)


class Assignment(NamedTuple):
    """The place of one worker in a generation."""

    local_rank: int
    rank: int
    world_size: int
    local_world_size: int
    group_rank: int
    group_world_size: int
    role: str
    role_rank: int
    role_world_size: int


def assign(nodes: Sequence[Node], group_rank: int) -> list[Assignment]:
    """Return the assignments of the workers of one node, in the order of their local ranks.

    Ranks count through the nodes in order; role ranks count likewise, but only workers of that
    role.
    """
    own = nodes[group_rank]
    before = nodes[:group_rank]
    first_rank = sum(node.local_world_size for node in before)
    first_role_rank = sum(node.local_world_size for node in before if node.role == own.role)
    return [
        Assignment(
            local_rank=local_rank,
            rank=first_rank + local_rank,
            world_size=sum(node.local_world_size for node in nodes),
            local_world_size=own.local_world_size,
            group_rank=group_rank,
            group_world_size=len(nodes),
            role=own.role,
            role_rank=first_role_rank + local_rank,
            role_world_size=sum(n.local_world_size for n in nodes if n.role == own.role),
        )
        for local_rank in range(own.local_world_size)
    ]


def worker_variables(
    assignment: Assignment, generation: Generation, *, agent_store: bool, virtual: bool
) -> dict[str, str]:
    """Return the variables that tell a worker its place.

    Args:
        assignment: the worker's place.
        generation: the generation it belongs to.
        agent_store: whether the agent serves MASTER_PORT, so that every rank is a client of it.
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


def visible_device(variable: str | None, local_rank: int) -> str:
    """Return CUDA_VISIBLE_DEVICES for one worker of `--virtual-local-rank`.

    Args:
        variable: the agent's CUDA_VISIBLE_DEVICES, None if unset: then devices are numbered from 0.
        local_rank: the worker's real local rank.

    Raises:
        UsageError: the list has no entry for this worker.
    """
    if variable is None:
        return str(local_rank)
    devices = variable.split(",")
    if local_rank >= len(devices) or not variable:
        raise UsageError(
            f"CUDA_VISIBLE_DEVICES={variable} has no device for local rank {local_rank}",
            hint="start fewer workers or list more devices",
        )
    return devices[local_rank]
