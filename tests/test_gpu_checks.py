"""`make gpu` without a GPU: its message, and the parts that don't need one."""

import io
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.gpu import card, run
from benchmarks.gpu.__main__ import as_text, find_card
from benchmarks.gpu.run import Bench, Check, FailedError, Row
from conftest import LIMIT_S

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench("cpu", card.NoCard(), io.StringIO())
    yield made
    made.clean()
    run.remove(made)


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that replaces nvidia-smi."""
    program = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return program


def install(program: Path, text: str) -> None:
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)


def test_gpu_check_reports_missing_torch(tmp_path: Path) -> None:
    """A traceback would be less helpful. `torch` is a module that can't be imported here."""
    (tmp_path / "torch.py").write_text("raise ImportError('No module named torch')\n")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'src'}"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 2
    assert "torch can't be imported: No module named torch" in done.stderr
    assert sys.executable in done.stderr
    assert "Traceback" not in done.stderr


def test_gpu_check_reports_missing_cuda_and_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def find() -> card.Card:
        raise OSError("nvidia-smi lists no GPU")

    monkeypatch.setattr(card, "find", find)
    found, problems = find_card("cuda", {"torch": "2.13.0+cpu", "cuda": None, "error": ""})
    assert found is None
    assert "torch 2.13.0+cpu" in problems[0]
    assert "built without CUDA" in problems[0]
    assert "nvidia-smi lists no GPU" in problems[1]


def test_special_characters_do_not_break_markdown_table() -> None:
    rows = [Row("a | b", "ok", ["one\ntwo", "x|y"]), Row("c", "FAILED", [])]
    lines = as_text(["card", "kernel"], rows, 12.3).splitlines()
    assert lines[:3] == ["card.", "kernel.", "12 s in all."]
    assert lines[-2:] == ["| a / b | ok | one two; x/y |", "| c | FAILED |  |"]


def test_gpu_details_come_from_nvidia_smi(smi: Path) -> None:
    install(smi, 'case $1 in *memory*) echo 517;; *) echo "Card 7, 580.1, GPU-abc";; esac')
    found = card.SmiCard()
    assert (found.name, found.driver, found.uuid) == ("Card 7", "580.1", "GPU-abc")
    assert found.used_mib() == 517


def test_gpu_process_list_can_be_unavailable(smi: Path) -> None:
    install(smi, "echo 17; echo 18; echo '[N/A]'")
    assert card.compute_apps() == ({17, 18}, "")
    install(smi, "echo no driver; exit 9")
    apps = card.compute_apps()
    assert apps.pids == set()
    assert "exited with 9: no driver" in apps.problem


def test_failed_gpu_check_keeps_details_collected_so_far(bench: Bench) -> None:
    def work(each: Bench) -> None:
        each.expect(True, "one")
        each.expect(False, "two")
        raise FailedError("three")

    row = run.run_check(bench, Check("x", "X", 10, work), 60)
    assert (row.result, row.details) == ("FAILED", ["one", "**not: two**", "**three**"])


def test_crashing_gpu_check_does_not_stop_other_checks(bench: Bench) -> None:
    def work(_: Bench) -> None:
        raise KeyError("gone")

    row = run.run_check(bench, Check("x", "X", 10, work), 60)
    assert row.result == "FAILED"
    assert "KeyError" in row.details[0]


def test_hung_gpu_check_is_ended_along_with_its_job(bench: Bench) -> None:
    def work(each: Bench) -> None:
        run.Job(each, each.place, ["--nproc-per-node=1", "--no-python"], ["sleep", "600"])
        started.append(each.jobs[0].process)
        time.sleep(LIMIT_S)

    started: list[subprocess.Popen[bytes]] = []
    row = run.run_check(bench, Check("x", "X", 2, work), 60)
    assert row.result == "FAILED"
    assert row.details == ["**the check did not end within 2 s**"]
    assert started[0].poll() is not None


def test_gpu_check_is_skipped_without_gpu(bench: Bench) -> None:
    row = run.run_check(bench, Check("x", "X", 10, lambda _: None, needs_gpu=True), 60)
    assert row.result == "skipped"


def test_gpu_check_is_skipped_when_time_runs_out(bench: Bench) -> None:
    assert run.run_check(bench, Check("x", "X", 60, lambda _: None), 3).result == "not run"
