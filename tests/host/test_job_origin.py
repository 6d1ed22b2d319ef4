"""Which scheduler runs this job, and the job's id there."""

import pytest

from relight.host import job_origin


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ("", "")),
        ({"SLURM_JOB_ID": "7"}, ("slurm", "7")),
        ({"RELIGHT_JOB_ID": "kubernetes://relight/ns:j", "SLURM_JOB_ID": "7"},
         ("kubernetes", "ns:j")),
        ({"RELIGHT_JOB_ID": "nonsense", "AWS_BATCH_JOB_ID": "a-1"}, ("aws_batch", "a-1")),
        ({"PBS_JOBID": "3.head"}, ("pbs", "3.head")),
        ({"LSB_JOBID": ""}, ("", "")),
    ],
)  # fmt: skip
def test_scheduler_job_is_found_in_environment(
    variables: dict[str, str], expected: tuple[str, str]
) -> None:
    found = job_origin.from_environment(variables)
    assert (found.scheduler, found.scheduler_job) == expected
    assert found.user and found.host and found.version
