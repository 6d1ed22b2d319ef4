"""When a job in a sandbox is over and how it has ended; which key does what."""

import pytest

from relight.sandbox.faults import Fault
from relight.sandbox.sandbox_job import SandboxJob
from relight.sandbox.sandbox_keys import KeyReader


def test_the_job_has_the_exit_code_of_the_agent_that_ends_last() -> None:
    """One that leaves early, as when its health check fails, does not count."""
    job = SandboxJob(3)
    job.ended(2, 4)
    assert job.exit_code(faults_left=False) is None
    job.ended(1, 0)
    job.ended(3, 0)
    assert job.exit_code(faults_left=False) == 0


@pytest.mark.parametrize("state", ["cut", "frozen"])
def test_a_host_that_is_cut_off_or_frozen_is_not_waited_for_once_another_has_ended(
    state: str,
) -> None:
    job = SandboxJob(2)
    getattr(job, state).add(2)
    assert job.exit_code(faults_left=False) is None
    job.ended(1, 7)
    assert job.exit_code(faults_left=True) == 7


def test_a_killed_host_does_not_count_until_it_is_started_again() -> None:
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


def test_a_job_whose_hosts_are_all_killed_waits_only_for_faults_that_may_start_one() -> None:
    job = SandboxJob(1)
    job.killed(1)
    job.ended(1, 137)
    assert job.exit_code(faults_left=True) is None
    assert job.exit_code(faults_left=False) == 137


def test_a_job_that_is_frozen_for_good_ends() -> None:
    job = SandboxJob(1)
    job.frozen.add(1)
    assert job.exit_code(faults_left=False) == 137


def test_a_key_causes_a_fault_and_the_same_key_undoes_it() -> None:
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


def test_other_keys_show_the_legend_and_a_wrong_number_what_there_is() -> None:
    keys = KeyReader(2, SandboxJob(2))
    assert keys.press("x") == keys.legend
    assert keys.press("\n") == ""
    assert keys.press("k") == ""
    assert keys.press("3") == "there is no host 3; hosts are 1 to 2"
    assert keys.press("k") == "" and keys.press("²") == keys.legend


def test_with_more_than_nine_hosts_enter_ends_a_number() -> None:
    keys = KeyReader(12, SandboxJob(12))
    assert "Enter" in keys.legend
    assert [keys.press(key) for key in "k1"] == ["", ""]
    assert str(keys.press("\r")) == "kill host 1"
    assert [str(keys.press(key)) for key in "k12"] == ["", "", "kill host 12"]
