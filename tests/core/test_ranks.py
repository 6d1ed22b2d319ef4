"""Ranks: a permutation of 0 to W-1 in node order, also counted by role."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.base.errors import UsageError
from relight.core.ranks import (
    Generation,
    GenerationId,
    NodeSize,
    assign,
    places,
    visible_devices,
    worker_variables,
)
from relight.core.workers.worker_command import OF_ONE_WORKER, with_local_rank


def nodes(*sizes_and_roles: tuple[int, str]) -> tuple[NodeSize, ...]:
    return tuple(NodeSize(size, role) for size, role in sizes_and_roles)


def test_ranks_for_mixed_nodes_and_roles_match_torchrun() -> None:
    group = nodes((2, "train"), (1, "data"), (3, "train"))
    rows = [
        (a.rank, a.local_rank, a.group_rank, a.role, a.role_rank, a.role_world_size)
        for place in places(group)
        for a in assign(place)
    ]
    assert rows == [
        (0, 0, 0, "train", 0, 5),
        (1, 1, 0, "train", 1, 5),
        (2, 0, 1, "data", 0, 1),
        (3, 0, 2, "train", 2, 5),
        (4, 1, 2, "train", 3, 5),
        (5, 2, 2, "train", 4, 5),
    ]


@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.sampled_from(["a", "b", "c"])), min_size=1, max_size=12
    )
)
def test_each_rank_is_unique_within_the_job_and_within_its_role(
    sizes: list[tuple[int, str]],
) -> None:
    """A generation's ranks are 0 to W-1, each exactly once, and so are the ranks within
    each role.
    """
    group = nodes(*sizes)
    everybody = [a for place in places(group) for a in assign(place)]
    world_size = sum(size for size, _ in sizes)
    assert [a.rank for a in everybody] == list(range(world_size))
    assert {a.world_size for a in everybody} == {world_size}
    for role in {role for _, role in sizes}:
        members = [a for a in everybody if a.role == role]
        assert [a.role_rank for a in members] == list(range(len(members)))
        assert {a.role_world_size for a in members} == {len(members)}


@pytest.mark.parametrize("virtual", [False, True])
@pytest.mark.parametrize("agent_store", [False, True])
def test_workers_receive_torchrun_environment_variables(virtual: bool, agent_store: bool) -> None:
    group = nodes((2, "default"))
    generation = Generation(GenerationId(0, "c"), 3, "10.0.0.1", 1234, "start")
    variables = worker_variables(
        assign(places(group)[0])[1], generation, agent_store=agent_store, virtual=virtual
    )
    assert variables == {
        "LOCAL_RANK": "0" if virtual else "1",
        "RANK": "1",
        "GROUP_RANK": "0",
        "ROLE_RANK": "1",
        "ROLE_NAME": "default",
        "LOCAL_WORLD_SIZE": "2",
        "WORLD_SIZE": "2",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "1234",
        "TORCHELASTIC_RESTART_COUNT": "3",
        "TORCHELASTIC_USE_AGENT_STORE": str(agent_store),
    }
    assert {*variables, "TORCHELASTIC_ERROR_FILE"} == set(OF_ONE_WORKER)


CUDA, HIP = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("variables", "local_rank", "visible"),
    [
        ({}, 3, {CUDA: "3"}),
        ({CUDA: "4,5"}, 1, {CUDA: "5"}),
        ({CUDA: "GPU-a,GPU-b"}, 0, {CUDA: "GPU-a"}),
        ({CUDA: "0,1", HIP: "4,5"}, 1, {CUDA: "5", HIP: "5"}),
        ({CUDA: "0,1", HIP: ""}, 1, {CUDA: "1"}),
    ],
)
def test_virtual_local_rank_makes_only_one_device_visible(
    variables: dict[str, str], local_rank: int, visible: dict[str, str]
) -> None:
    assert visible_devices(variables, local_rank) == visible


@pytest.mark.parametrize(
    ("variables", "local_rank"), [({CUDA: "4,5"}, 2), ({CUDA: ""}, 0), ({HIP: "4,5"}, 2)]
)
def test_missing_device_error_lists_the_devices(variables: dict[str, str], local_rank: int) -> None:
    (name,) = variables
    with pytest.raises(UsageError, match=f"{name}=.* has no device for local rank"):
        visible_devices(variables, local_rank)


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("${local_rank}", "3"),
        ("--device=cuda:${local_rank},${local_rank}", "--device=cuda:3,3"),
        ("$${local_rank}", "${local_rank}"),
        ("$$", "$$"),
        ("$local_rank ${rank} $", "$local_rank ${rank} $"),
        ("${local_rank", "${local_rank"),
    ],
)
def test_local_rank_macro_is_expanded_unless_escaped(argument: str, expected: str) -> None:
    """`${local_rank}` becomes the number, and its escape becomes the literal text. Any other text
    with a dollar sign stays as it is.
    """
    assert with_local_rank(argument, 3) == expected
