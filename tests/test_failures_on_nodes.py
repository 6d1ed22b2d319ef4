"""Failure reports from four-node jobs: every console names the right rank first.

Each script in tests/faults_on_nodes runs on four agents with one worker each; the text file beside
it is the report that every agent prints. `make long` runs all scripts; `make test` runs those
whose outcome depends on having several nodes. Scripts named `torch_…` run with workers that are
forked from a warm process, and in `make long` also with workers that import torch themselves. All
agents run on one machine and therefore share a clock; tests/core/test_failures.py covers differing
clocks. The author of the scripts in `second` did not know how causes are found
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
"""Long enough that no node is lost or frozen here, even on a busy machine."""
FLAGS = "# relight run "
AS_ON_ONE_NODE = {
    "abort", "bad_json", "bus_error", "bytes_that_are_no_text",
    "checkpoint_in_a_missing_directory", "disk_full", "exception_group", "exception_in_a_pool",
    "exception_in_a_thread", "exception_on_two_ranks", "exit_handler_that_fails",
    "exit_with_a_code", "exit_with_a_message", "handler_of_sigterm_that_raises",
    "hard_coded_world_size", "illegal_instruction", "interrupted_by_somebody_else",
    "logged_and_then_exited", "message_of_several_lines", "module_missing_everywhere",
    "name_missing_in_a_module", "nan_assertion", "nccl_peers_of_a_rank_that_fails",
    "out_of_address_space", "port_taken", "program_that_fails", "program_that_is_missing",
    "raised_from_another", "raised_while_another_is_handled", "recursion", "segmentation_fault",
    "segmentation_fault_with_a_traceback", "silent_exit", "stopped_by_a_signal",
    "terminated_by_somebody_else", "too_many_open_files", "unpicklable_data",
    "value_of_an_argument", "warning_as_an_error", "wrong_arguments",
}  # fmt: skip
"""One rank fails on its own, in a way that tests/faults shows on one node, or in the same way as
`exception_on_one_rank`, `exception_on_all_ranks`, or `killed_by_somebody_else`, which are kept.
"""
TORCH_AS_ON_ONE_NODE = {
    "torch_autograd_function", "torch_checkpoint_of_another_model",
    "torch_collective_that_one_rank_does_not_reach", "torch_damaged_checkpoint",
    "torch_exception_before_init", "torch_exception_in_the_training_loop",
    "torch_group_destroyed_before_the_exception",
    "torch_index_out_of_range", "torch_loader_that_fails", "torch_loader_that_is_stuck",
    "torch_no_gpu", "torch_segmentation_fault_in_the_training_loop", "torch_shapes_on_one_rank",
    "torch_sizes_that_differ", "torch_spawned_process_that_fails", "torch_unknown_backend",
}  # fmt: skip
"""The same for torch scripts: the peers, if they fail, do so as in the scripts that are kept, in
test_failures_e2e.py, or in test_hangs.py.
"""
NEVER_WARM = ("torch_invalid_rank",)
"""Its crash depends on the contents of memory."""
LATE = ("torch_monitored_barrier", "torch_rank_that_never_comes")
"""Like `torch_collective_that_one_rank_does_not_reach`, with other errors (core/test_failures.py).
"""
SLOW_EXIT = ("torch_order_of_collectives", "torch_sizes_that_differ")
"""Each rank blames another one, and the first to exit counts."""
STACKS = " when rank"
"""In a report: where ranks were when another one failed, which depends on how they exit."""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a path of fixed length."""
    with tempfile.TemporaryDirectory(prefix="job-", dir="/tmp") as path:
        yield Path(path)


def flags(script: Path, place: Path) -> tuple[str, ...]:
    """Return each agent's flags; a script's first line may add some."""
    first_line = script.read_text().partition("\n")[0]
    return (
        f"--nnodes={NODES}", "--rdzv-backend=file", f"--rdzv-endpoint={place}/meet",
        "--rdzv-id=faults", PATIENCE,
        *(first_line.removeprefix(FLAGS).split() if first_line.startswith(FLAGS) else ()),
    )  # fmt: skip


def check(results: list[Result], script: Path, place: Path) -> None:
    """Check that all agents print the text next to the script; REWRITE_REPORTS=1 rewrites it.

    Args:
        results: The results of agents that ran the script, or a renamed copy.
        script: The original script.
        place: The job's directory.
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
    """Return all scripts; those that use torch are marked `long`."""
    torch = (pytest.mark.long, pytest.mark.slow, pytest.mark.needs_torch)
    for path in sorted(FAULTS.glob("*.py")):
        if path.stem.startswith("torch_"):
            yield pytest.param(path, marks=torch)
        else:
            yield pytest.param(path, marks=[pytest.mark.long] * (path.stem in AS_ON_ONE_NODE))
    for path in sorted(FAULTS.glob("second/*.py")):
        yield pytest.param(path, marks=torch)


def warm_faults() -> Iterator[object]:
    """Return the torch scripts that can run in forked workers."""
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
def test_warm_workers_produce_same_failure_report_as_cold_workers(
    script: Path, warm_torch: WarmTorch
) -> None:
    """The workers are forked from a process that has imported torch, on four nodes."""
    place = warm_torch.folder
    shows_stacks = STACKS in script.with_suffix(".txt").read_text()
    quick = script.stem not in SLOW_EXIT and not shows_stacks
    results = warm_torch.run_agents(
        NODES, script.read_text(), *flags(script, place), quick_exit=quick
    )
    check(results, script, place)
