"""`--numa-binding`: each worker may only use the CPUs near its GPU."""

import os
import tempfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import fake_machine as fake
import pytest
from conftest import Launch
from fake_machine import DUAL_SOCKET, EPYC, SMALL, Layout
from hypothesis import given, settings
from hypothesis import strategies as st

from relight.base.env import Environment
from relight.base.errors import UsageError
from relight.host.numa import bind

pytestmark = pytest.mark.forked

MODES = ("node", "socket", "exclusive", "core-complex")
NOTHING_SET = Environment({})
PCI = "bus/pci/devices"
CPU = "devices/system/cpu/cpu"


@cache
def temporary_root() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


@cache
def tree(layout: Layout) -> Path:
    """Create a layout's CPUs once. They are a thousand files that no test changes."""
    root = Path(tempfile.mkdtemp(dir=temporary_root().name))
    fake.add_cpus(root, layout)
    return root


@pytest.fixture(autouse=True, scope="module")
def remove_trees() -> Iterator[None]:
    yield
    build_machine.cache_clear()
    tree.cache_clear()
    temporary_root().cleanup()
    temporary_root.cache_clear()


def machine(root: Path, layout: Layout, gpu_nodes: tuple[int, ...] = ()) -> str:
    """Create a machine whose GPU with index i is on NUMA node `gpu_nodes[i]`."""
    (root / "sys").mkdir()
    (root / "sys/devices").symlink_to(tree(layout) / "sys/devices")
    for index, node in enumerate(gpu_nodes):
        minor = len(gpu_nodes) - 1 - index
        fake.add_nvidia(root, f"0000:{0x10 + index:02x}:00.0", minor, node=node)
    return str(root)


def masks(
    mode: str, nproc: int, layout: Layout, root: str, env: Environment = NOTHING_SET
) -> list[str]:
    """Bind with all CPUs allowed, and return the masks as lists such as `0-3,8`."""
    bound = bind(mode, nproc, env, root, layout.every_cpu())
    return [fake.cpu_list(set(mask)) for mask in bound]


NODE = ["0-7,32-39", "8-15,40-47", "16-23,48-55", "24-31,56-63"]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("node", [node for node in NODE for _ in range(2)]),
        ("socket", ["0-15,32-47"] * 4 + ["16-31,48-63"] * 4),
        (
            "exclusive",
            [f"{4 * gpu}-{4 * gpu + 3},{32 + 4 * gpu}-{35 + 4 * gpu}" for gpu in range(8)],
        ),
        ("core-complex", [node for node in NODE for _ in range(2)]),
    ],
)
def test_every_mode_binds_as_documented_on_eight_gpu_server(
    tmp_path: Path, mode: str, expected: list[str]
) -> None:
    """The server has 4 NUMA nodes, SMT, and 2 GPUs per node."""
    root = machine(tmp_path, DUAL_SOCKET, (0, 0, 1, 1, 2, 2, 3, 3))
    assert masks(mode, 8, DUAL_SOCKET, root) == expected


def test_worker_is_bound_near_its_gpu_regardless_of_rank(tmp_path: Path) -> None:
    """GPUs may be distributed over the nodes in any order."""
    root = machine(tmp_path, DUAL_SOCKET, (3, 1, 3, 0))
    assert masks("node", 4, DUAL_SOCKET, root) == [NODE[3], NODE[1], NODE[3], NODE[0]]


def test_cuda_visible_devices_assigns_gpus_to_workers(tmp_path: Path) -> None:
    """It lists GPUs by number, by UUID, or by an old-style MIG instance name."""
    root = machine(tmp_path, DUAL_SOCKET, (0, 1, 2, 3))
    for text, expected in (
        ("3,1", [NODE[3], NODE[1]]),
        (f"{fake.uuid_of(0)},GPU-33", [NODE[3], NODE[0]]),
        (f"MIG-{fake.uuid_of(1)}/1/0", [NODE[2]]),
    ):
        env = Environment({"CUDA_VISIBLE_DEVICES": text})
        assert masks("node", len(expected), DUAL_SOCKET, root, env) == expected


def test_numa_nodes_of_amd_and_intel_gpus_are_found(tmp_path: Path) -> None:
    root = machine(tmp_path, DUAL_SOCKET)
    fake.add_intel(tmp_path, 128, "0000:18:00.0", tiles=2, node=1)
    fake.add_intel(tmp_path, 129, "0000:9a:00.0", tiles=1, node=2)
    assert masks("node", 3, DUAL_SOCKET, root) == [NODE[1], NODE[1], NODE[2]]
    for number, node in ((4, 3), (5, 0)):
        fake.add_amd_node(tmp_path, number, f"0002:0{number}:1f.0", node=node)
    assert masks("node", 2, DUAL_SOCKET, root) == [NODE[3], NODE[0]]
    env = Environment({"HIP_VISIBLE_DEVICES": "1"})
    assert masks("node", 1, DUAL_SOCKET, root, env) == [NODE[0]]


def test_leftover_cores_go_to_lowest_local_ranks(tmp_path: Path) -> None:
    """A node's cores can't always be divided evenly."""
    root = machine(tmp_path, Layout(cores=8), (0, 0, 0))
    assert masks("exclusive", 3, Layout(cores=8), root) == ["0-2", "3-5", "6-7"]


def test_gpu_without_worker_keeps_its_share_of_cpus(tmp_path: Path) -> None:
    """With fewer workers than visible GPUs, the CPUs are still divided among the GPUs."""
    root = machine(tmp_path, SMALL, (0, 0, 0, 0))
    assert masks("exclusive", 2, SMALL, root) == ["0", "1"]
    env = Environment({"CUDA_VISIBLE_DEVICES": "0,3"})
    assert masks("exclusive", 2, SMALL, root, env) == ["0-1", "2-3"]


def test_core_complexes_are_assigned_round_robin_largest_first(tmp_path: Path) -> None:
    """With caches of 4, 4 and 2 cores, the fourth worker shares the first cache again."""
    root = machine(tmp_path, EPYC, (0, 0, 0, 0, 1))
    first = ["0-3,20-23", "4-7,24-27", "8-9,28-29", "0-3,20-23"]
    assert masks("core-complex", 5, EPYC, root) == [*first, "10-13,30-33"]
    # Only usable CPUs count: the first cache has 3 of them and the third has 4.
    bound = bind("core-complex", 2, NOTHING_SET, root, frozenset({0, 1, 20, 8, 9, 28, 29, 11}))
    assert bound == (frozenset({8, 9, 28, 29}), frozenset({0, 1, 20}))


def test_core_complex_is_defined_by_largest_visible_data_cache(tmp_path: Path) -> None:
    """Some virtual machines only show the first level. Its instruction cache doesn't count."""
    fake.add_cpus(tmp_path, SMALL)
    for cpu in range(4):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/cache"
        fake.write(folder / "index1/shared_cpu_list", "0-3")
        for index in (2, 3):
            (folder / f"index{index}").rename(folder / f"hidden{index}")
    fake.add_nvidia(tmp_path, "0000:10:00.0", 0)
    assert masks("core-complex", 1, SMALL, str(tmp_path)) == ["0"]


def test_gpu_with_unknown_numa_node_is_assigned_to_node_0(tmp_path: Path) -> None:
    """Firmware that doesn't know a GPU's NUMA node reports -1."""
    root = machine(tmp_path, DUAL_SOCKET, (-1, 3))
    assert masks("node", 2, DUAL_SOCKET, root) == [NODE[0], NODE[3]]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("node", [{2, 3, 34}, {2, 3, 34}, {8}]),
        ("socket", [{2, 3, 34, 8}] * 3),
        ("exclusive", [{2, 34}, {3}, {8}]),
        ("core-complex", [{2, 3, 34}, {2, 3, 34}, {8}]),
    ],
)
def test_cpu_masks_stay_within_launcher_affinity(
    tmp_path: Path, mode: str, expected: list[set[int]]
) -> None:
    """A core with only one usable thread counts as a core."""
    root = machine(tmp_path, DUAL_SOCKET, (0, 0, 1))
    allowed = frozenset({2, 3, 34, 8, 99})
    assert [set(mask) for mask in bind(mode, 3, NOTHING_SET, root, allowed)] == expected


def test_cores_in_container_are_assigned_in_original_order(tmp_path: Path) -> None:
    """Cores keep their order even if only a core's second thread is usable."""
    root = machine(tmp_path, DUAL_SOCKET, (0, 0))
    bound = bind("exclusive", 2, NOTHING_SET, root, frozenset({1, 32}))
    assert bound == (frozenset({32}), frozenset({1}))


def test_gpu_without_worker_may_be_on_forbidden_numa_node(tmp_path: Path) -> None:
    """A visible GPU on a forbidden node doesn't rule out the others."""
    root = machine(tmp_path, DUAL_SOCKET, (0, 1))
    for mode in MODES:
        assert bind(mode, 1, NOTHING_SET, root, frozenset({4})) == (frozenset({4}),)


def test_socket_mode_works_if_the_gpus_own_node_is_forbidden(tmp_path: Path) -> None:
    """`socket` uses the CPUs on the socket's other node, while `node` is rejected."""
    root = machine(tmp_path, DUAL_SOCKET, (1,))
    allowed = frozenset({0, 1, 16})
    assert bind("socket", 1, NOTHING_SET, root, allowed) == (frozenset({0, 1}),)
    with pytest.raises(UsageError, match=r"GPUs on NUMA node 1, but none of the CPUs there"):
        bind("node", 1, NOTHING_SET, root, allowed)
    with pytest.raises(UsageError, match=r"none of the CPUs in its socket"):
        bind("socket", 1, NOTHING_SET, root, frozenset({16}))


def test_memory_only_numa_node_gets_no_workers(tmp_path: Path) -> None:
    """A node without CPUs doesn't affect how the others form sockets."""
    root = str(tmp_path)
    fake.add_cpus(tmp_path, SMALL)
    fake.write(tmp_path / "sys/devices/system/node/node1/cpulist", "")
    for mode in MODES[:2]:
        assert masks(mode, 2, SMALL, root) == ["0-3", "0-3"]
    fake.add_nvidia(tmp_path, "0000:10:00.0", 0, node=1)
    for mode in MODES:
        with pytest.raises(UsageError, match="GPUs on NUMA node 1"):
            masks(mode, 1, SMALL, root)


@pytest.mark.parametrize(
    ("mode", "nproc", "expected"),
    [
        ("node", 1, NODE[:1]),
        ("node", 2, [NODE[0], NODE[2]]),
        ("node", 4, NODE),
        ("node", 6, [NODE[0], NODE[0], NODE[1], NODE[2], NODE[2], NODE[3]]),
        ("socket", 4, ["0-15,32-47"] * 2 + ["16-31,48-63"] * 2),
        ("exclusive", 8, [f"{4 * i}-{4 * i + 3},{32 + 4 * i}-{35 + 4 * i}" for i in range(8)]),
        ("exclusive", 32, [f"{core},{core + 32}" for core in range(32)]),
        ("core-complex", 4, NODE),
    ],
)
def test_workers_without_gpus_are_spread_evenly_over_numa_nodes(
    tmp_path: Path, mode: str, nproc: int, expected: list[str]
) -> None:
    """They are assigned to the nodes in order."""
    assert masks(mode, nproc, DUAL_SOCKET, machine(tmp_path, DUAL_SOCKET)) == expected


def test_hidden_gpus_do_not_affect_numa_binding(tmp_path: Path) -> None:
    """Workers are spread as if there were no GPUs."""
    hidden = Environment({"CUDA_VISIBLE_DEVICES": ""})
    root = machine(tmp_path, DUAL_SOCKET, (3, 3))
    assert masks("node", 4, DUAL_SOCKET, root, hidden) == NODE


def test_workers_in_uneven_container_are_spread_by_core_count(tmp_path: Path) -> None:
    """With 1 core on one node and 7 on another, each of 8 workers still gets a core."""
    root = machine(tmp_path, DUAL_SOCKET)
    allowed = frozenset({0, 32, *range(16, 23)})
    bound = bind("exclusive", 8, NOTHING_SET, root, allowed)
    assert [*map(set, bound)] == [{0, 32}, *({cpu} for cpu in range(16, 23))]


def add_gpus(number: int, root: Path) -> None:
    for minor in range(number):
        fake.add_nvidia(root, f"0000:1{minor}:00.0", minor)


def add_gpus_without_address(root: Path) -> None:
    for minor in range(3):
        fake.write(root / f"dev/nvidia{minor}", "")


def hide_sysfs_path(path: str, root: Path) -> None:
    add_gpus(3, root)
    (root / "sys" / path).rename(root / "elsewhere")


@pytest.mark.parametrize(
    ("mode", "harm", "message"),
    [
        ("node", partial(add_gpus, 2), r"more workers \(3\) than GPUs \(2\)"),
        ("exclusive", partial(add_gpus, 5), r"node 0 .* \(4\) than GPUs \(5\)"),
        ("node", add_gpus_without_address, "don't contain the location of GPU 0"),
        (
            "node",
            partial(hide_sysfs_path, f"{PCI}/0000:11:00.0/numa_node"),
            "can't read this machine's topology",
        ),
        (
            "node",
            partial(hide_sysfs_path, "devices/system/node"),
            "can't read this machine's topology",
        ),
        (
            "exclusive",
            partial(hide_sysfs_path, f"{CPU}2/topology/thread_siblings_list"),
            "can't read this machine's topology",
        ),
        (
            "socket",
            partial(hide_sysfs_path, f"{CPU}0/topology/physical_package_id"),
            "can't read this machine's topology",
        ),
        (
            "core-complex",
            partial(hide_sysfs_path, f"{CPU}0/cache"),
            "can't read this machine's topology",
        ),
    ],
)
def test_impossible_binding_causes_one_line_error_with_hint(
    tmp_path: Path, mode: str, harm: Callable[[Path], None], message: str
) -> None:
    fake.add_cpus(tmp_path, SMALL)
    harm(tmp_path)
    with pytest.raises(UsageError, match=message) as caught:
        masks(mode, 3, SMALL, str(tmp_path))
    assert caught.value.message.startswith(f"--numa-binding={mode}: ")
    if isinstance(harm, partial) and harm.func is hide_sysfs_path:
        assert f"topology from {tmp_path}/sys/{harm.args[0]}" in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_more_workers_than_cores_must_share_cores(tmp_path: Path) -> None:
    """5 workers can't each have one of 4 cores, but they can share them."""
    root = machine(tmp_path, SMALL)
    with pytest.raises(UsageError, match=r"fewer physical cores \(4\) than workers \(5\)"):
        masks("exclusive", 5, SMALL, root)
    assert masks("node", 5, SMALL, root) == ["0-3"] * 5


def test_core_complex_mode_rejects_empty_cache_directory(tmp_path: Path) -> None:
    """Some virtual machines have one."""
    fake.add_cpus(tmp_path, SMALL)
    hide_sysfs_path(f"{CPU}0/cache", tmp_path)
    fake.write(tmp_path / "sys/devices/system/cpu/cpu0/cache/uevent", "")
    with pytest.raises(UsageError, match=r"topology from .*cpu0/cache/index\*"):
        masks("core-complex", 2, SMALL, str(tmp_path))


def test_affinity_mask_outside_topology_is_rejected(tmp_path: Path) -> None:
    root = machine(tmp_path, SMALL)
    with pytest.raises(UsageError, match="none of the allowed CPUs belongs to a NUMA node"):
        bind("node", 1, NOTHING_SET, root, frozenset({77}))


layouts = st.sampled_from(
    [
        Layout(cores=1),
        Layout(cores=5, cache=2),
        Layout(sockets=2, cores=2, threads=2, cache=1),
        Layout(nodes=2, cores=3, cache=2),
        Layout(sockets=2, nodes=2, cores=3, threads=2, cache=2),
    ]
)


@cache
def build_machine(layout: Layout, gpu_nodes: tuple[int, ...]) -> str:
    """Create each machine once."""
    return machine(Path(tempfile.mkdtemp(dir=temporary_root().name)), layout, gpu_nodes)


@st.composite
def machines(draw: st.DrawFn) -> tuple[Layout, tuple[int, ...], frozenset[int]]:
    """Draw a layout, its GPUs' nodes, and the usable CPUs."""
    layout = draw(layouts)
    gpu_nodes = draw(st.lists(st.sampled_from([-1, *layout.all_nodes()]), max_size=4))
    every = layout.every_cpu()
    allowed = draw(st.just(every) | st.frozensets(st.sampled_from(sorted(every)), min_size=1))
    return layout, tuple(gpu_nodes), allowed


@settings(max_examples=60)
@given(machines(), st.sampled_from(MODES), st.integers(1, 8))
def test_every_cpu_mask_is_within_allowed_cpus(
    drawn: tuple[Layout, tuple[int, ...], frozenset[int]], mode: str, nproc: int
) -> None:
    """On any machine, no mask is empty, and exclusive masks share no core."""
    layout, gpu_nodes, allowed = drawn
    root = build_machine(layout, gpu_nodes)
    try:
        bound = bind(mode, nproc, NOTHING_SET, root, allowed)
    except UsageError:
        bound = ()
        # Without GPUs, only one error is possible on a machine that shows its topology.
        cores = {cpu % layout.every_core() for cpu in allowed}
        assert gpu_nodes or (mode == "exclusive" and nproc > len(cores))
    else:
        assert len(bound) == nproc
    for mask in bound:
        assert mask
        assert mask <= allowed
    if mode == "exclusive":
        shares = [{cpu % layout.every_core() for cpu in mask} for mask in bound]
        assert sum(map(len, shares)) == len(set().union(*shares))


@settings(max_examples=60)
@given(layouts, st.integers(1, 16))
def test_all_cpus_are_used_if_nodes_have_equal_worker_counts(layout: Layout, each: int) -> None:
    """With `exclusive`, each CPU is used exactly once."""
    root = build_machine(layout, ())
    nproc = min(each, layout.cores) * len(layout.all_nodes())
    for mode in ("node", "socket", "exclusive"):
        bound = bind(mode, nproc, NOTHING_SET, root, layout.every_cpu())
        assert frozenset().union(*bound) == layout.every_cpu()
    assert sum(map(len, bound)) == len(layout.every_cpu())


def torchs_masks(
    binding: object, mode: str, nproc: int, root: str, gpu_nodes: tuple[int, ...], allowed: object
) -> tuple[frozenset[int], ...]:
    """Return the masks that torch's module computes for the fake machine."""
    binding.open = lambda path: open(root + path)
    binding.os = SimpleNamespace(
        path=os.path,
        listdir=lambda path: os.listdir(root + path),
        sched_getaffinity=lambda _: set(allowed),
    )
    binding.torch = SimpleNamespace(
        cuda=SimpleNamespace(
            device_count=lambda: len(gpu_nodes),
            get_device_properties=lambda index: SimpleNamespace(
                pci_domain_id=0, pci_bus_id=0x10 + index, pci_device_id=0
            ),
        )
    )
    options = binding.NumaOptions(binding.AffinityMode(mode))
    return tuple(
        frozenset(binding._get_logical_cpus_to_bind_to(gpu_index=index, numa_options=options))
        for index in range(nproc)
    )


@pytest.fixture(scope="module")
def torch_binding() -> object:
    """Return a private copy of torch's module that can be patched."""
    import importlib.util

    spec = importlib.util.find_spec("torch.numa.binding")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.needs_torch
@settings(max_examples=30)
@given(
    machines().filter(lambda drawn: drawn[1])
    | st.tuples(
        st.sampled_from([DUAL_SOCKET, EPYC]),
        st.permutations([0, 0, 0, 1, 1, -1]).map(tuple),
        st.frozensets(st.integers(0, 63), min_size=20),
    ),
    st.sampled_from(MODES),
    st.data(),
)
def test_cpu_masks_match_torchrun(
    torch_binding: object,
    drawn: tuple[Layout, tuple[int, ...], frozenset[int]],
    mode: str,
    data: st.DataObject,
) -> None:
    """Where torchrun fails, relight rejects the binding, except that `socket` tolerates forbidden
    nodes elsewhere.
    """
    layout, gpu_nodes, allowed = drawn
    nproc = data.draw(st.integers(1, len(gpu_nodes)))
    root = build_machine(layout, gpu_nodes)
    try:
        expected = torchs_masks(torch_binding, mode, nproc, root, gpu_nodes, allowed)
    except (RuntimeError, ValueError, ZeroDivisionError):
        expected = ()
    try:
        found = bind(mode, nproc, NOTHING_SET, root, allowed)
    except UsageError:
        found = ()
    if mode == "socket" and not expected:
        assert any(not layout.cpus_of(node) & allowed for node in layout.all_nodes())
    else:
        assert found == (expected if all(expected) else ())


@pytest.mark.parametrize("mode", MODES)
def test_workers_run_on_the_cpus_they_are_bound_to(
    launch: Launch, script: Callable[[str], Path], mode: str
) -> None:
    """Each worker in a real run may use exactly the CPUs in its mask. A mode that the machine
    can't support exits with code 2 before any worker starts.
    """
    path = script(
        "import os; print(os.environ['LOCAL_RANK'], *sorted(os.sched_getaffinity(0)), flush=True)"
    )
    hidden = {"CUDA_VISIBLE_DEVICES": "", "ZE_AFFINITY_MASK": "99"}
    result = launch("run", "--nproc-per-node=2", f"--numa-binding={mode}", path, **hidden)
    try:
        expected = bind(mode, 2, Environment(hidden))
    except UsageError as error:
        assert (result.returncode, result.stdout) == (2, "")
        assert f"relight: error: {error.message}\n" in result.stderr
        return
    assert result.returncode == 0, result.stderr
    lines = [" ".join(map(str, [rank, *sorted(mask)])) for rank, mask in enumerate(expected)]
    assert sorted(result.stdout.splitlines()) == lines


def test_exclusive_mode_with_too_few_cores_exits_with_code_2(
    launch: Launch, script: Callable[[str], Path]
) -> None:
    """It prints one line and a hint."""
    cpus = len(os.sched_getaffinity(0))
    result = launch(
        "run",
        f"--nproc-per-node={cpus + 1}",
        "--numa-binding=exclusive",
        script("print('started')"),
        CUDA_VISIBLE_DEVICES="",
        ZE_AFFINITY_MASK="99",
    )
    assert (result.returncode, result.stdout) == (2, "")
    error, hint = result.stderr.splitlines()
    assert error.startswith("relight: error: --numa-binding=exclusive: ")
    assert hint.startswith("hint: ")
