"""The same text explains a job's failure wherever it is shown."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import RELIGHT, clean_environment
from warm_torch import run_agents

from relight.agent import postmortem
from relight.base.env import Environment
from relight.base.errors import EXIT_HUNG
from relight.core.failure import Failure
from relight.core.group.messages import JobEnded
from relight.inspect.page.watched_job import WatchedJob
from relight.processes.running_jobs import JobDirectory

pytestmark = pytest.mark.forked

Command = Callable[..., "subprocess.CompletedProcess[str]"]
SHOWN = "import os, sys, time\n# it fails at once\n"
FAILURES = {
    "exception": (
        """\
def load():
    raise ValueError("bad sample")
if os.environ["RANK"] == "1":
    load()
time.sleep(600)
""",
        "rank 1 raised ValueError: bad sample (at train.py:4 in load)",
    ),
    "exit code": (
        "if os.environ['RANK'] == '1':\n    sys.exit(7)\ntime.sleep(600)\n",
        "rank 1 exited with code 7",
    ),
    "signal": (
        "if os.environ['RANK'] == '1':\n    os.kill(os.getpid(), 10)\ntime.sleep(600)\n",
        "rank 1 was killed by SIGUSR1: not sent by relight",
    ),
    "signal that stops jobs": (
        "if os.environ['RANK'] == '1':\n    os.kill(os.getpid(), 15)\ntime.sleep(600)\n",
        "rank 1 was killed by SIGTERM: not sent by relight",
    ),
    "hang": (
        """\
def read():
    os.kill(os.getpid(), 19)
if os.environ["RANK"] == "1":
    read()
time.sleep(600)
""",
        "rank 1 is stopped (SIGSTOP) in read (train.py:4)",
    ),
}


@pytest.mark.parametrize(("text", "headline"), FAILURES.values(), ids=FAILURES)
def test_failure_headline_is_the_same_everywhere(
    relight: Command,
    here: Command,
    script: Callable[[str], Path],
    variables: dict[str, str],
    tmp_path: Path,
    text: str,
    headline: str,
) -> None:
    message = tmp_path / "termination-log"
    message.touch()
    report, parent = tmp_path / "why.json", tmp_path / "error.json"
    path = script(SHOWN + text)
    headline = headline.replace("at train", f"at {path.parent}/train")
    found = relight(
        "run", "--nproc-per-node=2", "--hang-timeout=3", f"--failure-report={report}", path,
        TORCHELASTIC_ERROR_FILE=str(parent), RELIGHT_TERMINATION_LOG=str(message),
    )  # fmt: skip
    assert found.returncode
    first, second = re.split(r"^relight: ", found.stderr, flags=re.MULTILINE)[-1].splitlines()[:2]
    assert headline in (first, f"{first} (at {second.strip()})")

    written = json.loads(report.read_text())
    assert written["headline"] == headline
    what, _, where = headline.partition("rank 1 ")[2].partition(" (at /")
    assert written["cause"]["what"] == what
    assert written["cause"]["rank"] == 1
    assert not where or f"/{where}" == f"{written['cause']['exception']['where']})"

    (job,) = JobDirectory(variables).ended()
    status = json.loads(here("status", "--json", job.id).stdout)
    assert status["state"] == "FAILED"
    assert status["msg"].endswith(f"exit code {found.returncode}: {headline}")
    states = [each["state"] for each in status["roles"][0]["replicas"]]
    assert states == ["CANCELLED", "FAILED"]
    listed = here("list").stdout.splitlines()
    assert listed[0].split() == ["JOB", "NAME", "STATE", "SUBMITTED", "REASON"]
    assert listed[1].endswith(f"  {headline}")
    page = WatchedJob(JobDirectory(variables), job.id, ()).look()
    assert page["job"]["notice"] == f"exit code {found.returncode}: {headline}"
    word = page["ranks"][1][3].partition(" ")[0]
    assert word == {EXIT_HUNG: "hung", 7: "failed", 1: "failed"}.get(found.returncode, "killed")
    assert message.read_text() == headline
    assert "headline" not in json.loads(parent.read_text())  # torchrun doesn't write one


def test_failure_report_json_names_hung_rank(
    relight: Command, script: Callable[[str], Path], tmp_path: Path
) -> None:
    found = relight(
        "run", "--nproc-per-node=2", "--hang-timeout=3", f"--failure-report={tmp_path}/why.json",
        script(SHOWN + FAILURES["hang"][0]),
    )  # fmt: skip
    assert found.returncode == EXIT_HUNG
    written = json.loads((tmp_path / "why.json").read_text())
    assert written["cause"]["kind"] == "hung"
    known = {each["rank"]: each["kind"] for each in written["failures_here"]}
    assert known == {0: "stopped", 1: "hung"}


def test_submitted_job_shows_failure_headline_from_its_agent(
    relight: Command, here: Command, place: Path
) -> None:
    (place / "train.py").write_text(SHOWN + FAILURES["exception"][0])
    headline = FAILURES["exception"][1].replace("at train", f"at {place}/train")
    found = relight("submit", "-s", "local", "--json", "dist.ddp", "-j", "2x1",
                    "--script", "train.py")  # fmt: skip
    status: dict[str, Any] = json.loads(found.stdout)
    assert status["state"] == "FAILED"
    assert headline in status["msg"]
    assert headline in here("status", status["handle"]).stdout
    assert headline in here("list").stdout


def test_failure_headline_names_the_cause_of_a_wrapper(
    relight: Command, script: Callable[[str], Path], tmp_path: Path
) -> None:
    train = script(
        "try:\n    int('x')\nexcept ValueError as e:\n    raise KeyError('step 4') from e\n"
    )
    found = relight("run", f"--failure-report={tmp_path}/why.json", train)
    assert found.returncode == 1
    assert json.loads((tmp_path / "why.json").read_text())["headline"] == (
        "rank 0 raised KeyError: 'step 4', caused by ValueError: invalid literal for int() with "
        f"base 10: 'x' at {tmp_path}/train.py:2"
    )


def test_failure_headline_falls_back_to_reason_for_job_end() -> None:
    assert JobEnded(3, "gave up after 5 s", (), None).headline == "gave up after 5 s"
    refused = JobEnded(4, "the node leaves", ("error: no GPU", "  hint: look"), None)
    assert refused.headline == "no GPU"


def test_exit_code_124_alone_does_not_count_as_a_hang() -> None:
    root = Failure(0, 0, "h", 1, EXIT_HUNG, 0.0, 0, None, (), "", "")
    assert not JobEnded(EXIT_HUNG, "the workers failed", ("x",), root).hung
    assert JobEnded(EXIT_HUNG, "no progress", ("x",), root._replace(stop_signal=15)).hung


def test_each_pod_prints_full_report_because_others_may_be_deleted() -> None:
    root = Failure(1, 1, "h", 1, 1, 0.0, 0, None, (), "", "")
    end = JobEnded(1, "a worker failed", ("rank 1 failed", "  look at its log"), root)
    submitted = {"RELIGHT_JOB_ID": "slurm://relight/3"}
    assert "its own node reports it" in postmortem.report(end, (), Environment(submitted))
    pod = Environment({**submitted, "KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert postmortem.report(end, (), pod) == "rank 1 failed\n  look at its log"


def test_missing_termination_log_is_not_created(tmp_path: Path) -> None:
    path = tmp_path / "none"
    postmortem.tell_container(
        "rank 0 raised KeyError: 3", Environment({"RELIGHT_TERMINATION_LOG": str(path)})
    )
    assert not path.exists()


def test_two_nodes_show_the_same_failure_headline(
    script: Callable[[str], Path], here: Command, variables: dict[str, str], tmp_path: Path
) -> None:
    path = script(SHOWN + FAILURES["exception"][0])
    headline = FAILURES["exception"][1].replace("at train", f"at {tmp_path}/train")
    flags = ("--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=file", "--rdzv-id=1",
             f"--rdzv-endpoint={tmp_path}/meet")  # fmt: skip
    found = run_agents(
        (*RELIGHT, "run", *flags, str(path)), 2, tmp_path, clean_environment(**variables)
    )
    assert [each.returncode for each in found] == [1, 1], found
    listed = here("list", "--json").stdout
    assert [job["message"] for job in json.loads(listed)] == [headline, headline]
    for job in JobDirectory(variables).ended():
        assert here("status", job.id).stdout.splitlines()[1].endswith(f": {headline}")


def test_submitted_job_names_the_replica_whose_rank_failed(
    ended: Callable[..., dict[str, Any]], script: Callable[[str], Path]
) -> None:
    """The agents of all replicas report the same failure and exit with its exit code. The other
    agent may exit first, because the first replica's agent hosts the group.
    """
    fails = "if os.environ['RELIGHT_REPLICA_ID'] == '0':\n    sys.exit(7)\ntime.sleep(600)\n"
    found = ended("dist.ddp", "-j", "2x1", "--script", script(SHOWN + fails))
    assert re.fullmatch("train/0 failed with exit code 7: rank . exited with code 7", found["msg"])
    assert found["roles"][0]["replicas"][0]["state"] == "FAILED"
