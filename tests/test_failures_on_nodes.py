"""The failure report of jobs on four nodes: each names the right rank first, on all consoles.

Each script of tests/faults_on_nodes runs on four agents with a worker each; the text beside it is
the report that every agent prints. `make long` runs all scripts, `make test` those in which several
nodes matter. Those named `torch_…` run with workers that are forked from a warm process, and in
`make long` with workers that import torch themselves. The agents are on one
machine, so all have one clock; where that matters is tested in tests/core/test_failures.py. The
scripts in `second` were written by somebody who did not know how causes are found
(docs/decisions/0007-root-cause.md).
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import RELIGHT, clean_environment
from test_failures_e2e import check_form, matches, normalized, report_of
from warm_torch import Result, WarmTorch, run_agents

FAULTS = Path(__file__).parent / "faults_on_nodes"
NODES = 4
PATIENCE = "--rdzv-conf=keep_alive_interval=5"
"""No node is lost here: on a busy machine none must be frozen."""
FLAGS = "# relight run "
AS_ON_ONE_NODE = {
    "abort", "bad_json", "bus_error", "checkpoint_in_a_missing_directory", "disk_full",
    "exception_group", "exception_in_a_pool", "exception_in_a_thread", "exit_with_a_message",
    "illegal_instruction", "interrupted_by_somebody_else", "logged_and_then_exited",
    "message_of_several_lines", "name_missing_in_a_module", "nan_assertion",
    "out_of_address_space", "program_that_fails", "program_that_is_missing",
    "raised_from_another", "raised_while_another_is_handled", "recursion", "segmentation_fault",
    "segmentation_fault_with_a_traceback", "silent_exit", "terminated_by_somebody_else",
    "too_many_open_files", "unpicklable_data", "value_of_an_argument", "warning_as_an_error",
}  # fmt: skip
"""One rank fails on its own, in a way that tests/faults shows on one node, or in that of
`exception_on_one_rank`, `exit_with_a_code` or `killed_by_somebody_else`, which stay.
"""
TORCH_AS_ON_ONE_NODE = {
    "torch_autograd_function", "torch_checkpoint_of_another_model", "torch_damaged_checkpoint",
    "torch_exception_before_init", "torch_index_out_of_range", "torch_loader_that_fails",
    "torch_loader_that_is_stuck", "torch_no_gpu", "torch_spawned_process_that_fails",
    "torch_unknown_backend",
}  # fmt: skip
"""The same for scripts of torch: the peers fail, if at all, as in those that stay."""
NEVER_WARM = ("torch_invalid_rank",)
"""Its crash depends on the content of memory."""
LATE = ("torch_monitored_barrier", "torch_rank_that_never_comes")
"""As `torch_collective_that_one_rank_does_not_reach`, with other errors (core/test_failures.py)."""
SLOW_EXIT = ("torch_order_of_collectives", "torch_sizes_that_differ")
"""Each rank blames another, and the first to end counts."""
STACKS = ", when rank"
"""In a report: where ranks were when another one failed, which shows how they exit."""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory whose path is as long everywhere."""
    with tempfile.TemporaryDirectory(prefix="job-", dir="/tmp") as path:
        yield Path(path)


def flags(script: Path, place: Path) -> tuple[str, ...]:
    """Return those of each agent; a script's first line may add some."""
    first_line = script.read_text().partition("\n")[0]
    return (
        f"--nnodes={NODES}", "--rdzv-backend=file", f"--rdzv-endpoint={place}/meet",
        "--rdzv-id=faults", PATIENCE,
        *(first_line.removeprefix(FLAGS).split() if first_line.startswith(FLAGS) else ()),
    )  # fmt: skip


def check(results: list[Result], script: Path, place: Path) -> None:
    """All agents print the text beside the script. REWRITE_REPORTS=1 writes those that differ.

    Args:
        results: of the agents, which have run the script, or a copy with another name.
        script: the original.
        place: the directory of the job.
    """
    reports = [report_of(result.stderr) for result in results]
    for report in reports:
        check_form(report)
    codes = {result.returncode for result in results}
    assert len(codes) == 1, (codes, reports)
    copied = results[0].args[-1]
    texts = {
        normalized(report, place).replace(Path(copied).name, script.name) for report in reports
    }
    assert len(texts) == 1, "\n".join(texts)
    (text,) = texts
    assert text.rstrip().splitlines()[-1].startswith(f"exit code {codes.pop()}; ")
    expected = script.with_suffix(".txt")
    wanted = expected.read_text() if expected.exists() else ""
    if not matches(text, wanted):
        if "REWRITE_REPORTS" in os.environ:
            expected.write_text(text)
        assert text == wanted


def faults() -> Iterator[object]:
    """Return all scripts; those of torch are `long`."""
    torch = (pytest.mark.long, pytest.mark.slow, pytest.mark.needs_torch)
    for path in sorted(FAULTS.glob("*.py")):
        if path.stem.startswith("torch_"):
            yield pytest.param(path, marks=torch)
        else:
            yield pytest.param(path, marks=[pytest.mark.long] * (path.stem in AS_ON_ONE_NODE))
    for path in sorted(FAULTS.glob("second/*.py")):
        yield pytest.param(path, marks=torch)


def warm_faults() -> Iterator[object]:
    """Return the scripts of torch that can run in forked workers."""
    for path in sorted(FAULTS.glob("torch_*.py")):
        if path.stem not in NEVER_WARM:
            yield pytest.param(
                path,
                marks=[pytest.mark.long] * (path.stem in (*LATE, *TORCH_AS_ON_ONE_NODE)),
                id=path.stem.removeprefix("torch_"),
            )


@pytest.mark.parametrize("script", list(faults()), ids=lambda path: path.stem)
def test_all_nodes_report_culprit_first(script: Path, place: Path) -> None:
    copied = shutil.copy(script, place)
    command = (*RELIGHT, "run", *flags(script, place), copied)
    check(run_agents(command, NODES, place, clean_environment(TMPDIR=str(place))), script, place)


@pytest.mark.slow
@pytest.mark.needs_torch
@pytest.mark.parametrize("script", list(warm_faults()))
def test_warm_workers_produce_same_report(script: Path, warm_torch: WarmTorch) -> None:
    """They are forked from a process with torch, on four nodes."""
    place = warm_torch.folder
    shows_stacks = STACKS in script.with_suffix(".txt").read_text()
    quick = script.stem not in SLOW_EXIT and not shows_stacks
    results = warm_torch.run_agents(
        NODES, script.read_text(), *flags(script, place), quick_exit=quick
    )
    check(results, script, place)
