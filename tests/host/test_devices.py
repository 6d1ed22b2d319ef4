"""`--nproc-per-node=auto|gpu|cpu|xpu` counts the devices that a worker will see, without importing
torch.
"""

import os
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import fake_machine as fake
import pytest
from conftest import Launch
from hypothesis import given, settings
from hypothesis import strategies as st

from relight.base.env import Environment
from relight.base.errors import UsageError
from relight.host import devices
from relight.host.devices import accelerators, count, cpus, gpus, xpus

pytestmark = pytest.mark.forked

PCI = [f"0000:{bus:02x}:00.0" for bus in (0x0F, 0x1A, 0x2B, 0x62)]


def env(**variables: str) -> Environment:
    return Environment(variables)


@pytest.fixture
def nvidia(tmp_path: Path) -> str:
    """Create a machine with 4 GPUs whose minor numbers are in the opposite order from their
    addresses.
    """
    for index, pci in enumerate(PCI):
        fake.add_nvidia(tmp_path, pci, minor=3 - index)
    return str(tmp_path)


@pytest.fixture
def amd(tmp_path: Path) -> str:
    """Create a machine with 2 CPU nodes and 10 GPUs, with one-digit and two-digit numbers."""
    for number in (0, 1):
        fake.add_amd_node(tmp_path, number)
    for number in range(2, 12):
        pci = f"0000:{0x40 + number:02x}:00.0"
        fake.add_amd_node(tmp_path, number, pci, unique_id=0xA0_0000_0000 + number)
    return str(tmp_path)


def places(found: list[devices.Device]) -> list[str]:
    return [device.pci for device in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("2", [2]),
        ("3,0", [3, 0]),
        (" 1 , 2", [1, 2]),
        ("+1,02", [1, 2]),
        ("1gpu2,2ampere", [1, 2]),
        ("0,2,-1,1", [0, 2]),
        ("0,,1", [0]),
        ("0,4,1", [0]),
        ("0,0", []),
        ("0,7,0", []),
        ("1,GPU-33", [1]),
        (fake.uuid_of(2), [1]),
        (f"{fake.uuid_of(0)},{fake.uuid_of(3)}", [3, 0]),
        ("GPU-22,GPU-00", [1, 3]),
        ("GPU-", []),
        ("GPU-00,1", [3]),
        ("GPU-00, GPU-11", [3]),
        ("GPU-00,GPU-9,GPU-11", [3]),
        ("GPU-00,GPU-000", []),
        ("gpu-00", []),
    ],
)
def test_cuda_visible_devices_selects_and_orders_gpus(
    nvidia: str, text: str | None, expected: list[int]
) -> None:
    """GPUs are numbered by PCI address."""
    variables = {} if text is None else {"CUDA_VISIBLE_DEVICES": text}
    assert places(gpus(Environment(variables), nvidia)) == [PCI[index] for index in expected]


def test_process_sees_only_one_mig_instance(nvidia: str) -> None:
    """However many MIG instances are listed, a worker gets the first. Old-style names include
    their GPU.
    """
    new = "MIG-4f421ec4-5175-50ef-8452-d6abb13cb1d2"
    found = gpus(env(CUDA_VISIBLE_DEVICES=f"{new},MIG-5"), nvidia)
    assert [(gpu.pci, gpu.uuid) for gpu in found] == [("", new)]
    old = f"MIG-{fake.uuid_of(1)}/7/0"
    assert places(gpus(env(CUDA_VISIBLE_DEVICES=old), nvidia)) == [PCI[2]]
    assert gpus(env(CUDA_VISIBLE_DEVICES=f"{new},{new}"), nvidia) == []


def test_mig_instance_belongs_to_the_only_gpu_in_container(tmp_path: Path) -> None:
    """A MIG instance's name leads to the only GPU there is. Without any GPU, it counts
    for nothing.
    """
    visible = env(CUDA_VISIBLE_DEVICES="MIG-4f421ec4-5175-50ef-8452-d6abb13cb1d2")
    assert gpus(visible, str(tmp_path)) == []
    fake.add_nvidia(tmp_path, PCI[3], minor=5)
    assert places(gpus(visible, str(tmp_path))) == [PCI[3]]


def test_gpus_without_uuid_are_counted_by_listed_names(tmp_path: Path) -> None:
    """For a GPU that has never been used, the driver's file lacks a UUID. At most as many names
    count as there are GPUs.
    """
    for minor, pci in enumerate(PCI[:2]):
        fake.add_nvidia(tmp_path, pci, minor, uuid="GPU-????????-????-????-????-????????????")
    for text, expected in (("GPU-a", 1), ("GPU-a,GPU-b", 2), ("GPU-a,GPU-b,GPU-c", 2)):
        found = gpus(env(CUDA_VISIBLE_DEVICES=text), str(tmp_path))
        assert [gpu.pci for gpu in found] == [""] * expected
    assert places(gpus(env(CUDA_VISIBLE_DEVICES="1"), str(tmp_path))) == [PCI[1]]


def test_only_gpus_with_device_files_are_counted_in_a_container(tmp_path: Path) -> None:
    """GPUs that the driver lists but that the container can't access don't count."""
    for minor, pci in enumerate(PCI):
        fake.add_nvidia(tmp_path, pci, minor, device_file=minor in (1, 3))
    assert places(gpus(env(), str(tmp_path))) == [PCI[1], PCI[3]]
    assert places(gpus(env(CUDA_VISIBLE_DEVICES="1"), str(tmp_path))) == [PCI[3]]


def test_gpu_denied_by_device_cgroup_is_not_counted(
    nvidia: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other GPUs are numbered from 0."""
    access = os.access

    def ask(path: str, mode: int) -> bool:
        forbidden = path == f"{nvidia}/dev/nvidia3" and mode == os.R_OK | os.W_OK
        return not forbidden and access(path, mode)

    monkeypatch.setattr(os, "access", ask)
    assert places(gpus(env(CUDA_VISIBLE_DEVICES="0,1"), nvidia)) == [PCI[1], PCI[2]]


def test_device_files_are_counted_if_driver_list_is_hidden(tmp_path: Path) -> None:
    """If the driver's list is hidden, each numbered device file counts as a GPU."""
    for name in ("nvidia0", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "nvidia-caps"):
        fake.write(tmp_path / "dev" / name, "")
    assert gpus(env(), str(tmp_path)) == [devices.Device(n, "") for n in (0, 2, 10)]
    assert len(gpus(env(CUDA_VISIBLE_DEVICES="GPU-1,GPU-2"), str(tmp_path))) == 2


def test_excluded_gpus_are_not_counted_and_long_pci_domains_sort_last(tmp_path: Path) -> None:
    """Excluded GPUs are the ones that the driver ignores."""
    fake.add_nvidia(tmp_path, "10000:01:00.0", minor=0)
    fake.add_nvidia(tmp_path, "2000:00:00.0", minor=1)
    fake.add_nvidia(tmp_path, "0001:00:00.0", minor=2, excluded=True)
    assert places(gpus(env(), str(tmp_path))) == ["2000:00:00.0", "10000:01:00.0"]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, range(2, 12)),
        ({"HIP_VISIBLE_DEVICES": "9,0"}, [11, 2]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [3]),
        ({"HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "5"}, [2, 3]),
        ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "5"}, []),
        ({"ROCR_VISIBLE_DEVICES": "4,6"}, [6, 8]),
        ({"ROCR_VISIBLE_DEVICES": "4,6", "HIP_VISIBLE_DEVICES": "1"}, [8]),
        ({"ROCR_VISIBLE_DEVICES": "4,6", "HIP_VISIBLE_DEVICES": "4,6"}, []),
        ({"ROCR_VISIBLE_DEVICES": "GPU-000000a000000005"}, [5]),
        ({"HIP_VISIBLE_DEVICES": "GPU-000000a00000000b,GPU-000000a000000002"}, [11, 2]),
    ],
)
def test_hip_visible_devices_indexes_into_rocr_visible_devices(
    amd: str, variables: dict[str, str], expected: list[int]
) -> None:
    """ROCR_VISIBLE_DEVICES numbers the machine's GPUs, and HIP_VISIBLE_DEVICES numbers the
    remaining ones.
    """
    found = gpus(Environment(variables), amd)
    assert [device.number for device in found] == [*expected]
    assert places(found) == [f"0000:{0x40 + number:02x}:00.0" for number in expected]


def test_amd_gpu_is_counted_only_if_accessible(amd: str) -> None:
    """This requires /dev/kfd, its render node, and a readable entry in the topology."""
    (Path(amd) / "dev/dri/renderD130").unlink()
    (Path(amd) / "sys/class/kfd/kfd/topology/nodes/3/gpu_id").unlink()
    assert [gpu.number for gpu in gpus(env(), amd)] == [*range(4, 12)]
    (Path(amd) / "dev/kfd").unlink()
    assert gpus(env(), amd) == []


def test_amd_partitions_share_their_pci_address(tmp_path: Path) -> None:
    """Each partition counts as a GPU, with the PCI address of the whole device."""
    for number in (1, 2):
        fake.add_amd_node(tmp_path, number, "0003:c1:12.1", partition=number - 1)
    assert places(gpus(env(), str(tmp_path))) == ["0003:c1:12.1"] * 2


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, [0x18, 0x18, 0x3A, 0x3A]),
        ({"ZE_FLAT_DEVICE_HIERARCHY": "COMBINED"}, [0x18, 0x18, 0x3A, 0x3A]),
        ({"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}, [0x18, 0x3A]),
        ({"ZE_AFFINITY_MASK": "3, 0"}, [0x18, 0x3A]),
        ({"ZE_AFFINITY_MASK": "2,2,9"}, [0x3A]),
        ({"ZE_AFFINITY_MASK": ""}, [0x18, 0x18, 0x3A, 0x3A]),
        ({"ZE_AFFINITY_MASK": "9"}, []),
        ({"ZE_AFFINITY_MASK": "1.0,1.1", "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}, [0x3A]),
    ],
)
@pytest.mark.parametrize("driver", ["xe", "i915"])
def test_each_intel_tile_is_a_device_unless_mode_is_composite(
    tmp_path: Path, driver: str, variables: dict[str, str], expected: list[int]
) -> None:
    """ZE_AFFINITY_MASK selects among these devices."""
    fake.add_intel(tmp_path, 129, "0000:18:00.0", driver=driver, tiles=2)
    fake.add_intel(tmp_path, 128, "0000:3a:00.0", driver=driver, tiles=2)
    fake.add_intel(tmp_path, 130, "0000:03:00.0", driver="ast")
    fake.add_intel(tmp_path, 131, "0000:04:00.0", driver=driver, device_file=False)
    found = xpus(Environment(variables), str(tmp_path))
    assert places(found) == [f"0000:{bus:02x}:00.0" for bus in expected]


def test_integrated_intel_gpu_is_counted_only_without_other_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In that case it is an xpu with one tile. `auto` never selects it."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    root = str(tmp_path)
    fake.add_intel(tmp_path, 128, "0000:00:02.0", driver="i915", tiles=2)
    assert count("xpu", env(), root) == 1
    assert count("auto", env(), root) == 12
    fake.add_intel(tmp_path, 129, "0000:03:00.0")
    assert places(xpus(env(), root)) == places(accelerators(env(), root)) == ["0000:03:00.0"]
    assert places(xpus(env(ZE_AFFINITY_MASK="1"), root)) == ["0000:00:02.0"]


def test_auto_prefers_accelerators(
    tmp_path: Path, nvidia: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`auto` selects GPUs if any are usable, then Intel's devices, then CPUs."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    assert count("auto", env(), nvidia) == count("gpu", env(), nvidia) == 4
    assert count("auto", env(CUDA_VISIBLE_DEVICES=""), nvidia) == 6
    fake.add_intel(tmp_path, 128, "0000:18:00.0")
    fake.add_intel(tmp_path, 129, "0000:3a:00.0")
    assert count("auto", env(CUDA_VISIBLE_DEVICES=""), nvidia) == 2
    assert count("cpu", env(), nvidia) == 6


def test_missing_device_error_shows_variable_that_hides_devices(nvidia: str) -> None:
    """The error for `gpu` shows only the variable that hides them."""
    hidden = env(CUDA_VISIBLE_DEVICES="", ZE_AFFINITY_MASK="0")
    with pytest.raises(
        UsageError, match=r"(?m)no usable gpu .* with CUDA_VISIBLE_DEVICES=$"
    ) as caught:
        count("gpu", hidden, nvidia)
    assert caught.value.hint
    with pytest.raises(UsageError, match=r"(?m)no usable xpu .* with ZE_AFFINITY_MASK=0$"):
        count("xpu", hidden, nvidia)


POD = "/kubepods/burstable/pod7/c1"


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("", {}, 8),
        ("0::/", {"cpu.max": "max 100000"}, 8),
        ("0::/", {"cpu.max": "250000 100000"}, 3),
        ("0::/", {"cpu.max": "50000 100000"}, 1),
        ("0::/", {"cpu.max": "300000 100000"}, 3),
        ("0::/", {"cpu.max": "6400000 100000"}, 8),
        ("0::/a/b", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "max 100000"}, 2),
        ("0::/a/b", {"a/cpu.max": "400000 100000", "a/b/cpu.max": "100000 50000"}, 2),
        ("0::/a", {"a/b/cpu.max": "100000 100000"}, 8),
        # The path is relative to the host, and the mount is the container's own root.
        (f"0::{POD}", {"cpu.max": "150000 100000"}, 2),
        ("0::/../../x", {"cpu.max": "max 100000"}, 8),
        (
            "5:memory:/m\n4:cpu,cpuacct:/d\n0::/",
            {"cpu,cpuacct/d/cpu.cfs_quota_us": 200000, "cpu,cpuacct/d/cpu.cfs_period_us": 100000},
            2,
        ),
        (
            "4:cpuacct,cpu:/d",
            {"cpu/cpu.cfs_quota_us": 350000, "cpu/cpu.cfs_period_us": 100000},
            4,
        ),
        (
            "4:cpu:/d/e",
            {
                "cpu/d/e/cpu.cfs_quota_us": -1,
                "cpu/d/e/cpu.cfs_period_us": 100000,
                "cpu/d/cpu.cfs_quota_us": 100000,
                "cpu/d/cpu.cfs_period_us": 100000,
            },
            1,
        ),
        ("3:cpuset:/d\n2:cpuacct:/d", {"cpuset/d/cpu.cfs_quota_us": 100000}, 8),
        ("0::/u", {"unified/u/cpu.max": "100000 100000"}, 1),
        ("malformed", {}, 8),
    ],
)
def test_cpu_count_is_limited_by_affinity_mask_and_quota(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cgroup: str,
    files: dict[str, object],
    expected: int,
) -> None:
    """The affinity mask is limited by the smallest quota in the enclosing cgroups, v1 or v2."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    fake.write(tmp_path / "proc/self/cgroup", cgroup)
    for name, text in files.items():
        fake.write(tmp_path / "sys/fs/cgroup" / name, text)
    assert cpus(str(tmp_path)) == expected


def test_non_utf8_cgroup_name_causes_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_bytes(b"0::/\xff\n")
    folder = os.fsencode(tmp_path) + b"/sys/fs/cgroup/\xff"
    os.makedirs(folder)
    with open(folder + b"/cpu.max", "w") as file:
        file.write("200000 100000")
    assert cpus(str(tmp_path)) == 2


@pytest.fixture
def where(script: Callable[[str], Path]) -> Path:
    return script("import os; print('local size', os.environ['LOCAL_WORLD_SIZE'])")


@pytest.mark.parametrize("word", ["cpu", "auto"])
def test_run_starts_one_worker_per_cpu(launch: Launch, where: Path, word: str) -> None:
    """`relight run` resolves `auto`. With the GPUs hidden, it starts one worker per CPU."""
    if accelerators(env(CUDA_VISIBLE_DEVICES="")):
        pytest.skip("this machine has GPUs that CUDA_VISIBLE_DEVICES does not hide")
    result = launch("run", f"--nproc-per-node={word}", where, CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [f"local size {cpus()}"] * cpus()


@pytest.mark.parametrize("word", ["gpu", "xpu"])
def test_run_rejects_missing_device(launch: Launch, where: Path, word: str) -> None:
    """It exits with code 2, one line and a hint, without starting a worker."""
    result = launch(
        "run", f"--nproc-per-node={word}", where, CUDA_VISIBLE_DEVICES="", ZE_AFFINITY_MASK="99"
    )
    assert (result.returncode, result.stdout) == (2, "")
    error, hint = result.stderr.splitlines()
    assert error.startswith(f"relight: error: --nproc-per-node={word}: no usable {word}")
    assert hint.startswith("hint: ")


numbers = st.sampled_from(["0", "1", "2", "3", "4", "-1", "", " 2", "+3", "1x", "x", "GPU-0", "07"])
names = st.sampled_from(["GPU-00", "GPU-1", "GPU-", "GPU-2200d5", "GPU-9", "1", "", " GPU-33"])


@pytest.mark.slow
@pytest.mark.needs_torch
@settings(max_examples=400)
@given(text=st.lists(numbers).map(",".join) | st.lists(names).map(",".join))
def test_relight_and_torch_count_the_same_gpus(text: str) -> None:
    """Torch reads CUDA_ and HIP_VISIBLE_DEVICES in the same way."""
    import torch.cuda

    listed = [devices.Device(n, pci, fake.uuid_of(3 - n)) for n, pci in enumerate(PCI)]
    uuids = [device.uuid for device in listed]
    with (
        mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": text}),
        mock.patch.object(torch.cuda, "_raw_device_count_nvml", lambda: 4),
        mock.patch.object(torch.cuda, "_raw_device_uuid_nvml", lambda: uuids),
        mock.patch.object(devices, "_nvidia", lambda _: listed),
    ):
        assert len(gpus(env(CUDA_VISIBLE_DEVICES=text))) == torch.cuda._device_count_nvml()
    serials = [uuid.removeprefix("GPU-") for uuid in uuids]
    with (
        mock.patch.dict(os.environ, {"HIP_VISIBLE_DEVICES": text}),
        mock.patch.object(torch.version, "hip", "6.4"),
        mock.patch.object(torch.cuda, "_raw_device_count_amdsmi", lambda: 4),
        mock.patch.object(torch.cuda, "_raw_device_uuid_amdsmi", lambda: serials),
        mock.patch.object(devices, "_nvidia", lambda _: []),
        mock.patch.object(devices, "_amd", lambda _: listed),
    ):
        hidden = env(HIP_VISIBLE_DEVICES=text, CUDA_VISIBLE_DEVICES="0")
        assert len(gpus(hidden)) == torch.cuda._device_count_amdsmi()


@pytest.mark.slow
@pytest.mark.needs_torch
@settings(max_examples=100)
@given(mask=st.lists(st.sampled_from(["0", "1", "2", " 3", "5"]), min_size=1).map(",".join))
def test_relight_and_torch_read_ze_affinity_mask_the_same_way(mask: str) -> None:
    """Both apply it to the available devices."""
    import torch.xpu

    listed = [devices.Device(n, pci) for n, pci in enumerate(PCI)]
    with (
        mock.patch.dict(os.environ, {"ZE_AFFINITY_MASK": mask}),
        mock.patch.object(devices, "_intel", lambda *_, **__: listed),
    ):
        expected = {n for n in torch.xpu._parse_visible_devices() if n < len(listed)}
        assert {xpu.number for xpu in xpus(env(ZE_AFFINITY_MASK=mask))} == expected
