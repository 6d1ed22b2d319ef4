"""The page docs/differences-torchx.md is complete and correct."""

import ast
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from differential.sections import sections

from relight.cli.main import main

from .differences_torchx import CASES, Case, answer, prepare

HERE = Path(__file__).parent
TESTS = HERE.parent
DOCUMENT = TESTS.parent / "docs" / "differences-torchx.md"
RECORDED = {
    found["name"]: found["answer"]
    for found in map(json.loads, (HERE / "torchx-differences.jsonl").read_text().splitlines())
}
COMMANDS = {"run": ("submit",), "runopts": ("schedulers",)}
RUNS = ("exit-code", "handle", "local-retries")

# Differences not visible in any command line's response, each with the test that shows it.
SHOWN = {
    "builtins-stay": "job/test_loading.py::test_packages_can_add_components_under_their_own_alias",
    "default-scheduler": "cli_jobs/test_submit.py::test_submit_prints_only_handle_on_stdout",
    "dry-run": "cli_jobs/test_submit.py::test_dry_run_has_no_side_effects",
    "gang": "schedulers/test_local.py::test_all_replicas_are_stopped_when_one_fails",
    "known-resources": "job/test_resources.py::test_installed_packages_can_add_named_resources",
    "node-order": "cli_jobs/test_submit.py::test_replicas_are_numbered_in_rank_order",
    "one-report": "cli_jobs/test_submit.py::test_all_replicas_share_one_full_failure_report",
    "pod-labels": "schedulers/test_kubernetes_request.py::test_pods_have_torchx_labels",
    "pod-overlays": "schedulers/test_kubernetes_request.py::test_overlay_can_be_read_from_file",
    "runner": "runner/test_runner.py::test_submitted_job_has_scheduler_id_and_record",
    "runopts": "runner/test_options.py::test_each_run_option_has_its_default",
    "role-workspace": "runner/test_runner.py::test_roles_with_different_workspaces_are_rejected",
    "slurm-script": "schedulers/test_slurm_script.py::test_batch_scripts_match_recorded_ones",
    "specs-exceptions": "job/test_app.py::test_torchx_exceptions_are_raised_in_the_same_cases",
    "specs-names": "job/test_app.py::test_torchx_scheduler_names_are_not_exported",
    "state": "cli_jobs/test_reading.py::test_job_forgotten_by_scheduler_is_still_listed",
    "stays-behind": "schedulers/test_workspaces.py::test_git_history_and_bytecode_are_excluded",
    "status-json": "cli_jobs/test_submit.py::test_submit_and_status_json_have_torchx_keys",
    "too-little": "schedulers/test_needs.py::test_insufficient_local_resources_cause_a_note",
    "torchx-schedulers": "schedulers/test_registry.py::test_installed_packages_can_add_schedulers",
    "workspace-asked": "schedulers/test_docker_request.py::test_workspace_is_sent_only_on_request",
    "workspace-list": "schedulers/test_workspaces.py::test_directories_are_merged_into_workspace",
}


def test_every_difference_from_torchx_is_documented() -> None:
    """Each tested difference has a section with both sides and the reason, and each section has a
    test.
    """
    found = sections(DOCUMENT.read_text())
    assert found.keys() == {case.name for case in CASES} | SHOWN.keys()
    assert all(list(items) == ["TorchX", "relight", "why"] for items in found.values())
    assert all(all(items.values()) for items in found.values())


@pytest.mark.parametrize("name", SHOWN)
def test_tests_referenced_on_page_exist(name: str) -> None:
    path, _, test = SHOWN[name].partition("::")
    functions = ast.walk(ast.parse((TESTS / path).read_text()))
    assert test in {each.name for each in functions if isinstance(each, ast.FunctionDef)}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.processes if case.name in RUNS else (), id=case.name)
        for case in CASES
    ],
)
def test_torchx_and_relight_behave_as_documented(
    case: Case, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    assert case.theirs in RECORDED[case.name]
    assert case.ours not in RECORDED[case.name]
    prepare(case, str(place), "relight.job")
    monkeypatch.setenv("HOME", str(place / "home"))
    for name, value in case.variables:
        monkeypatch.setenv(name, value)
    command, *rest = case.argv
    argv = [*COMMANDS.get(command, (command,)), *rest]
    if command == "run" and case.name != "launcher":
        argv.insert(1, "--launcher=torchrun")
    if case.name in RUNS:
        done = subprocess.run(
            [sys.executable, "-m", "relight", *argv], capture_output=True, text=True, check=False
        )
        code, out, err = done.returncode, done.stdout, done.stderr
    else:
        monkeypatch.setattr(sys, "stdin", io.StringIO(case.stdin))
        code = main(argv)
        out, err = capsys.readouterr()
    found = answer(str(place), code, out, err)
    assert case.ours in found
    assert case.theirs not in found
