"""Jobs on a real Slurm: slurmctld, and a slurmd on each of 4 hosts, without accounting."""

import json
import os
import re
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters.slurm import Slurm
from clusters.workers import SHELL
from conftest import LIMIT_S, long
from netlab import Lab

pytestmark = [pytest.mark.slow, pytest.mark.needs_slurm]
NODES = ["node1", "node2", "node3", "node4"]
VERBS = Path(__file__).parent / "slurm_jobs.py"
NEWS_S = 3.0
OVER = ("SUCCEEDED", "FAILED", "CANCELLED")
RUN = (
    "relight run --rdzv_backend c10d --rdzv_endpoint $${${rank0_env}:=localhost}:29500 "
    "--rdzv_id '${app_id}' --rdzv_conf last_call_timeout=1 --nproc_per_node 2 --role '' "
)


class Jobs:
    """The scheduler on the login node."""

    def __init__(self, slurm: Slurm) -> None:
        self.slurm = slurm

    def do(self, *words: str, expected: int = 0, **options: Any) -> Any:
        """Run one command, and return its output, parsed if it is JSON."""
        command = [sys.executable, VERBS, *words]
        environment = {**SHELL, **options.pop("env", {})}
        text, code = self.slurm.run(command, env=environment, **options)
        assert code == expected, f"{text}\n{self.slurm.logs()}"
        try:
            return json.loads(text)
        except ValueError:
            return text

    def submit(self, *roles: dict[str, Any], **options: Any) -> str:
        """Submit a job with these roles, and return its id."""
        cfg = options.pop("cfg", {})
        app_id = self.do("submit", "job", json.dumps(cfg), *map(json.dumps, roles), **options)
        assert app_id.isdecimal()
        return str(app_id)

    def status(self, app_id: str) -> dict[str, Any]:
        """Return a job's status."""
        found: dict[str, Any] = self.do("status", app_id)[app_id]
        return found

    def until(self, app_id: str, *states: str) -> dict[str, Any]:
        """Wait until a job is in one of these states."""
        end = time.monotonic() + LIMIT_S
        while (status := self.status(app_id))["state"] not in states:
            assert time.monotonic() < end, (
                f"{status}\n{self.directory(app_id)}\n{self.said(app_id)}"
            )
            self._await_news(app_id)
        return status

    def _await_news(self, app_id: str) -> None:
        """Wait briefly until Slurm shows a different state for a job.

        squeue is a hundred times cheaper than relight's status.
        """
        command = ["squeue", "--noheader", "--states=all", f"--jobs={app_id}", "--format=%i %T %r"]
        before, end = self.slurm.run(command), time.monotonic() + NEWS_S
        while self.slurm.run(command) == before and time.monotonic() < end:
            time.sleep(0.1)

    def logs(self, app_id: str, replica: str = "main/0", stream: str = "combined") -> list[str]:
        """Return a replica's lines."""
        command = [sys.executable, VERBS, "logs", app_id, *replica.split("/"), stream, "once"]
        text, code = self.slurm.run(command, env=SHELL)
        assert code == 0, text
        return text.splitlines()

    def directory(self, app_id: str) -> Path:
        """Return a job's directory."""
        for path in self.slurm.directory.rglob("slurm.json"):
            record = json.loads(path.read_text())
            if record["app_id"] == app_id:
                return Path(record["directory"])
        raise AssertionError(f"no job {app_id}")

    def said(self, app_id: str) -> str:
        """Return the batch script's messages."""
        path = self.directory(app_id) / "batch.log"
        return path.read_text() if path.exists() else ""

    def wait_for(self, path: Path) -> None:
        """Wait until a file exists."""
        end = time.monotonic() + LIMIT_S
        while not path.exists():
            assert time.monotonic() < end, f"no {path}\n{self.slurm.logs()}"
            time.sleep(0.05)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """Provide the scheduler, on a Slurm with four nodes and a login node."""
    directory = tmp_path_factory.mktemp("slurm")
    with Lab(hosts=["login", *NODES]) as lab, Slurm(lab, directory) as slurm:
        yield Jobs(slurm)


@pytest.fixture(autouse=True)
def idle(jobs: Jobs) -> Iterator[None]:
    """Keep one test's leftovers from affecting the next."""
    yield
    jobs.slurm.clear()


def bash(command: str, name: str = "main", replicas: int = 1, **fields: Any) -> dict[str, Any]:
    """Return a role that runs a bash command."""
    return {"name": name, "args": ["-c", command], "num_replicas": replicas, **fields}


def test_agents_in_slurm_job_can_rendezvous(jobs: Jobs) -> None:
    """`-j 2x2` has one agent per node and four ranks. Variables are passed unchanged, logs can be
    read by replica and by rank, and the script is readable only by the user. The job brings its
    launcher: the nodes may have a different relight, or none.
    """
    value = "a,b\n'\"$HOME `id` \\"
    command = RUN + "--nnodes 2 --tee 3 --no-python bash -c "
    command += "'echo $RANK/$WORLD_SIZE \"$VALUE\"; echo launcher $(command -v relight) $RANK'"
    env = {"VALUE": value, "ID": "s://${app_id}", "RELIGHT_LAUNCHER": "travels"}
    app_id = jobs.submit(bash(command, replicas=2, env=env))
    status = jobs.until(app_id, *OVER)
    assert status == {
        "state": "SUCCEEDED",
        "message": "",
        "restarts": 0,
        "exitcode": 0,
        "replicas": [
            ["main/0", "SUCCEEDED", "node1", 0, ""],
            ["main/1", "SUCCEEDED", "node2", 0, ""],
        ],
    }
    directory = jobs.directory(app_id)
    brought = directory / "launcher" / "relight"
    assert stat.S_IMODE(brought.stat().st_mode) == 0o500
    for k in (0, 1):
        text = "\n".join(jobs.logs(app_id, f"main/{k}", "stdout"))
        for rank in (2 * k, 2 * k + 1):
            assert f"{rank}/4 a,b" in text
            assert f"launcher {brought} {rank}" in text
        assert "'\"$HOME `id` \\" in text
        errors = "\n".join(jobs.logs(app_id, f"main/{k}", "stderr"))
        assert f"job {app_id}: rendezvous at node1:29500" in errors
        assert "no token" not in errors
    own = [p.read_text() for p in directory.glob("torchelastic/main/*/attempt_0/*/stdout.log")]
    assert sorted(text.partition(" ")[0] for text in own) == ["0/4", "1/4", "2/4", "3/4"]
    assert stat.S_IMODE((directory / "job.sbatch").stat().st_mode) == 0o600
    shown, _ = jobs.slurm.run(["scontrol", "show", "job", app_id])
    assert value.partition("\n")[0] not in shown + jobs.said(app_id)


@pytest.mark.parametrize(
    "variables",
    [
        {"SBATCH_EXPORT": "NONE"},
        long({"SLURM_EXPORT_ENV": "NONE"}),
        long({"SLURM_MEM_PER_CPU": "50", "SLURM_MEM_PER_NODE": "100", "SLURM_JOB_ID": "7"}),
        {"SLURM_NNODES": "1", "SLURM_NTASKS": "1", "SLURM_CPU_BIND": "quiet,mask_cpu:0x1"},
        {
            "SLURM_DISTRIBUTION": "plane=3",
            "SLURM_HINT": "nomultithread",
            "SLURM_THREADS_PER_CORE": "1",
        },
    ],
    ids=lambda variables: next(iter(variables)),
)
def test_submitters_slurm_variables_do_not_affect_job(
    jobs: Jobs, variables: dict[str, str]
) -> None:
    """Sites set SBATCH_EXPORT=NONE; who submits from an interactive job has its variables."""
    app_id = jobs.submit(bash("echo here $SLURM_PROCID", replicas=2), env=variables)
    assert jobs.until(app_id, *OVER)["state"] == "SUCCEEDED", jobs.said(app_id)
    assert "here 1" in jobs.logs(app_id, "main/1", "stdout")


def test_job_exits_with_exit_code_of_failed_rank(jobs: Jobs) -> None:
    """The message names the rank and its node."""
    command = RUN + "--nnodes 2 --no-python bash -c 'sleep 0.3; [ $RANK != 3 ] || exit 7; sleep 99'"
    app_id = jobs.submit(bash(command, replicas=2, env={"RELIGHT_JOB_ID": "slurm://x/${app_id}"}))
    status = jobs.until(app_id, *OVER)
    assert (status["state"], status["exitcode"]) == ("FAILED", 7), jobs.said(app_id)
    expected = "main/1 on node2 failed with exit code 7: rank 3 exited with code 7"
    assert expected in status["message"]


def test_failed_replica_ends_all_other_replicas(jobs: Jobs) -> None:
    """Without agents, the first failure stops the other replicas and determines the exit code."""
    command = "sleep 0.3; [ $SLURM_PROCID != 1 ] || { echo no data >&2; exit 7; }; exec sleep 99"
    app_id = jobs.submit(bash(command, replicas=3))
    status = jobs.until(app_id, *OVER)
    assert (status["state"], status["exitcode"]) == ("FAILED", 7)
    assert status["message"] == "main/1 on node2 failed with exit code 7: no data"
    assert [replica[1] for replica in status["replicas"]] == ["CANCELLED", "FAILED", "CANCELLED"]
    said, _ = jobs.slurm.run(["scontrol", "show", "job", app_id])
    assert "ExitCode=7:0" in said, "and Slurm knows it as well"


def test_logs_can_be_followed_and_cancel_ends_whole_job(jobs: Jobs) -> None:
    pids = jobs.slurm.directory / "pids"
    pids.mkdir()
    command = f"touch {pids}/$$; echo one; sleep 1; echo two; sleep 999"
    app_id = jobs.submit(bash(command, replicas=2))
    follow = [sys.executable, VERBS, "logs", app_id, "main", "1", "combined", "follow"]
    process = jobs.slurm.start(follow, stdout=-1, stderr=-1, text=True, env=SHELL)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["one\n", "two\n"]
    assert process.poll() is None
    assert jobs.status(app_id)["state"] == "RUNNING"
    jobs.do("cancel", app_id)
    status = jobs.until(app_id, *OVER)
    assert status["state"] == "CANCELLED"
    assert {replica[1] for replica in status["replicas"]} == {"CANCELLED"}
    assert process.communicate(timeout=LIMIT_S) == ("", "")
    numbers = [int(path.name) for path in pids.iterdir()]
    assert len(numbers) == 2
    end = time.monotonic() + LIMIT_S
    while any(_runs(number) for number in numbers):
        assert time.monotonic() < end, "a replica is left"
        time.sleep(0.1)
    jobs.do("cancel", app_id)
    folder = jobs.directory(app_id)
    jobs.do("delete", app_id)
    assert not folder.exists()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_job_is_requeued_after_node_loss(jobs: Jobs) -> None:
    """When a node is set down, a fixed-size job starts over with the same id, and keeps its retry
    for a later failure.
    """
    here = jobs.slurm.directory
    command = (
        f"touch {here}/again.$SLURM_PROCID.${{SLURM_RESTART_COUNT:-0}}; "
        f"while [ ! -e {here}/again.go ]; do sleep 0.1; done; echo try $SLURM_RESTART_COUNT; "
        "[ $SLURM_PROCID.$SLURM_RESTART_COUNT != 0.1 ]"  # the other one might be killed too early
    )
    app_id = jobs.submit(bash(command, replicas=2, max_retries=1))
    jobs.wait_for(here / "again.1.0")
    node = jobs.status(app_id)["replicas"][1][2]
    try:
        set_state(jobs, node, "down")
        jobs.wait_for(here / "again.1.1")
    finally:
        set_state(jobs, node, "resume")
    (here / "again.go").touch()
    status = jobs.until(app_id, *OVER)
    said = jobs.said(app_id)
    assert (status["state"], status["restarts"]) == ("SUCCEEDED", 2), said
    assert said.count("requeueing the job, retry 1 of 1") == 1
    assert jobs.logs(app_id, "main/0", "stdout") == ["try 1", "try 2"]


def set_state(jobs: Jobs, node: str, state: str) -> None:
    """Set a node down, or bring it back."""
    said, code = jobs.slurm.run(
        ["scontrol", "update", f"nodename={node}", f"state={state}", "reason=test"]
    )
    assert code == 0, said


def test_elastic_job_continues_after_losing_a_node(jobs: Jobs) -> None:
    """With `-j 2:3x2`, the other nodes continue training after one is set down, and the job
    succeeds.
    """
    here = jobs.slurm.directory
    (here / "elastic.sh").write_text(
        f"touch {here}/elastic.$WORLD_SIZE.$RANK\n"
        f"while [ ! -e {here}/elastic.go ]; do sleep 0.1; done\necho of $WORLD_SIZE\n"
    )
    command = RUN + f"--nnodes 2:3 --no-python bash {here}/elastic.sh"
    app_id = jobs.submit(bash(command, replicas=3, min_replicas=2), cfg={"exclude": "node4"})
    jobs.wait_for(here / "elastic.6.5")
    try:
        set_state(jobs, "node3", "down")
        jobs.wait_for(here / "elastic.4.3")
    finally:
        set_state(jobs, "node3", "resume")
    status = jobs.status(app_id)
    assert (status["state"], status["restarts"]) == ("RUNNING", 0)
    (here / "elastic.go").touch()
    status = jobs.until(app_id, *OVER)
    assert status["state"] == "SUCCEEDED", jobs.said(app_id)
    assert jobs.logs(app_id, "main/0", "stdout") == ["of 4", "of 4"]
    assert ["main/2", "FAILED", "node3", None, "its node was lost"] in status["replicas"]


@pytest.mark.long  # tests/test_health_check.py has the promise without Slurm
def test_elastic_job_succeeds_despite_unhealthy_node(jobs: Jobs) -> None:
    """With `-j 2:3x2`, a node fails its health check and leaves. No retry runs the finished job
    again.
    """
    check = "--health-check '[ $(hostname) != node3 ]' "
    command = RUN + f"--nnodes 2:3 {check} --no-python bash -c 'echo of $WORLD_SIZE'"
    role = bash(command, replicas=3, min_replicas=2, max_retries=1)
    app_id = jobs.submit(role, cfg={"exclude": "node4"})
    status = jobs.until(app_id, *OVER)
    assert (status["state"], status["exitcode"]) == ("SUCCEEDED", 0), jobs.said(app_id)
    assert status["restarts"] == 0
    assert [replica[:4] for replica in status["replicas"]] == [
        ["main/0", "SUCCEEDED", "node1", 0],
        ["main/1", "SUCCEEDED", "node2", 0],
        ["main/2", "FAILED", "node3", 4],
    ]
    assert "health check" in status["replicas"][2][4]


APPTAINER = """#!/bin/bash
# Stands in for Apptainer: it checks the command line, and drops exported functions, as images may.
[ "$1 $2 $4" = "exec --bind --pwd" ] && cd "$5" && image=$6 && shift 6 || exit 99
IFS=, read -ra mounts <<<"$3"
for name in $(compgen -e | grep ^BASH_FUNC); do unset "$name"; done
for each in $(env | grep -o '^BASH_FUNC_[^=]*'); do drop+=(-u "$each"); done
exec env "${drop[@]}" IMAGE="$image" "$@"
"""


def test_replicas_run_in_containers(jobs: Jobs) -> None:
    """The agents run in the containers with their launcher, in the working directory."""
    tools = jobs.slurm.directory / "container tools"
    tools.mkdir()
    (tools / "apptainer").write_text(APPTAINER)
    (tools / "apptainer").chmod(0o755)
    path = f"{tools}:{jobs.slurm.environment['PATH']}"
    command = RUN + "--nnodes 2 --no-python bash -c 'echo $RANK $IMAGE $VALUE $(pwd)'"
    role = bash(command, replicas=2, env={"VALUE": "a  b", "RELIGHT_LAUNCHER": "travels"})
    cfg = {"image": "/my images/torch.sif", "container": "apptainer"}
    app_id = jobs.submit(role, cfg=cfg, env={"PATH": path})
    assert jobs.until(app_id, *OVER)["state"] == "SUCCEEDED", jobs.said(app_id)
    lines = [line for k in (0, 1) for line in jobs.logs(app_id, f"main/{k}", "stdout")]
    place = jobs.slurm.directory
    assert sorted(lines) == [f"{k} /my images/torch.sif a b {place}" for k in range(4)]


WORKER = """
import os, signal, sys, time
from pathlib import Path
here, rank = Path({here!r}), os.environ["RANK"]
checkpoint = here / f"checkpoint.{{rank}}"
if checkpoint.exists():
    while time.time() < (here / "saved").stat().st_mtime + 9:
        time.sleep(0.1)  # longer than the try before could have been waited for
    print("goes on from", checkpoint.read_text(), flush=True)
    sys.exit(0)
def save(number, frame):
    checkpoint.write_text("step 5")
    if len(list(here.glob("checkpoint.*"))) == 4:
        (here / "saved").touch()
signal.signal(signal.SIGUSR1, save)
print("begins", flush=True)
while True:
    time.sleep(0.1)
    if (here / "saved").exists():
        sys.exit(85)
"""


@pytest.mark.long
def test_reaching_time_limit_counts_as_preemption(jobs: Jobs) -> None:
    """Workers get SIGUSR1 before it, save a checkpoint, and resume in the job's next attempt."""
    here = jobs.slurm.directory
    (here / "worker.py").write_text(WORKER.format(here=str(here)))
    role = bash(RUN + f"--nnodes 2 {here}/worker.py", replicas=2, max_retries=1)
    app_id = jobs.submit(role, cfg={"time": "1"})
    status = jobs.until(app_id, *OVER)
    assert (status["state"], status["restarts"]) == ("SUCCEEDED", 1), jobs.said(app_id)
    said = jobs.said(app_id)
    assert "the time limit is near, sending SIGUSR1 to the workers" in said
    assert "main failed with exit code 85\nrelight: requeueing the job, retry 1 of 1" in said
    lines = jobs.logs(app_id, "main/0", "stdout")
    assert sorted(lines) == ["begins"] * 2 + ["goes on from step 5"] * 2


SAVES = """
import os, sys, time
from pathlib import Path
from relight.worker import deadline, membership, progress, should_checkpoint
here, rank = Path({here!r}), os.environ["RANK"]
checkpoint = here / f"saved.{{rank}}"
if checkpoint.exists():
    print("goes on from", checkpoint.read_text(), "requeued", membership().requeues, flush=True)
    sys.exit(0)
step = 0
while True:
    step += 1
    progress(step)
    if should_checkpoint():
        checkpoint.write_text("step " + str(step))
        print("saves", deadline() is not None and deadline() < 60, flush=True)
        sys.exit(0)
    time.sleep(0.05)
"""


@pytest.mark.long
def test_all_ranks_checkpoint_before_time_limit_and_resume(jobs: Jobs) -> None:
    """No retry is needed, because exit code 75 requeues the job."""
    here = jobs.slurm.directory
    (here / "saves.py").write_text(SAVES.format(here=str(here)))
    role = bash(RUN + f"--nnodes 2 --nproc-per-node 2 {here}/saves.py", replicas=2)
    app_id = jobs.submit(role, cfg={"time": "1"})
    status = jobs.until(app_id, *OVER)
    said = jobs.said(app_id)
    said_by_agent = jobs.logs(app_id, "main/0", "stderr")
    assert (status["state"], status["restarts"]) == ("SUCCEEDED", 1), (said, said_by_agent)
    assert "requeueing the job, which was preempted: its workers have saved" in said
    lines = jobs.logs(app_id, "main/0", "stdout")
    goes_on = [line for line in lines if line.startswith("goes on")]
    assert lines.count("saves True") == 2, lines
    assert len(goes_on) == 2
    assert len(set(goes_on)) == 1
    assert goes_on[0].endswith("requeued 1")


def test_failed_role_ends_all_other_roles(jobs: Jobs) -> None:
    """They form one heterogeneous job, with the failed role's exit code."""
    shown = "echo $RELIGHT_RANK0_HOST $SLURM_NNODES ${replica_id} $WORD; "
    a = bash(f"{shown} sleep 1; exit 9", "a", env={"WORD": "one"})
    b = bash(f"{shown} exec sleep 99", "b", 2, env={"WORD": "two"})
    app_id = jobs.submit(a, b)
    status = jobs.until(app_id, *OVER)
    assert (status["state"], status["exitcode"]) == ("FAILED", 9), jobs.said(app_id)
    assert status["message"] == "a/0 on node1 failed with exit code 9"
    assert [replica[:2] for replica in status["replicas"]] == [
        ["a/0", "FAILED"],
        ["b/0", "CANCELLED"],
        ["b/1", "CANCELLED"],
    ]
    assert jobs.logs(app_id, "a/0", "stdout") == ["node1 1 0 one"]
    assert jobs.logs(app_id, "b/1", "stdout") == ["node1 2 1 two"]


def test_options_are_passed_to_slurm_unchanged(jobs: Jobs) -> None:
    """Options and the directory may contain any characters."""
    shared = jobs.slurm.directory / "shared dir"
    source = jobs.slurm.directory / "source"
    source.mkdir()
    (source / "data").write_text("travels")
    comment = "a 'b' \"c\" #d \\e $HOME"
    cfg = {"comment": comment, "time": "2:00:00", "exclude": "node1", "requeue": False,
           "exclusive": True, "sbatch": ["--nice=5"], "job_dir": str(shared),
           "workspace": str(source)}  # fmt: skip
    app_id = jobs.submit(bash("cat data; pwd", resource=[4, 0, -1]), cfg=cfg)
    said, _ = jobs.slurm.run(["scontrol", "show", "job", app_id])
    for wanted in (f"Comment={comment} ", "TimeLimit=02:00:00", "ExcNodeList=node1", "Requeue=0",
                   "Nice=5", "CPUs/Task=4", "OverSubscribe=NO"):  # fmt: skip
        assert wanted.strip() in said, said
    status = jobs.until(app_id, *OVER)
    assert status["state"] == "SUCCEEDED", jobs.said(app_id)
    where = jobs.directory(app_id)
    assert where.parent.parent == shared
    assert jobs.logs(app_id) == [f"travels{where}/workspace"]


@pytest.mark.parametrize("cfg", [{}, {"array": "0-1"}], ids=["job", "array"])
def test_printed_script_can_be_submitted_with_sbatch(jobs: Jobs, cfg: dict[str, Any]) -> None:
    """The script creates the job's directory, which `relight submit` would have created."""
    shared = jobs.slurm.directory / f"by hand {len(cfg)}"
    role = json.dumps(bash("echo here $SLURM_PROCID", replicas=2))
    text = jobs.do("render", "job", json.dumps({"job_dir": str(shared), **cfg}), role)
    file = jobs.slurm.directory / "printed.sh"
    file.write_text(text)
    said, code = jobs.slurm.run(["sbatch", "--wait", file])
    assert code == 0, said
    (folder,) = (path / "slurm" for path in shared.iterdir())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    places = [folder / "0", folder / "1"] if cfg else [folder]
    for place in places:
        assert (place / "main" / "1" / "stdout.log").read_text() == "here 1\n"
    logs = ["batch_0.log", "batch_1.log"] if cfg else ["batch.log"]
    assert sorted(path.name for path in folder.glob("batch*")) == logs


def test_known_bad_nodes_are_excluded(jobs: Jobs, tmp_path: Path) -> None:
    """A node unknown to Slurm is left out, because sbatch would reject the job."""
    bad = tmp_path / "bad"
    bad.mkdir()
    env = {**SHELL, "RELIGHT_BAD_NODES": str(bad)}
    for name in ("node2", "gone"):
        record = {"name": name, "reason": "Xid 79", "scheduler": "slurm", "user": "u", "job": "1",
                  "since": 0.0, "until": time.time() + 3600}  # fmt: skip
        (bad / f"{name}.0.json").write_text(json.dumps(record))
    submit = [sys.executable, "-m", "relight", "submit", "-s", "slurm", "--dryrun"]
    text, code = jobs.slurm.run([*submit, "utils.echo", "--msg", "hi"], env=env)
    assert code == 0, text
    assert "#SBATCH --exclude=node2\n" in text
    assert re.search(r"not using node2 until \S+ \S+: Xid 79", text)
    assert "gone" not in text
    asks = [*submit, "-cfg", "nodelist=node[2-3]", "utils.echo", "--msg", "hi"]
    text, code = jobs.slurm.run(asks, env=env)
    assert code == 0 and "--exclude" not in text, text
    text, code = jobs.slurm.run(["sbatch", "--exclude=gone", "--wrap=true"])
    assert code != 0 and "Invalid node name" in text


def test_rejected_job_gives_one_line_error_and_leaves_nothing_behind(jobs: Jobs) -> None:
    """For an unknown partition, the error lists the existing ones."""
    before = sorted(jobs.slurm.directory.rglob("job.sbatch"))
    role = json.dumps(bash("true"))
    text = jobs.do("submit", "job", '{"partition": "nope"}', role, expected=1)
    assert text == (
        "Slurm rejected the job: Batch job submission failed: Invalid partition name specified\n"
        "hint: partitions: test\nexit 2\n"
    )
    assert sorted(jobs.slurm.directory.rglob("job.sbatch")) == before


def test_status_of_many_jobs_needs_only_one_squeue_call(jobs: Jobs) -> None:
    """This includes unknown ids. The list contains all of the jobs."""
    ids = [jobs.submit(bash("true")) for _ in range(3)]
    for app_id in ids:
        jobs.until(app_id, *OVER)
    asked = jobs.slurm.directory / "asked"
    tools = jobs.slurm.directory / "tools"
    tools.mkdir()
    for name in ("squeue", "sacct"):
        path = tools / name
        path.write_text(
            f'#!/bin/sh\necho {name} >>{asked}\nPATH={os.environ["PATH"]} {name} "$@"\n'
        )
        path.chmod(0o755)
    path = f"{tools}:{jobs.slurm.environment['PATH']}"
    found = jobs.do("status", *ids, "99999", "nonsense", env={"PATH": path})
    assert {app_id: status["state"] for app_id, status in found.items()} == dict.fromkeys(
        ids, "SUCCEEDED"
    )
    assert asked.read_text().split() == ["squeue", "sacct"]
    listed = jobs.do("list")
    assert [each[0] for each in listed][:3] == ids[::-1]
    assert all(re.fullmatch(r"job-\w+", each[2]) for each in listed)
    assert "no job 99999 in Slurm" in jobs.do("cancel", "99999", expected=1)
    assert "has no replica main/5" in jobs.do(
        "logs", ids[0], "main", "5", "combined", "once", expected=1
    )
