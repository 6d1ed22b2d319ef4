"""GPU and NVSwitch errors in the kernel log, with lines from public bug reports."""

from pathlib import Path
from unittest import mock

import fake_machine as fake
import pytest

from relight.agent import postmortem
from relight.base.env import Environment
from relight.core.failure import Failure
from relight.host import devices, gpu_errors, kernel_log
from relight.host.gpu_errors import GpuError, explain_exit, parse


def kmsg(*texts: str, at: float = 100.0) -> list[bytes]:
    """Return /dev/kmsg records with this time in seconds."""
    return [b"3,7,%d,-;%s\n SUBSYSTEM=pci" % (int(at * 1e6), text.encode()) for text in texts]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # NVIDIA/open-gpu-kernel-modules issue 1151
        (
            "NVRM: Xid (PCI:0000:2b:00): 79, GPU has fallen off the bus.",
            GpuError(79, "0000:2b:00", 0, 100.0, "GPU has fallen off the bus."),
        ),
        ("NVRM: GPU 0000:2b:00.0: GPU has fallen off the bus.", (79, "0000:2b:00")),
        ("NVRM: GPU at PCI:0000:2b:00: GPU-0b11d014-1685-04bd-26ed-5fc0bc1c44ae", None),
        # NVIDIA/NVSentinel issue 155; within a record the kernel writes a line break as \x0a
        (
            r"NVRM: The NVIDIA GPU 0000:b3:00.0\x0aNVRM: (PCI ID: 10de:26b5) installed in this "
            r"system has\x0aNVRM: fallen off the bus and is not responding to commands.",
            (79, "0000:b3:00"),
        ),
        # leptonai/gpud
        (
            "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off "
            "the bus.",
            GpuError(79, "0000:05:00", 0, 100.0, "GPU has fallen off the bus."),
        ),
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", (14, "0000:03:00")),
        (
            "NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 "
            "(Drain and Reset)",
            None,
        ),
        (
            "nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 12028, Data {0x000001c0, 0x00bd5c8a}",
            None,
        ),
        # NVIDIA/nvtrust issue 124
        (
            "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link "
            "DLREQ interrupt",
            None,
        ),
        # pytorch/pytorch issue 51382
        (
            "NVRM: Xid (PCI:0000:db:00): 31, pid=13641, Ch 00000008, intr 00000000. MMU Fault: "
            "ENGINE GRAPHICS GPCCLIENT_T1_10 faulted @ 0x7fd7_90743000. Fault is of type FAULT_PDE",
            (31, "0000:db:00", 13641),
        ),
        # leptonai/gpud pull request 46
        (
            "NVRM: Xid (PCI:0000:cb:00): 109, pid=1797828, name=pt_main_thread, Ch 00000008, "
            "errorString CTX SWITCH TIMEOUT, Info 0x58005",
            (109, "0000:cb:00", 1797828),
        ),
        # madMAx43v3r/chia-gigahorse issue 301
        ("NVRM: Xid (PCI:0000:0a:00): 45, pid='<unknown>', name=<unknown>, Ch 00000008", None),
        # stas00/ml-engineering
        (
            "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for "
            "remapping, reset gpu to activate.",
            (63, "0000:10:1c", 1896),
        ),
        # a MIG instance, in the driver's format
        ("NVRM: Xid (PCI:0000:C1:00 GPU-I:07): 43, pid=77, Ch 8", (43, "0000:c1:00", 77)),
        ("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64", None),
        ("NVRM: Xid (invalid): some error", None),
    ],
)
def test_gpu_driver_messages_are_parsed(line: str, expected: tuple[object, ...] | None) -> None:
    found = parse(kmsg(line), 0.0)
    assert [each[: len(expected or ())] for each in found] == (
        [tuple(expected)] if expected else []
    )


def test_fatal_nvswitch_error_is_parsed() -> None:
    line = "nvidia-nvswitch0: SXid (PCI:0000:c4:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
    (found,) = parse(kmsg(line), 0.0)
    assert found.text(100.25, own=False) == (
        "NVSwitch 0000:c4:00.0 reported SXid 20034 (Fatal, Link 30 LTSSM Fault Up) "
        "0.2 s before (kernel log)"
    )


def test_old_and_unrelated_kernel_log_records_are_ignored() -> None:
    line = "NVRM: Xid (PCI:0000:2b:00): 79, GPU has fallen off the bus."
    assert parse([*kmsg(line, at=50.0), b"nonsense", b"6,11;;"], 60.0) == []


OWN, OTHER = "0000:3b:00.0", "0000:5e:00.0"
OFF = GpuError(79, "0000:3b:00", 0, 99.6, "")
PAGE_FAULT = GpuError(31, "0000:3b:00", 0, 99.9, "")


def said(*errors: GpuError, pci: str = OWN, pid: int = 1, blames_gpu: bool = True) -> str:
    return explain_exit(
        errors, pid=pid, pci=pci, visible=(OWN, OTHER), at=100.0, blames_gpu=blames_gpu
    )[0]


def test_error_on_gpu_used_by_rank_is_explained() -> None:
    assert said(OFF, PAGE_FAULT) == (
        "its GPU 0000:3b:00.0 reported Xid 79 (GPU has fallen off the bus) 0.4 s before "
        "(kernel log)"
    )


def test_unknown_xid_is_shown_with_text_from_kernel_log() -> None:
    assert "reported Xid 999 (Something new) 0.0 s" in said(
        GpuError(999, "0000:3b:00", 0, 100.0, "Something new.")
    )


@pytest.mark.parametrize(
    ("error", "blames_gpu", "counts"),
    [
        pytest.param(OFF, False, True, id="broken hardware explains any exit"),
        pytest.param(PAGE_FAULT, True, True, id="program fault explains a CUDA error"),
        pytest.param(PAGE_FAULT, False, False, id="program fault explains nothing else"),
        pytest.param(OFF._replace(pci="0000:5e:00"), True, False, id="another rank's GPU"),
        pytest.param(OFF._replace(at=160.0), True, False, id="later consequence"),
        pytest.param(
            OFF._replace(pci="0000:99:00", pid=1), True, True, id="worker's pid"
        ),
        pytest.param(
            GpuError(145, "0000:3b:00", 0, 99.0, "RLW_RXPIPE Nonfatal XC0 i0 Link 13"),
            False, False, id="NVLink recovered",
        ),
    ],
)  # fmt: skip
def test_gpu_error_is_reported_only_for_ranks_it_may_have_affected(
    error: GpuError, blames_gpu: bool, counts: bool
) -> None:
    assert bool(said(error, blames_gpu=blames_gpu)) == counts


def test_gpu_error_is_not_tied_to_rank_if_its_gpu_is_unknown() -> None:
    assert said(OFF, pci="").startswith("GPU 0000:3b:00.0 reported Xid 79")
    assert said(OFF._replace(pci="0000:99:00"), pci="") == ""
    assert said(OFF, pci="", blames_gpu=False) == ""


def test_kernel_log_is_read_only_if_gpu_driver_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kmsg").write_bytes(kmsg("NVRM: Xid (PCI:0000:2b:00): 79, x")[0])
    assert gpu_errors.recent(100.0, str(tmp_path)) == []
    fake.add_nvidia(tmp_path, "0000:2b:00.0", minor=0)
    assert [each.code for each in gpu_errors.recent(100.0, str(tmp_path))] == [79]
    assert [gpu.pci for gpu in devices.gpus(Environment({}), str(tmp_path))] == ["0000:2b:00.0"]


def test_unreadable_kernel_log_causes_no_error(tmp_path: Path) -> None:
    fake.add_nvidia(tmp_path, "0000:2b:00.0", minor=0)
    assert kernel_log.records(str(tmp_path / "dev/kmsg")) is None
    assert gpu_errors.recent(100.0, str(tmp_path)) == []


def test_failed_rank_is_reported_with_error_on_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local rank 1 uses the second GPU visible to the job."""
    gpus = [devices.Device(0, OTHER), devices.Device(1, OWN)]
    monkeypatch.setattr(devices, "gpus", lambda env: gpus)
    monkeypatch.setattr(gpu_errors, "recent", lambda now: [OFF])
    failed = Failure(8, 0, "vm", 7, 1, 100.0, 0, None, ("CUDA error: unknown error",), "", "")
    other = failed._replace(rank=9, local_rank=1, stop_signal=15, exitcode=-15)
    workers = mock.Mock(ranks=(8, 9))
    told = postmortem.with_gpu_errors([failed, other], workers, mock.Mock())
    assert [each.gpu_error[:25] for each in told] == ["", "its GPU 0000:3b:00.0 repo"]
    assert [each.gpu_broken for each in told] == [False, True]
