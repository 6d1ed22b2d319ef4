"""When a sandbox job ends, with which exit code, and what each key does."""

import pytest

from relight.sandbox.faults import Fault
from relight.sandbox.sandbox_job import SandboxJob
from relight.sandbox.sandbox_keys import KeyReader


def test_sandbox_job_exits_with_the_code_of_the_last_agent() -> None:
    """An agent that exits early, for example because its health check failed, doesn't count."""
    job = SandboxJob(3)
    job.ended(2, 4)
    assert job.exit_code(faults_left=False) is None
    job.ended(1, 0)
    job.ended(3, 0)
    assert job.exit_code(faults_left=False) == 0


@pytest.mark.parametrize("state", ["cut", "frozen"])
def test_sandbox_job_ends_without_waiting_for_disconnected_or_frozen_hosts(
    state: str,
) -> None:
    job = SandboxJob(2)
    getattr(job, state).add(2)
    assert job.exit_code(faults_left=False) is None
    job.ended(1, 7)
    assert job.exit_code(faults_left=True) == 7


def test_exit_code_of_killed_host_counts_only_after_its_restart() -> None:
    job = SandboxJob(2)
    job.frozen.add(2)
    job.killed(2)
    job.check()
    assert job.running == {1} and not job.frozen
    job.ended(2, 137)
    assert job.exit_code(faults_left=False) is None
    job.ended(1, 0)
    assert job.exit_code(faults_left=False) == 0
    job.started(2)
    assert job.exit_code(faults_left=False) is None
    job.ended(2, 3)
    assert job.exit_code(faults_left=False) == 3


def test_sandbox_job_with_all_hosts_killed_waits_only_for_pending_faults() -> None:
    job = SandboxJob(1)
    job.killed(1)
    job.ended(1, 137)
    assert job.exit_code(faults_left=True) is None
    assert job.exit_code(faults_left=False) == 137


def test_permanently_frozen_sandbox_job_ends() -> None:
    job = SandboxJob(1)
    job.frozen.add(1)
    assert job.exit_code(faults_left=False) == 137


def test_pressing_a_sandbox_key_again_undoes_its_fault() -> None:
    job = SandboxJob(2)
    keys = KeyReader(2, job)

    def type_in(text: str) -> list[str]:
        return [str(found) for key in text if isinstance(found := keys.press(key), Fault)]

    assert type_in("k1f2c1d2d2l1l1") == [
        "kill host 1", "freeze host 2", "cut host 1", "delay 100ms host 2", "delay 0ms host 2",
        "loss 10% host 1", "loss 0% host 1",
    ]  # fmt: skip
    job.running, job.frozen, job.cut = {2}, {2}, {1}
    assert type_in("k1f2c1") == ["start host 1", "continue host 2", "heal host 1"]
    assert type_in("kk2") == ["kill host 2"]


def test_unknown_key_shows_the_legend_and_wrong_host_number_lists_hosts() -> None:
    keys = KeyReader(2, SandboxJob(2))
    assert keys.press("x") == keys.legend
    assert keys.press("\n") == ""
    assert keys.press("k") == ""
    assert keys.press("3") == "no host 3; hosts are 1 to 2"
    assert keys.press("k") == "" and keys.press("²") == keys.legend


def test_enter_completes_a_host_number_with_more_than_nine_hosts() -> None:
    keys = KeyReader(12, SandboxJob(12))
    assert "Enter" in keys.legend
    assert [keys.press(key) for key in "k1"] == ["", ""]
    assert str(keys.press("\r")) == "kill host 1"
    assert [str(keys.press(key)) for key in "k12"] == ["", "", "kill host 12"]
