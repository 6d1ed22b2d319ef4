"""`relight run` without flags under a real Slurm: a slurmctld, and a slurmd on each of 4 hosts."""

import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LIMIT_S
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from netlab import Lab

from clusters.slurm import Slurm
from clusters.workers import RELIGHT_RUN, SHELL, seen, write
from relight.base import hostlist

pytestmark = [pytest.mark.slow, pytest.mark.needs_slurm]
NODES = ["node1", "node2", "node3", "node4"]
SWITCHES = (
    "SwitchName=leaf2 Nodes=node1,node4",
    "SwitchName=leaf10 Nodes=node2,node3",
    "SwitchName=spine Switches=leaf[2,10]",
)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A Slurm cluster with four nodes and a login node."""
    directory = tmp_path_factory.mktemp("slurm")
    write(directory)
    with Lab(hosts=["login", *NODES]) as lab, Slurm(lab, directory, switches=SWITCHES) as slurm:
        yield slurm


def relight(slurm: Slurm, *command: str, **variables: str) -> tuple[str, int]:
    """Run `srun … relight run … worker.py`; the arguments in `command` before `--` are for srun."""
    cut = command.index("--")
    flags, more = command[:cut], command[cut + 1 :]
    return slurm.run([*flags, *RELIGHT_RUN, *more], env={**SHELL, **variables})


def test_run_needs_no_flags_under_srun(slurm: Slurm) -> None:
    """One task per node forms one job with ranks in Slurm's order; -v lists the sources."""
    text, code = relight(slurm, "srun", "-N4", "--", "-v", "--nproc-per-node=2", "worker.py")
    assert code == 0, text
    workers = seen(text)
    assert [worker.rank for worker in workers] == list(range(8)), text
    assert {(worker.world, worker.nodes) for worker in workers} == {(8, 4)}
    assert [worker.host for worker in workers] == sorted(NODES * 2)
    assert all(worker.place == str(worker.group_rank) for worker in workers)
    assert len({worker.master for worker in workers}) == 1
    assert {w.job for w in workers} == {re.search(r"rdzv-id=(\S+),", text)[1]}
    for said in (
        "nnodes=4, from SLURM_STEP_NUM_NODES=4",
        "master-addr=node1, from SLURM_STEP_NODELIST=node[1-4]",
        "node-rank=3, from SLURM_NODEID=3",
    ):
        assert text.count(said) == (1 if "rank" in said else 4), said


def test_agents_started_by_srun_use_the_users_token(slurm: Slurm, tmp_path: Path) -> None:
    """An agent without the token can't join the job."""
    without, _ = relight(slurm, "srun", "-N2", "--", "worker.py")
    assert without.count("no token") == 1, without
    (tmp_path / "token").write_text("right")
    (tmp_path / "token").chmod(0o600)
    agent = f"RELIGHT_STATE_DIR={tmp_path} {shlex.join(RELIGHT_RUN)} -v worker.py"
    text, code = slurm.run(["srun", "-N2", "sh", "-c", agent], env=SHELL)
    assert code == 0, text
    assert text.count(f"token_file={tmp_path}/token, from this user's token") == 2
    assert "no token" not in text
    other = f"[ $SLURM_NODEID = 0 ] || export RELIGHT_TOKEN=wrong; {agent}"
    limit = "--rdzv-conf=join_timeout=3"
    text, code = slurm.run(
        ["srun", "-N2", "sh", "-c", other.replace(" -v ", f" {limit} ")], env=SHELL
    )
    assert code in (2, 3), text
    assert "token" in text, text


def test_ranks_follow_slurm_node_order_not_command_line_order(slurm: Slurm) -> None:
    text, code = relight(slurm, "srun", "-N3", "-w", "node4,node2,node3", "--", "worker.py")
    assert code == 0, text
    assert [w.host for w in seen(text)] == ["node2", "node3", "node4"], text
    assert all(worker.place == str(worker.group_rank) for worker in seen(text))


@pytest.mark.parametrize("nodes", [(), ("--nnodes=2:4", "--segment=2")])
def test_ranks_can_follow_slurm_switch_topology(slurm: Slurm, nodes: tuple[str, ...]) -> None:
    """Nodes below the same leaf get adjacent ranks, whatever their numbers."""
    more = ("--rank-order=topology", *nodes, "worker.py")
    text, code = relight(slurm, "srun", "-N4", "--", *more)
    assert code == 0, text
    assert [w.host for w in seen(text)] == ["node1", "node4", "node2", "node3"], text
    assert "this is node 1, at spine.leaf2" in text
    assert text.count("at spine.leaf10") == 2


def test_job_with_node_range_uses_endpoint_from_slurm(slurm: Slurm) -> None:
    """A range in --nnodes is kept."""
    more = ("--nnodes=1:4", "--rdzv-conf=last_call_timeout=5", "worker.py")
    text, code = relight(slurm, "srun", "-N3", "--", *more)
    assert code == 0, text
    assert [(worker.rank, worker.world) for worker in seen(text)] == [(0, 3), (1, 3), (2, 3)]


def test_srun_exits_with_job_exit_code(slurm: Slurm) -> None:
    text, code = relight(slurm, "srun", "-N2", "--", "--no-python", "sh", "-c", "exit 17")
    assert code == 17, text


def test_several_agents_per_node_are_rejected_with_a_hint(slurm: Slurm) -> None:
    """Several agents per node are accepted if the user states that each is a node."""
    tasks = ("srun", "-w", "node1,node2", "--ntasks-per-node=2")
    text, code = relight(slurm, *tasks, "--", "worker.py")
    assert code == 2 and not seen(text), text
    assert "2 on this host (SLURM_STEP_TASKS_PER_NODE=2(x2))" in text
    assert "srun --ntasks-per-node=1" in text
    text, code = relight(slurm, *tasks, "--", "--nnodes=4", "worker.py")
    assert code == 0, text
    workers = seen(text)
    assert [worker.rank for worker in workers] == [0, 1, 2, 3]
    assert [worker.host for worker in workers] == ["node1", "node1", "node2", "node2"]
    text, code = relight(slurm, *tasks, "--", "--nnodes=1", "worker.py")
    assert code == 0, text
    assert [worker.world for worker in seen(text)] == [1, 1, 1, 1]


def test_several_agents_per_node_are_rejected_even_with_an_endpoint(slurm: Slurm) -> None:
    """Otherwise the first two agents would form a job on one of two hosts."""
    tasks = ("srun", "-w", "node1,node2", "--ntasks-per-node=2")
    more = ("--rdzv-backend=c10d", "--rdzv-endpoint=node1:29412", "--rdzv-id=x", "worker.py")
    text, code = relight(slurm, *tasks, "--", "--nnodes=2", *more)
    assert code == 2 and not seen(text), text
    assert "Slurm started relight 4 times, 2 on this host" in text
    text, code = relight(slurm, *tasks, "--", "--nnodes=4", *more)
    assert code == 0 and len(seen(text)) == 4, text
    assert text.count("2 of 4 nodes are agents on the same host, node1,") == 1, text


def test_batch_script_ignores_variables_of_step_that_called_sbatch(slurm: Slurm) -> None:
    """A batch script inherits that step's variables, but is a single-node job of its own."""
    script, output = slurm.directory / "from_a_step.sh", slurm.directory / "from_a_step.txt"
    script.write_text(f"#!/bin/sh\n{' '.join(RELIGHT_RUN)} worker.py\n")
    submit = f"sbatch --wait -N2 -w node3,node4 -o {output} {script}"
    step = ["srun", "-w", "node1,node2", "sh", "-c", f"[ $SLURM_PROCID = 1 ] || {submit}"]
    said, code = slurm.run(step, env=SHELL)
    text = output.read_text()
    assert code == 0, f"{said}{text}"
    assert [(worker.host, worker.world) for worker in seen(text)] == [("node3", 1)], text
    assert (
        "SLURM_STEP_NODELIST=node[1-2] does not contain this node, node3; it is left over" in text
    )


def test_flags_override_slurm_environment(slurm: Slurm) -> None:
    """An explicit endpoint, backend, and job id are kept."""
    more = ("--rdzv-backend=c10d", "--rdzv-endpoint=node2:29411", "--rdzv-id=mine", "worker.py")
    text, code = relight(slurm, "srun", "-w", "node1,node2", "--", *more)
    assert code == 0, text
    assert {worker.job for worker in seen(text)} == {"mine"}
    assert {worker.world for worker in seen(text)} == {2}
    assert "rendezvous at node2:29411" in text


def test_job_started_without_srun_runs_on_one_node(slurm: Slurm) -> None:
    """A command in salloc's shell and a batch script both run on one node, with a note."""
    text, code = relight(slurm, "salloc", "-N3", "--", "worker.py")
    assert code == 0, text
    assert [worker.world for worker in seen(text)] == [1], text
    assert "SLURM_JOB_NUM_NODES=3, but this was not started by srun" in text


def batch(slurm: Slurm, name: str, text: str, *flags: str) -> tuple[str, Path]:
    """Submit a batch script; return the job's id and the path of its output."""
    script, output = slurm.directory / f"{name}.sh", slurm.directory / f"{name}.txt"
    script.write_text(f"#!/bin/sh\n{text}\n")
    command = ["sbatch", "--parsable", "-N4", "-o", str(output), "--open-mode=append", *flags]
    said, code = slurm.run([*command, str(script)], env=SHELL)
    assert code == 0, said
    return said.strip(), output


def until_state(slurm: Slurm, job: str, *states: str) -> str:
    """Wait until a job reaches one of some states; return Slurm's description of the job."""
    end = time.monotonic() + LIMIT_S
    while True:
        said, _ = slurm.run(["scontrol", "show", "job", job])
        match = re.search(r"JobState=(\w+)", said)
        if match and match[1] in states:
            return said
        assert time.monotonic() < end, f"{said}\n{slurm.logs()}"
        time.sleep(0.1)


def test_steps_of_a_slurm_batch_job_are_separate_jobs(slurm: Slurm) -> None:
    """Two concurrent two-node steps don't meet, and a later step on all nodes meets neither."""
    run = " ".join(RELIGHT_RUN) + " worker.py"
    half = "srun -N2 -n2 --exact"
    text = f"{run}\n{half} {run} &\n{half} {run} &\nwait\nsrun -N4 {run}"
    job, output = batch(slurm, "steps", text)
    until_state(slurm, job, "COMPLETED", "FAILED")
    workers = seen(output.read_text())
    worlds = {w.job: [v.world for v in workers if v.job == w.job] for w in workers}
    alone = [name for name in worlds if not name.startswith("slurm-")]
    assert [worlds.pop(name) for name in alone] == [[1]], output.read_text()
    assert worlds == {
        f"slurm-{job}-0": [2, 2],
        f"slurm-{job}-1": [2, 2],
        f"slurm-{job}-2": [4, 4, 4, 4],
    }


def test_requeued_slurm_job_is_separate_from_its_previous_run(slurm: Slurm) -> None:
    """The second attempt runs under a different id."""
    first = slurm.directory / "first"
    wait = f"[ -e {first} ] || {{ touch {first}; sleep 100; }}"
    run = " ".join(RELIGHT_RUN)
    text = f"srun {run} worker.py\n[ -e {first} ] || srun {run} --no-python sh -c '{wait}'"
    job, output = batch(slurm, "requeue", text, "--requeue")
    end = time.monotonic() + LIMIT_S
    while not first.exists():
        assert time.monotonic() < end, output.read_text()
        time.sleep(0.05)
    said, code = slurm.run(["scontrol", "requeue", job])
    assert code == 0, said
    until_state(slurm, job, "COMPLETED", "FAILED")
    jobs = {worker.job: worker.world for worker in seen(output.read_text())}
    assert jobs == {f"slurm-{job}-0": 4, f"slurm-{job}-0-1": 4}, output.read_text()


SAVES = """
import sys, time
from pathlib import Path
from relight.worker import should_checkpoint
saved = Path(sys.argv[0] + ".saved")
if saved.exists():
    print("goes on from", saved.read_text())
    sys.exit(0)
for step in range(10**6):
    if step == 1:
        print("steps", flush=True)
    if should_checkpoint():
        saved.write_text(str(step))
        print("saves", step, flush=True)
        sys.exit(0)
    time.sleep(0.01)
"""


def test_documented_batch_script_checkpoints_and_requeues(slurm: Slurm) -> None:
    """`docs/checkpoints.md`: notice before the time limit, exit code 75, then requeue."""
    page = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text()
    (text,) = re.findall(r"```bash\n#!/bin/bash\n(.*?)```", page, re.DOTALL)
    train = slurm.directory / "saves.py"
    train.write_text(SAVES)
    text = text.replace("relight run train.py", f"{' '.join(RELIGHT_RUN)} {train}")
    flags = ["--time=10", "--signal=B:USR1@120"]
    job, output = batch(slurm, "saves", f"exec bash <<'END'\n{text}END", *flags)
    end = time.monotonic() + LIMIT_S
    while not (output.exists() and output.read_text().count("steps\n") == 4):
        assert time.monotonic() < end, output.read_text()
        time.sleep(0.1)
    said, code = slurm.run(["scontrol", "update", f"JobId={job}", "TimeLimit=2"])
    assert code == 0, said
    until_state(slurm, job, "COMPLETED", "FAILED", "TIMEOUT")
    lines = [line for line in output.read_text().split("\n") if line.startswith(("saves", "goes"))]
    assert len(lines) == 8, output.read_text()
    assert len({line.split()[-1] for line in lines}) == 1


@given(st.data())
@settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_slurm_hostlists_expand_as_in_scontrol(slurm: Slurm, data: st.DataObject) -> None:
    text = data.draw(hostlists())
    said, code = slurm.run(["scontrol", "show", "hostnames", text])
    assert code == 0, said
    assert hostlist.expand(text) == said.split()


@st.composite
def hostlists(draw: st.DrawFn) -> str:
    """Generate a host list such as node[1-3,07],login."""
    words = []
    for number in range(draw(st.integers(1, 4))):
        word = f"{'abcd'[number]}{draw(st.sampled_from(['', 'node', 'gpu-', 'x-y']))}"
        ranges = []
        for _ in range(draw(st.integers(0, 3))):
            low = draw(st.integers(0, 200))
            high = low + draw(st.integers(0, 12))
            width = draw(st.integers(1, 4))
            wide = f"{low:0{width}}-{high:0{width}}"
            ranges.append(wide if high > low else f"{low:0{width}}")
        words.append(word + (f"[{','.join(ranges)}]" if ranges else ""))
    return ",".join(words)
