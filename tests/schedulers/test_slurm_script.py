"""Slurm's batch script and the parsing of Slurm's output, without a Slurm."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relight.base.errors import MachineError, UsageError
from relight.core.failure import Failure
from relight.job.app import AppDef, AppState, BindMount, Resource, Role
from relight.job.components import IMAGE, NO_IMAGE
from relight.output import error_files
from relight.schedulers import failure_reason
from relight.schedulers.api import AppStatus, LogQuery
from relight.schedulers.slurm import script, states
from relight.schedulers.slurm.scheduler import Slurm
from relight.schedulers.slurm.states import TaskEnd

GOLDEN = Path(__file__).parent / "slurm"
RUN = (
    "relight run --rdzv_backend c10d --rdzv_endpoint $${${rank0_env}:=localhost}:29500 --rdzv_id "
    "'${app_id}' --nnodes %s --nproc_per_node 8 --tee 3 --role '' main.py --lr 0.1 '$$' '${x}'"
)


def ddp(nodes: str = "2", replicas: int = 2, **fields: Any) -> Role:
    """Return dist.ddp's role."""
    args = ("-c", RUN % nodes)
    return Role("main", "img", entrypoint="bash", args=args, num_replicas=replicas, **fields)


def rendered(*roles: Role, **cfg: Any) -> str:
    """Return the script for an app with these roles."""
    app = AppDef("main", roles)
    place = "/home/u/jobs/main-x7/slurm", "/home/u/work", "/opt/relight/bin"
    return script.render(app, cfg, "main-x7", *place)


def sbatch_lines(*roles: Role, **cfg: Any) -> list[str]:
    """Return the script's sbatch options, without the dashes."""
    lines = rendered(*roles, **cfg).splitlines()
    return [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]


CASES = {
    "plain": rendered(Role("echo", "img", entrypoint="echo", args=("hi there",))),
    "ddp": rendered(
        ddp(
            env={"LOGLEVEL": "INFO", "RELIGHT_JOB_ID": "slurm://relight/${app_id}", "A": "b,c\nd"},
            max_retries=3,
            resource=Resource(96, 8, 1024),
        ),
        partition="gpu",
        time="1-12",
        account="me",
        comment='it\'s "it"',
        sbatch=["--reservation=r"],
    ),
    "elastic": rendered(ddp("2:4", 4, min_replicas=2), signal="TERM@300"),
    "pyxis": rendered(
        ddp(resource=Resource(8, 8, 1024), mounts=[BindMount("/data", "/in", read_only=True)]),
        image="nvcr.io#nvidia/pytorch:25.01-py3",
    ),
    "apptainer": rendered(
        ddp("2:4", 4, min_replicas=2, resource=Resource(8, 8, 1024)),
        image="/images/my torch.sif",
        container="apptainer",
    ),
    "roles": rendered(
        ddp(), Role("reader", "img", entrypoint="python", args=("read.py", "${replica_id}"))
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_batch_scripts_match_recorded_ones(name: str) -> None:
    """The recorded scripts are in slurm/NAME.sbatch."""
    path = GOLDEN / f"{name}.sbatch"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(CASES[name])
    assert path.read_text() == CASES[name]


@pytest.mark.parametrize("name", CASES)
def test_batch_scripts_are_valid_bash(name: str) -> None:
    checked = subprocess.run(
        ["bash", "-n"], input=CASES[name], text=True, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


UNFIT = "srun: error: n3: task 2: Exited with exit code 4"
LOST = "srun: error: Node failure on n3\nsrun: error: n3: task 2: Killed"
ALL_FAILED = "srun: error: n[1-3]: tasks 0-2: Exited with exit code 7"


@pytest.mark.parametrize(
    ("name", "said", "expected"),
    [
        ("elastic", UNFIT, ""),
        ("elastic", LOST, ""),
        ("elastic", f"{LOST}\nsrun: error: n2: task 1: Exited with exit code 75", ""),
        ("elastic", ALL_FAILED, "7 main"),
        ("elastic", f"{UNFIT}\nsrun: error: n[1-2]: tasks 0-1: Exited with exit code 3", "4 main"),
        ("elastic", f"srun: error: Application launch failed: no\n{UNFIT}", "4 main"),
        ("elastic", "srun: error: Unable to create step", "9 main"),
        ("ddp", UNFIT, "4 main"),
    ],
)
def test_elastic_job_step_succeeds_if_any_agent_succeeds(
    tmp_path: Path, name: str, said: str, expected: str
) -> None:
    """Other agents may have left the job earlier, or lost their nodes."""
    functions = CASES[name][CASES[name].index("# Print the exit code or signal") :]
    functions = functions[: functions.index("\n}\n", functions.index("step() {")) + 3]
    scontrol = "scontrol() { tr , '\\n' <<<\"${3/n\\[1-/n1,n2,n}\" | tr -d ]; }"
    srun = f"srun() {{ printf '%s\\n' {script.word(said)} >&2; return 9; }}"
    flags = "--kill-on-bad-exit=0" + (" --no-kill" if name == "elastic" else "")
    command = f"{scontrol}\n{srun}\n{functions}\nstep main 3 {flags} true"
    (tmp_path / "main").mkdir()
    subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, "RELIGHT_JOB_DIR": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    failed = tmp_path / "failed"
    assert (failed.read_text().strip() if failed.exists() else "") == expected


class Attempts:
    """Runs the script of a job in which every task fails. Slurm is replaced by shell functions."""

    def __init__(self, place: Path, *roles: Role) -> None:
        self.directory = place / "slurm"
        app = AppDef("main", roles)
        self._script = script.render(app, {}, "main-x7", str(self.directory), str(place), "/bin")

    def run(self, restarts: int, job: str = "7", state: str = "RUNNING") -> tuple[bool, str]:
        """Return whether the script requeued the job, and its output."""
        slurm = f"""
            scontrol() {{ [ $1 = show ] && echo JobState={state} || echo "REQUEUE $2"; }}
            srun() {{ echo srun: error: n1: task 0: Exited with exit code 1 >&2; return 1; }}
            scancel() {{ :; }}
            sleep() {{ :; }}
        """
        variables = {"SLURM_JOB_ID": job, "SLURM_RESTART_COUNT": str(restarts)}
        done = subprocess.run(
            ["bash", "-c", f"{slurm}\n{self._script}"],
            env={"PATH": os.environ["PATH"], "SLURM_JOB_NUM_NODES": "1", **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        said = done.stdout + done.stderr
        assert done.returncode == 1, said
        return f"REQUEUE {job}" in said, said


def test_requeues_by_slurm_do_not_count_as_retries(tmp_path: Path) -> None:
    """SLURM_RESTART_COUNT also counts lost nodes and preemptions (sbatch(1), "OUTPUT ENVIRONMENT
    VARIABLES").
    """
    attempts = Attempts(tmp_path, Role("a", "img", entrypoint="x", max_retries=2),
                        Role("b", "img", entrypoint="x", max_retries=2))  # fmt: skip
    retried, said = attempts.run(restarts=1)
    assert retried and "requeueing the job, retry 1 of 2" in said
    retried, said = attempts.run(restarts=5)
    assert retried and "requeueing the job, retry 2 of 2" in said
    assert not attempts.run(restarts=6)[0]
    assert attempts.run(restarts=0, job="77")[0]  # the printed script, submitted once more


def test_job_that_slurm_requeues_itself_is_not_counted_as_retry(tmp_path: Path) -> None:
    """Its tasks fail because Slurm kills them after it has lost a node."""
    attempts = Attempts(tmp_path, Role("main", "img", entrypoint="x", max_retries=1))
    assert not attempts.run(restarts=0, state="PENDING")[0]
    assert attempts.run(restarts=1)[0]


def test_retry_that_cannot_be_recorded_is_not_made(tmp_path: Path) -> None:
    """A failing job would otherwise be retried forever on a full disk."""
    attempts = Attempts(tmp_path, Role("main", "img", entrypoint="x", max_retries=1))
    (attempts.directory / "retries").mkdir(parents=True)  # not even root can write to it
    retried, said = attempts.run(restarts=0)
    assert not retried
    assert f"the job is not retried: can't write to {attempts.directory}" in said


def test_job_whose_directory_is_not_writable_fails(tmp_path: Path) -> None:
    """The script can't record the failure, and its exit code is the job's."""
    (tmp_path / "slurm").touch()
    retried, _ = Attempts(tmp_path, Role("main", "img", entrypoint="x", max_retries=1)).run(0)
    assert not retried


def test_failure_reason_is_error_line_not_hint(tmp_path: Path) -> None:
    stderr = tmp_path / "stderr.log"
    stderr.write_text("relight: error: no such file\nrelight:   hint: look at it\n\n")
    assert failure_reason.cause("", str(stderr), 4) == "relight: error: no such file"


def test_every_option_becomes_an_sbatch_line() -> None:
    options = {
        "partition": "p1,p2", "time": "2:00:00", "account": "a", "qos": "high", "constraint": "a&b",
        "comment": "c", "mail-user": "u@x.org", "mail-type": "END,FAIL", "nodelist": "n[1-2]",
        "exclude": "n3", "exclusive": True, "requeue": False, "gpus": "gres", "gpu_type": "a100",
        "mem": False, "image": None, "container": "pyxis", "array": None,
        "sbatch": ["--licenses=l:1", "--nice"], "signal": "none",
    }  # fmt: skip
    assert sbatch_lines(ddp(resource=Resource(4, 2, 8)), **options) == [
        "--job-name=main-x7",
        "--chdir=/home/u/work",
        "--output=/dev/null",
        "--open-mode=append",
        "--comment=c",
        "--mail-user=u@x.org",
        "--mail-type=END,FAIL",
        "--account=a",
        "--partition=p1,p2",
        "--qos=high",
        "--time=2:00:00",
        "--constraint=a&b",
        "--nodelist=n[1-2]",
        "--exclude=n3",
        "--exclusive",
        "--no-requeue",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--cpus-per-task=4",
        "--gres=gpu:a100:2",
        "--licenses=l:1",
        "--nice",
    ]
    names = {option.name for option in Slurm().options} - {"job_dir", "workspace"}
    assert names == set(options)


def test_list_options_accept_semicolons_as_separators(tmp_path: Path) -> None:
    """A comma in -cfg begins the next option."""
    options = {"partition": "p;q", "nodelist": "n1;n2", "exclude": "n3;n4", "mail-type": "END;FAIL"}
    cfg = {**options, "job_dir": str(tmp_path)}
    lines = Slurm().render(AppDef("main", (ddp(),)), cfg, "main-x7").text.splitlines()
    for name, value in options.items():
        assert f"#SBATCH --{name}={value.replace(';', ',')}" in lines


def test_log_file_of_user_takes_precedence(tmp_path: Path) -> None:
    """The command line of sbatch takes precedence over the options in a script."""

    def command(*words: str) -> list[str]:
        cfg = {"sbatch": list(words), "job_dir": str(tmp_path)}
        found: list[str] = Slurm().render(AppDef("main", (ddp(),)), cfg, "main-x7").body["command"]
        return found[1:-1]

    log = f"--output={tmp_path}/main-x7/slurm/batch.log"
    for words in ("--nice", '--comment "-o"', "--job-name --output=x"):
        assert command(words) == ["--parsable", log]
    for words in ("--output=mine.log", "-o mine.log", "--nice --out mine.log"):
        assert command(words) == ["--parsable"]


def test_each_job_in_an_array_has_its_own_id_and_directory() -> None:
    """One of the jobs has the array's own SLURM_JOB_ID, with which Slurm's commands would affect
    the whole array. The launcher is stored only once.
    """
    role = ddp(env={"ID": "slurm://relight/${app_id}", "MINE": "'$SLURM_JOB_ID"}, max_retries=1)
    text = rendered(role, array="0-3,8%2")
    lines = sbatch_lines(role, array="0-3,8%2")
    assert lines[2:5] == [
        "--output=/dev/null",
        "--open-mode=append",
        "--array=0-3,8%2",
    ]
    assert "export RELIGHT_JOB_DIR=/home/u/jobs/main-x7/slurm/$SLURM_ARRAY_TASK_ID\n" in text
    assert 'exec >>"${RELIGHT_JOB_DIR%/*}/batch_$SLURM_ARRAY_TASK_ID.log"' in text
    job = "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
    assert f'export ID="slurm://relight/{job}"' in text
    commands = [
        line for line in text.splitlines() if re.search("scancel|scontrol (show j|r)", line)
    ]
    assert len(commands) == 5 and all(f'"{job}"' in line for line in commands)
    assert text.count("$SLURM_JOB_ID") == text.count("\\$SLURM_JOB_ID") == 1  # the user's own
    assert '"$PATH":/opt/relight/bin:"${RELIGHT_JOB_DIR%/*}/launcher"' in text
    checked = subprocess.run(
        ["bash", "-n"], input=text, text=True, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_script_with_workspace_does_not_suggest_sbatch() -> None:
    header = rendered(ddp(), workspace="/home/u/src").splitlines()[1]
    assert header == "# Job main-x7, written by relight. Only relight submit copies the workspace."


@pytest.mark.parametrize("array", ["x", "3-1", "0-9%0", "1,", "0-5:2", "-1"])
def test_invalid_array_is_rejected(array: str) -> None:
    with pytest.raises(UsageError, match=f"array={array}: expected indices"):
        rendered(ddp(), array=array)
    with pytest.raises(UsageError, match="several roles"):
        rendered(ddp(), Role("x", "img", entrypoint="y"), array="0-1")


@pytest.mark.parametrize(
    ("form", "kind", "lines"),
    [
        ("gpus-per-node", None, ["--gpus-per-node=2"]),
        ("gpus-per-node", "h100", ["--gpus-per-node=h100:2"]),
        ("gpus-per-task", None, ["--ntasks=2", "--gpus-per-task=2"]),
        ("gres", None, ["--gres=gpu:2"]),
    ],
)
def test_gpus_are_requested_with_configured_sbatch_option(
    form: str, kind: str | None, lines: list[str]
) -> None:
    found = sbatch_lines(ddp(resource=Resource(-1, 2, -1)), gpus=form, gpu_type=kind)
    assert found[-len(lines) :] == lines


@pytest.mark.parametrize(
    ("signal", "time", "role", "expected"),
    [
        (None, None, ddp(), "B:USR1@120"),
        (None, "60", ddp(), "B:USR1@120"),
        (None, "4", ddp(), "B:USR1@60"),
        (None, "0:40", ddp(), "B:USR1@10"),
        (None, None, Role("x", "img", entrypoint="python"), None),
        ("USR2@30", None, Role("x", "img", entrypoint="python"), "B:USR1@30"),
        ("B:SIGTERM", None, ddp(), "B:USR1@60"),
        ("none", None, ddp(), None),
    ],
)
def test_agents_get_signal_before_time_limit(
    signal: str | None, time: str | None, role: Role, expected: str | None
) -> None:
    """Other programs get one only on request. A signal is never sent right at the job's start."""
    lines = [line for line in sbatch_lines(role, signal=signal, time=time) if "signal" in line]
    assert lines == ([f"--signal={expected}"] if expected else [])


@pytest.mark.parametrize(
    ("roles", "cfg", "message"),
    [
        ([Role("a/b", "img")], {}, "is not a valid directory name"),
        ([Role("failed", "img")], {}, "is not a valid directory name"),
        ([ddp(env={"a.b": "c"})], {}, "'a.b' is not a shell variable name"),
        ([ddp()], {"comment": "a\nb"}, "a single line"),
        ([ddp()], {"sbatch": ["--nice\nrm"]}, "a single line"),
        ([ddp()], {"signal": "KILL@9"}, "expected SIGNAL@SECONDS"),
        ([ddp()], {"signal": "soon"}, "expected SIGNAL@SECONDS"),
        ([ddp(mounts=[BindMount("/a,b", "/c")])], {"image": "x"}, "can't mount"),
        ([ddp("1:2", min_replicas=1, resource=Resource(1, 1, 1))], {"gpus": "gpus-per-task"},
         "needs a fixed number of nodes"),
    ],
)  # fmt: skip
def test_ambiguous_values_are_rejected(
    roles: list[Role], cfg: dict[str, Any], message: str
) -> None:
    """Slurm or a shell would misinterpret them."""
    with pytest.raises(UsageError, match=message):
        rendered(*roles, **cfg)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40))
@settings(max_examples=60)
def test_quoted_arguments_are_passed_verbatim(text: str) -> None:
    command = f"printf '%s\\0' {script.word(text)}"
    printed = subprocess.run(["bash", "-c", command], capture_output=True, check=True).stdout
    assert printed.decode() == text + "\0"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90", 90), ("1:30", 1.5), ("1:30:00", 90), ("2-12", 3600), ("1-0:30", 1470),
     ("1-0:0:30", 1440.5), ("UNLIMITED", None), ("", None)],
)  # fmt: skip
def test_time_limits_are_parsed_as_in_sbatch(text: str, expected: float | None) -> None:
    assert script.minutes(text) == expected


# Slurm's output.


def squeue_line(**values: str) -> str:
    return "".join(values.get(name, "N/A").ljust(width) for name, width in states._FIELDS)


def test_parses_squeue_output() -> None:
    """Components of a heterogeneous job are distinguished. Exit codes are in wait(2) format."""
    text = "\n".join(
        [
            squeue_line(JobID="7", State="FAILED", exit_code="2304", RestartCnt="2", Name="a b",
                        NodeList="n[1-2]", Reason="NonZeroExitCode", SubmitTime="2026-01-02"),
            squeue_line(JobID="9", HetJobID="8", HetJobOffset="1", State="PENDING", RestartCnt="0",
                        exit_code="0", Reason="Resources", NodeList=""),
            squeue_line(JobID="8", HetJobID="8", HetJobOffset="0", State="RUNNING", exit_code="15"),
        ]
    )  # fmt: skip
    jobs = states.from_squeue(text)
    assert list(jobs) == ["7", "8"]
    (seven,), (first, second) = jobs["7"], jobs["8"]
    assert (seven.state, seven.exitcode, seven.restarts, seven.name) == ("FAILED", 9, 2, "a b")
    assert seven.hosts == ("n1", "n2") and seven.submitted == "2026-01-02"
    assert (first.offset, second.offset, first.exitcode) == (0, 1, -15)
    assert second.explain() == "pending: Resources" and seven.explain() == ""
    lost = seven._replace(reason="JobLaunchFailure", exitcode=-9)
    assert lost.explain() == "the node that ran its script, the first, was lost"
    assert states.combined_state(jobs["8"]) is AppState.RUNNING


def test_parses_squeue_output_for_job_array() -> None:
    """They are parts of the array, ordered by index."""
    pending = squeue_line(JobID="5", ArrayJobID="5", ArrayTaskID="10", State="PENDING")
    running = squeue_line(JobID="6", ArrayJobID="5", ArrayTaskID="2", State="RUNNING")
    found = [states.from_squeue(f"{pending}\n{running}")]
    found.append(states.from_sacct("5_10|PENDING|0:0|x|a|b\n5_2|RUNNING|0:0|x|n1|b\n"))
    for jobs in found:
        assert list(jobs) == ["5"]
        assert [(part.array_index, part.state) for part in jobs["5"]] == [
            (2, "RUNNING"),
            (10, "PENDING"),
        ]
        assert states.combined_state(jobs["5"]) is AppState.RUNNING
    assert states.split_array_id("5_10") == ("5", 10) and states.split_array_id("5") == ("5", None)


def test_status_of_array_forgotten_by_slurm_comes_from_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that was cancelled before its start doesn't have any files."""
    directory = tmp_path / "jobs" / "sweep-x7"
    for index, ended in enumerate(("0", "3", "")):
        (directory / "slurm" / str(index)).mkdir(parents=True)
        if ended:
            (directory / "slurm" / str(index) / "ended").write_text(ended)
    record = {"app_id": "5", "directory": f"{directory}/slurm", "roles": {"main": 1}}
    (directory / "slurm.json").write_text(json.dumps({**record, "array": [0, 1, 2]}))
    monkeypatch.setenv("RELIGHT_STATE_DIR", str(tmp_path))
    known: states.Jobs = {}
    monkeypatch.setattr(states, "query", lambda _: known)
    found = Slurm().status(["5", "5_1", "5_7"])
    assert [each.state.name for each in found["5"].replicas] == ["SUCCEEDED", "FAILED", "UNKNOWN"]
    assert found["5"].state is AppState.UNKNOWN
    assert found["5_1"].state is AppState.FAILED
    assert "5_7" not in found
    with pytest.raises(UsageError, match="5 is a job array"):
        Slurm().logs("5", LogQuery("main", 0))
    known |= states.from_sacct("5_0|COMPLETED|0:0|x|n1|sweep-x7\n")
    found = Slurm().status(["5"])
    assert (found["5"].state, found["5"].message) == (
        AppState.FAILED,
        "1 succeeded, 1 failed, 1 cancelled",
    )


def test_parses_sacct_output() -> None:
    """This covers components, exit codes, signals, and who cancelled the job."""
    text = (
        "7|CANCELLED by 1000|0:15|2026-01-02T03:04:05|None assigned|a|b\n"
        "8+0|TIMEOUT|0:0|2026-01-02T03:04:05|n1|het\n8+1|COMPLETED|3:0|x|n[2-3]|het\n"
        "9.batch|FAILED|1:0|x|n1|batch\n"
    )
    jobs = states.from_sacct(text)
    assert list(jobs) == ["7", "8"]
    assert (jobs["7"][0].app_state, jobs["7"][0].exitcode) == (AppState.CANCELLED, -15)
    assert (jobs["7"][0].name, jobs["7"][0].hosts) == ("a|b", ())
    assert states.combined_state(jobs["8"]) is AppState.FAILED
    assert jobs["8"][0].explain() == "its time limit was reached"
    assert jobs["8"][1].hosts == ("n2", "n3")


@pytest.mark.parametrize(
    ("parts", "expected"),
    [("COMPLETED COMPLETED", "SUCCEEDED"), ("FAILED COMPLETED", "FAILED"),
     ("COMPLETED NODE_FAIL", "FAILED"), ("CANCELLED COMPLETED", "CANCELLED"),
     ("FAILED COMPLETING", "RUNNING"), ("PENDING CONFIGURING", "PENDING"),
     ("RUNNING PENDING", "RUNNING"), ("COMPLETED BRAND_NEW", "UNKNOWN")],
)  # fmt: skip
def test_heterogeneous_job_ends_once_all_components_have_ended(parts: str, expected: str) -> None:
    """It has failed if any part has, whatever their order."""
    text = "\n".join(f"1+{k}|{state}|0:0|x|n1|a" for k, state in enumerate(parts.split()))
    assert states.combined_state(states.from_sacct(text)["1"]) is AppState[expected]


def test_parses_failed_tasks_from_srun_output() -> None:
    """Tasks on lost nodes are marked."""
    text = """\
srun: error: Node failure on n3
srun: error: n3: task 2: Killed
srun: error: n[1-2]: tasks 0-1: Exited with exit code 7
srun: launch/slurm: _step_signal: Terminating StepId=1.0
srun: error: n4: task 3: Segmentation fault (core dumped)
srun: error: Unable to create step for job 1: Job/step already completing or completed
"""
    assert states.task_ends(text)[0] == [
        TaskEnd(2, "n3", -9, lost=True),
        TaskEnd(0, "n1", 7, lost=False),
        TaskEnd(1, "n2", 7, lost=False),
        TaskEnd(3, "n4", -11, lost=False),
    ]


def slurm_status(
    place: Path, patch: pytest.MonkeyPatch, job: str, srun: str, nodes: str = "n[1-3]"
) -> AppStatus:
    """Return the status of a job with 3 replicas, given squeue's fields and srun's messages."""
    folder = place / "jobs" / "main-x7" / "slurm"
    (folder / "main").mkdir(parents=True, exist_ok=True)
    record = {"app_id": "7", "directory": str(folder), "roles": {"main": 3}}
    (folder.parent / "slurm.json").write_text(json.dumps(record))
    (folder / "main" / "nodes").write_text(f"{nodes}\n")
    (folder / "main" / "srun.log").write_text(srun)
    patch.setenv("RELIGHT_STATE_DIR", str(place))
    patch.setattr(states, "query", lambda _: states.from_sacct(f"7|{job}|main-x7\n"))
    return Slurm().status(["7"])["7"]


@pytest.mark.parametrize("killed", ["", "srun: error: n2: task 1: Killed\n"])
def test_replicas_keep_their_hosts_after_a_node_is_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, killed: str
) -> None:
    """Slurm removes the node from the job's node list. It kills the task only if it can."""
    srun = f"srun: error: Node failure on n2\n{killed}"
    status = slurm_status(tmp_path, monkeypatch, "RUNNING|0:0|x|n[1,3]", srun)
    assert [(each.host, each.state.name, each.error) for each in status.replicas] == [
        ("n1", "RUNNING", ""),
        ("n2", "FAILED", "its node was lost"),
        ("n3", "RUNNING", ""),
    ]


def test_requeued_job_does_not_show_hosts_of_earlier_attempt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    status = slurm_status(tmp_path, monkeypatch, "RUNNING|0:0|x|n[4-6]", "")
    assert [each.host for each in status.replicas] == ["n4", "n5", "n6"]
    status = slurm_status(tmp_path, monkeypatch, "PENDING|0:0|x|", "")
    assert [each.host for each in status.replicas] == ["", "", ""]


def test_headline_names_the_replica_whose_rank_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All agents exit with the same code and report the same failure."""
    for number in range(3):
        path = tmp_path / "jobs" / "main-x7" / "slurm" / "main" / str(number) / "error.json"
        own = str(path.with_name("worker.json")) if number == 1 else ""
        failure = Failure(1, 0, "n2", 1, 7, 0.0, 0, None, (), "", "")
        error_files.write(str(path), failure, own, "rank 1 exited with code 7")
    srun = "srun: error: n[1-3]: tasks 0-2: Exited with exit code 7\n"
    status = slurm_status(tmp_path, monkeypatch, "FAILED|7:0|x|n[1-3]", srun)
    assert status.message == "main/1 on n2 failed with exit code 7: rank 1 exited with code 7"


def test_dry_run_works_without_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("RELIGHT_STATE_DIR", str(tmp_path / "state"))
    scheduler = Slurm()
    assert scheduler.affinity() == 0
    request = scheduler.render(AppDef("main", (ddp(),)), {}, "main-x7")
    assert request.text == request.body["script"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("image", "cfg", "notes"),
    [
        ("mine:1", {}, ("the image mine:1 has no effect: on Slurm, use -cfg image=IMAGE",)),
        ("mine:1", {"image": "mine#1"}, ()),
        (IMAGE, {}, ()),
        (NO_IMAGE, {}, ()),
        ("", {}, ()),
    ],
)
def test_note_says_how_to_choose_an_image(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    image: str,
    cfg: dict[str, Any],
    notes: tuple[str, ...],
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    app = AppDef("main", (Role("main", image, entrypoint="true"),))
    assert Slurm().render(app, cfg, "main-x7").notes == notes


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("sbatch: fatal: Could not establish a configuration source",
         "no Slurm cluster is known on this host: Could not establish a configuration source"),
        ("sbatch: fatal: Unable to process configuration file",
         "Slurm's configuration on this host can't be used: Unable to process configuration file"),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (refused)",
         "Slurm's controller (slurmctld) is not responding: Batch job submission failed: Unable to "
         "contact slurm controller (refused)"),
    ],
)  # fmt: skip
def test_error_about_missing_cluster_quotes_slurm_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, expected: str
) -> None:
    for name in ("sbatch", "squeue"):
        command = tmp_path / name
        command.write_text(f"#!/bin/sh\necho 'debug' >&2\necho '{said}' >&2\nexit 1\n")
        command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("RELIGHT_STATE_DIR", str(tmp_path / "state"))
    scheduler = Slurm()
    request = scheduler.render(AppDef("main", (ddp(),)), {}, "main-x7")
    for ask in (lambda: scheduler.submit(request), lambda: scheduler.status(["1"])):
        with pytest.raises(MachineError) as caught:
            ask()
        assert caught.value.message == expected
        assert caught.value.hint


@pytest.mark.parametrize(
    ("said", "partition", "expected"),
    [("a* 1\nb 64000+\n", "", False), ("a* 1\nb 64000+\n", "b", True), ("a 1\nb 64000\n", "", True),
     ("", "", True), ("sinfo: error: no\n", "x", True)],
)  # fmt: skip
def test_memory_is_requested_only_if_slurm_manages_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, partition: str, expected: bool
) -> None:
    """The user can force it. If Slurm isn't installed here, memory is requested."""
    sinfo = tmp_path / "sinfo"
    sinfo.write_text(
        f"#!/bin/sh\nprintf '{said}' | grep \"$(echo \"$4\" | sed 's/--partition=//')\"\n"
    )
    sinfo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    app = AppDef("main", (ddp(resource=Resource(1, 0, 2048)),))

    def asks(**cfg: Any) -> bool:
        return "--mem=2048M" in Slurm().render(app, {"partition": partition, **cfg}, "x").text

    assert asks() is expected
    assert asks(mem=True) and not asks(mem=False)


FORGOTTEN = {"app_id": "77", "roles": {"main": 2}}


@pytest.mark.parametrize(
    ("ended", "state", "exitcode"),
    [("0\n", AppState.SUCCEEDED, 0), ("7\n", AppState.FAILED, 7), (None, AppState.UNKNOWN, 1)],
)
def test_status_of_job_forgotten_by_slurm_comes_from_its_directory(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    ended: str | None,
    state: AppState,
    exitcode: int,
) -> None:
    """Without accounting, the directory has the exit code and the logs."""
    import json

    monkeypatch.setenv("RELIGHT_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(states, "query", lambda ids: {})
    folder = tmp_path / "jobs" / "main-x7" / "slurm"
    (folder / "main" / "1").mkdir(parents=True)
    record = {**FORGOTTEN, "directory": str(folder)}
    (folder.parent / "slurm.json").write_text(json.dumps(record))
    (folder / "main" / "1" / "stdout.log").write_text("hi\n")
    (folder / "main" / "srun.log").write_text(
        "srun: error: n2: task 1: Exited with exit code 7\n" if ended != "0\n" else ""
    )
    if ended:
        (folder / "ended").write_text(ended)
    scheduler = Slurm()
    status = scheduler.status(["77", "78"])
    assert list(status) == ["77"]
    assert (status["77"].state, status["77"].exitcode) == (state, exitcode)
    assert list(scheduler.logs("77", LogQuery("main", 1))) == ["hi"]
