"""--restart-policy, --max-restarts=N/TIME, --checkpoints, and --failure-report on real workers."""

import json
import re
from pathlib import Path

import pytest
from conftest import Launch

from relight.core.failure import WorkerState

pytestmark = pytest.mark.forked

STEPS = """
import os, signal, sys, time
from relight.worker import progress

restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if os.environ["RANK"] == "0":
    exec(sys.argv[1])
    raise ValueError(f"bad batch {restart}")  # here
time.sleep(600)
"""


@pytest.fixture
def train(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(STEPS)
    return path


def restart_messages(stderr: str) -> list[str]:
    """Return what users see about the consequence of each failure."""
    said = [line for line in stderr.split("\n") if re.match(r"relight: rank \d.*; restart", line)]
    ended = [line for line in stderr.split("\n") if line.startswith("exit code ")]
    return [line.partition("; ")[2] for line in (*said, *ended)]


def test_smart_policy_ends_job_after_repeated_exception(launch: Launch, train: Path) -> None:
    result = launch("run", "--nproc-per-node=2", "--max-restarts=10", "--restart-policy=smart",
                    train, "pass")  # fmt: skip
    assert result.returncode == 1
    assert restart_messages(result.stderr) == [
        "restart 1 of 10",
        "same exception on the same line again, with no progress in between",
    ]


def test_progress_resets_restart_budget_under_smart_policy(launch: Launch, train: Path) -> None:
    """The budget is one: three failures after new steps are allowed, a fourth without one isn't."""
    result = launch("run", "--nproc-per-node=2", "--max-restarts=1", "--restart-policy=smart",
                    train, "progress(min(restart, 2))")  # fmt: skip
    assert restart_messages(result.stderr) == [
        "restart 1 of 1",
        "restart 2, 1 of 1 since the last progress",
        "restart 3, 1 of 1 since the last progress",
        "same exception on the same line again, with no progress in between",
    ]


def test_new_checkpoint_counts_as_progress(launch: Launch, train: Path) -> None:
    save = "restart < 2 and open(f'ckpt-{restart}.pt', 'w').close()"
    result = launch("run", "--max-restarts=9", "--restart-policy=smart", "--checkpoints=ckpt-*.pt",
                    train, save)  # fmt: skip
    assert len(restart_messages(result.stderr)) == 3
    assert restart_messages(result.stderr)[-1].startswith("same exception")


def test_smart_policy_backs_off_after_external_signals(launch: Launch, train: Path) -> None:
    result = launch("run", "--max-restarts=2", "--restart-policy=smart", "--log-dir=logs", train,
                    "os.kill(os.getpid(), signal.SIGKILL)")  # fmt: skip
    assert result.returncode == 137
    said = restart_messages(result.stderr)
    assert said[0] == "restart 1 of 2"
    wait = re.fullmatch(r"restart 2 of 2 in (0\.[5-9]|1\.0) s", said[1])
    assert wait is not None
    assert result.stderr.count("restart 2 of 2 in") == 1  # logged when the wait begins
    (log,) = train.parent.glob("logs/*/events.jsonl")
    events = [json.loads(line) for line in log.read_text().splitlines()]
    decided = [each for each in events if each["event"] in ("Restarting", "NotRestarting")]
    assert [each["event"] for each in decided] == ["Restarting", "Restarting", "NotRestarting"]
    assert decided[-1]["reason"] == "all 2 restarts since the last progress are used up"


def test_default_policy_reports_how_many_restarts_smart_policy_would_save(
    launch: Launch, train: Path
) -> None:
    result = launch("run", "--max-restarts=3", train, "pass")
    assert restart_messages(result.stderr)[2:] == [
        "restart 3 of 3",
        "all 3 restarts are used up; --restart-policy=smart would have saved 2 of them",
    ]


def test_restart_rate_limit_ends_flapping_job(launch: Launch, train: Path) -> None:
    result = launch("run", "--max-restarts=2/1h", train, "pass")
    assert restart_messages(result.stderr)[-1].startswith("all 2 restarts within 1 h are used up")


def test_exit_code_rule_ends_job_without_further_restarts(launch: Launch, train: Path) -> None:
    """The job still has restarts left; the report names the rule."""
    ends = "os.kill(os.getpid(), signal.SIGXCPU) if restart else sys.exit(75)"
    result = launch("run", "--nproc-per-node=2", "--max-restarts=5", "--restart-on=75,SIGXCPU",
                    train, ends.replace("SIGXCPU", "SIGTERM"))  # fmt: skip
    assert restart_messages(result.stderr) == [
        "restart 1 of 5",
        "--restart-on does not list SIGTERM",
    ]
    result = launch("run", "--nproc-per-node=2", "--max-restarts=5", "--fail-on=2,SIGXCPU",
                    train, ends)  # fmt: skip
    assert result.returncode == 128 + 24
    assert restart_messages(result.stderr) == ["restart 1 of 5", "--fail-on lists SIGXCPU"]


def test_json_failure_report_has_cause(launch: Launch, train: Path) -> None:
    result = launch("run", "--nproc-per-node=2", "--max-restarts=1", "--failure-report=why.json",
                    train, "pass")  # fmt: skip
    report = json.loads((train.parent / "why.json").read_text())
    line = next(n for n, text in enumerate(STEPS.split("\n"), 1) if text.endswith("# here"))
    assert report["version"] == 2
    assert report["exit_code"] == result.returncode == 1
    assert (report["restarts"], report["verdict"]) == (1, "the only restart is used up")
    assert report["cause"]["rank"] == 0
    assert report["cause"]["exception"]["type"] == "ValueError"
    assert report["cause"]["exception"]["where"] == f"{train}:{line}"
    assert [each["kind"] for each in report["failures_here"]] == ["failed", "stopped"]
    assert report["text"][-1] == "exit code 1; the only restart is used up"


def test_fields_of_failure_report_are_documented(launch: Launch, train: Path) -> None:
    launch("run", "--failure-report=why.json", train, "pass")
    report = json.loads((train.parent / "why.json").read_text())
    text = (Path(__file__).parent.parent / "docs" / "failure-report.md").read_text()
    names = {*report, *report["cause"], *report["cause"]["exception"], *WorkerState._fields}
    assert names == set(re.findall(r"^ *- `(\w+)`", text, re.MULTILINE))


def test_successful_job_removes_old_failure_report(launch: Launch, train: Path) -> None:
    report = train.parent / "why.json"
    report.write_text("old")
    assert launch("run", f"--failure-report={report}", train, "sys.exit(0)").returncode == 0
    assert not report.exists()


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/dev/null", "it is not a regular file"),
        ("missing/why.json", "no such directory"),
        (".", "it is not a regular file"),
    ],
)
def test_unwritable_failure_report_path_is_rejected_before_start(
    path: str, why: str, launch: Launch, train: Path
) -> None:
    result = launch("run", f"--failure-report={path}", train, "print('started')")
    assert result.returncode == 2
    assert why in result.stderr
    assert result.stdout == ""
    assert Path("/dev/null").is_char_device()


def test_failure_report_that_cannot_be_written_is_reported_on_one_line(
    launch: Launch, train: Path
) -> None:
    directory = train.parent / "gone"
    directory.mkdir()
    remove = f"os.rmdir({str(directory)!r})"
    result = launch("run", f"--failure-report={directory}/why.json", train, remove)
    assert result.returncode == 1
    assert "relight: can't write the failure report to " in result.stderr
    assert "exit code 1; no restarts were allowed" in result.stderr
