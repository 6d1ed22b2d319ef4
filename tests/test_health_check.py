"""--health-check: an unhealthy node runs no workers, and the others learn the reason."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from conftest import LIMIT_S

from relight.agent import health_check
from relight.base.env import Environment
from relight.base.errors import EXIT_MACHINE
from relight.base.values import parse_health_check
from relight.host import system

RUN = [sys.executable, "-m", "relight", "run"]
SCRIPT = "import os; print('rank', os.environ['RANK'], flush=True)"


_started: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _end_all() -> Iterator[None]:
    yield
    while _started:
        process = _started.pop()
        process.kill()
        process.communicate()


def start(*arguments: str, **options: object) -> subprocess.Popen[str]:
    _started.append(
        subprocess.Popen(
            [*RUN, *arguments],
            text=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )  # type: ignore[call-overload]
    )
    return _started[-1]


def run(*arguments: str, **options: object) -> tuple[int, str, str]:
    process = start(*arguments, **options)
    stdout, stderr = process.communicate(timeout=LIMIT_S)
    return process.returncode, stdout, stderr


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def has_ended(pid: int) -> bool:
    """Wait until the system has processed a SIGKILL."""
    until(lambda: not system.is_running(pid))
    return True


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_node_that_passes_health_check_runs_workers(tmp_path: Path, script: Path) -> None:
    check = program(tmp_path / "check.sh", "echo fine; exit 0")
    logs = tmp_path / "logs"
    code, stdout, stderr = run(f"--health-check={check}", f"--log-dir={logs}", str(script))
    assert (code, stdout) == (0, "rank 0\n"), stderr
    assert "fine" not in stderr
    (log,) = logs.rglob("events.jsonl")
    events = [json.loads(line) for line in log.read_text().splitlines()]
    names = [each["event"] for each in events]
    assert names.index("HealthChecked") < names.index("WorkerStarted")


def test_node_that_fails_health_check_runs_no_worker(tmp_path: Path, script: Path) -> None:
    check = program(tmp_path / "check.sh", "echo looking; echo GPU 3 is gone >&2; exit 9")
    code, stdout, stderr = run(f"--health-check={check}", str(script))
    assert (code, stdout) == (EXIT_MACHINE, "")
    assert f"failed ({check}: exited with 9: GPU 3 is gone); this node is leaving the job" in stderr


def test_pod_that_fails_health_check_writes_reason_to_termination_log(
    tmp_path: Path, script: Path
) -> None:
    message = tmp_path / "termination-log"
    message.touch()
    check = program(tmp_path / "check.sh", "echo no GPU; exit 1")
    variables = {**os.environ, "RELIGHT_TERMINATION_LOG": str(message)}
    run(f"--health-check={check}", str(script), env=variables)
    assert message.read_text().endswith(f"its health check failed: {check}: exited with 1: no GPU")


def test_exit_code_of_unfit_pod_is_not_that_of_its_failed_worker(tmp_path: Path) -> None:
    """The worker's exit code would end the Job, although the other pods can continue."""
    script, bad = tmp_path / "train.py", tmp_path / "bad"
    script.write_text(f"open({str(bad)!r}, 'a').close()\nraise SystemExit(1)")
    check = program(tmp_path / "check.sh", f"[ ! -e {bad} ]")
    flags = [f"--health-check={check}", "--max-restarts=1", str(script)]
    variables = {**os.environ, "RELIGHT_UNFIT_EXIT_CODE": "75"}
    assert run(*flags, env=variables)[0] == EXIT_MACHINE
    bad.unlink()
    assert run(*flags)[0] == 1


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("kill -9 $$ ;", "was killed by SIGKILL"),
        ("./no-such-program", "exited with 127"),
        ("exit 3 ;", "exited with 3); "),
    ],
)
def test_health_check_failure_says_how_command_ended(
    command: str, expected: str, tmp_path: Path, script: Path
) -> None:
    code, _, stderr = run(f"--health-check={command}", str(script), cwd=tmp_path)
    assert code == EXIT_MACHINE
    assert expected in stderr


def test_timed_out_health_check_is_killed_with_its_process_tree(
    tmp_path: Path, script: Path
) -> None:
    check = program(tmp_path / "check.sh", f"sleep 1000 & echo $! > {tmp_path}/pid; sleep 1000")
    code, _, stderr = run(f"--health-check={check}", "--health-check-timeout=0.5", str(script))
    assert code == EXIT_MACHINE
    assert "it did not finish within" in stderr
    assert has_ended(int((tmp_path / "pid").read_text()))


def test_signal_during_health_check_ends_agent(tmp_path: Path, script: Path) -> None:
    check = program(tmp_path / "check.sh", f"echo $$ > {tmp_path}/pid; exec sleep 1000")
    process = start(f"--health-check={check}", str(script))
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert has_ended(int((tmp_path / "pid").read_text()))


def test_health_check_runs_again_before_restart(tmp_path: Path) -> None:
    """A worker fails and also breaks the disk; the worker's failure is reported."""
    script = tmp_path / "train.py"
    script.write_text(f"open({str(tmp_path / 'broken')!r}, 'w'); raise SystemExit(7)")
    check = program(tmp_path / "check.sh", f"! test -e {tmp_path}/broken")
    code, _, stderr = run(f"--health-check={check}", "--max-restarts=3", str(script))
    assert code == 7
    assert "exit code 7; no restart: the health check failed" in stderr, stderr


def test_health_check_does_not_rerun_without_restarts_left(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit(7)")
    check = program(tmp_path / "check.sh", f"echo >> {tmp_path}/times")
    code, _, stderr = run(f"--health-check={check}", str(script))
    assert code == 7, stderr
    assert (tmp_path / "times").read_text() == "\n"


def agents(
    tmp_path: Path, checks: Sequence[str], nnodes: str, script: Path, *flags: str
) -> list[subprocess.Popen[str]]:
    return [
        start(
            f"--nnodes={nnodes}", "--rdzv-backend=file", f"--rdzv-endpoint={tmp_path}/meet",
            "--rdzv-id=health", f"--health-check={check}", "--rdzv-conf=last_call_timeout=0.5",
            *flags, str(script),
        )
        for check in checks
    ]  # fmt: skip


def test_spare_node_replaces_unhealthy_node(tmp_path: Path) -> None:
    """The job needs two of three nodes; one of them fails and is unhealthy afterwards."""
    broken, go, is_up = (tmp_path / name for name in ("broken", "go", "is_up"))
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys, time\n"
        f"broken, go, is_up = {str(broken)!r}, {str(go)!r}, {str(is_up)!r}\n"
        "if not os.path.exists(broken):\n"
        "    if os.environ['NODE'] == 'bad':\n"
        "        while not os.path.exists(go):\n"
        "            time.sleep(0.01)\n"
        "        open(broken, 'w')\n"
        "        sys.exit(7)\n"
        "    open(is_up, 'w')\n"
        "    time.sleep(900)\n"
    )
    check = program(tmp_path / "check.sh", f'! [ -e {broken} ] || [ "$NODE" != bad ]')
    output = {name: tmp_path / f"output_{name}" for name in ("coordinator", "bad", "spare")}

    def join(name: str) -> subprocess.Popen[str]:
        with output[name].open("w") as file:
            return start(
                "--nnodes=2", "--rdzv-backend=file", f"--rdzv-endpoint={tmp_path}/meet",
                "--rdzv-id=health", f"--health-check={check}", "--max-restarts=3", str(script),
                env={**os.environ, "NODE": name}, stderr=file,
            )  # fmt: skip

    nodes = [join("coordinator")]
    until((tmp_path / "meet").exists)
    nodes.append(join("bad"))
    until(is_up.exists)
    nodes.append(join("spare"))
    until(lambda: "kept as a spare" in output["spare"].read_text())
    go.touch()
    codes = [node.wait(LIMIT_S) for node in nodes]
    said = {name: path.read_text() for name, path in output.items()}
    assert codes == [0, 7, 0], said
    for name in ("coordinator", "spare"):
        assert "left: its health check failed" in said[name], said


def test_node_that_never_passes_health_check_does_not_disturb_others(
    tmp_path: Path, script: Path
) -> None:
    bad, *good = agents(tmp_path, ["exit 1 ;", "true ;", "true ;"], "2", script)
    _, stderr = bad.communicate(timeout=LIMIT_S)
    assert bad.returncode == EXIT_MACHINE, stderr
    for each in good:
        stdout, stderr = each.communicate(timeout=LIMIT_S)
        assert each.returncode == 0, stderr
        assert re.fullmatch(r"rank [01]\n", stdout)


@pytest.mark.parametrize("seconds", ["0", "1.5"])
def test_waiting_node_reports_which_node_left_and_why(
    seconds: str, tmp_path: Path, script: Path
) -> None:
    """The check may finish before the waiting node has joined."""
    bad = program(tmp_path / "bad.sh", f"sleep {seconds}; echo GPU 3 is gone; exit 9")
    good = agents(tmp_path, ["true ;"], "2", script)[0]
    assert good.stderr is not None
    lines = iter(good.stderr.readline, "")
    assert any("1 of 2 nodes have joined" in line for line in lines)
    (unfit,) = agents(tmp_path, [bad], "2", script)
    unfit.communicate(timeout=LIMIT_S)
    assert any(
        "left: its health check failed" in line and "GPU 3 is gone" in line for line in lines
    )
    good.terminate()
    good.communicate(timeout=LIMIT_S)


@pytest.mark.parametrize(
    ("check", "expected"),
    [
        ("disk=900000T", "has [0-9.]+ GiB free, less than [0-9]+ GiB(.|\n)*hint: free space there"),
        (
            "memory=900000T",
            "[0-9]+ GiB of memory available, less than(.|\n)*hint: stop other programs",
        ),
        ("shm=900000T", "/dev/shm has .* free, less than(.|\n)*hint: use docker run --shm-size"),
        ("gpu", "0 of 0 GPUs are usable.*, for 1 worker"),
        ("disk,memory,shm,gpu", "gpu: "),
    ],
)
def test_builtin_health_check_reports_missing_resource(
    check: str, expected: str, script: Path
) -> None:
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    code, _, stderr = run(f"--health-check={check}", str(script), env=env)
    assert code == EXIT_MACHINE
    assert re.search(expected, stderr), stderr


def test_node_with_sufficient_resources_passes_health_check(script: Path) -> None:
    code, _, stderr = run("--health-check=disk=1K,memory=1M,shm=1K", "--verbose", str(script))
    assert code == 0, stderr
    assert "the health check passed" in stderr


@pytest.mark.parametrize(
    ("printed", "why", "remedy"),
    [
        (
            "0, 3, 0\\n1, 3, 2\\n",
            "GPU 1 has 2 memory errors that ECC could not correct",
            "gpu-reset",
        ),
        ("0, 3, 0\\n1, 30000, 0\\n", "GPU 1 has 30000 MiB in use, more than 1024 MiB", "stop them"),
        ("0, 3, [N/A]\\n1, 1024, 0\\n", "", ""),
        ("0, [N/A], [N/A]\\nnonsense\\n", "", ""),
    ],
)
def test_gpu_errors_from_nvidia_smi_fail_health_check(
    printed: str, why: str, remedy: str, tmp_path: Path
) -> None:
    """nvidia-smi is replaced with a fake, as this machine may lack a GPU."""
    program(tmp_path / "nvidia-smi", f"printf '{printed}'")
    env = Environment({"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    found = health_check._by_nvidia_smi(env)
    assert (why in found.why) if why else not found.why
    assert remedy in found.remedy


def test_health_check_queries_only_visible_gpus(tmp_path: Path) -> None:
    program(tmp_path / "nvidia-smi", f'echo "$@" > {tmp_path}/arguments')
    env = Environment({"PATH": f"{tmp_path}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": "2,3"})
    assert not health_check._by_nvidia_smi(env).why
    assert (tmp_path / "arguments").read_text().strip().endswith(" --id=2,3")


def test_failing_nvidia_smi_command_fails_health_check(tmp_path: Path) -> None:
    program(tmp_path / "nvidia-smi", "echo NVML: Driver/library version mismatch; exit 18")
    env = Environment({"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert "exited with 18: NVML: Driver/library" in health_check._by_nvidia_smi(env).why


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dsik", "did you mean disk"),
        ("disk=10", "disk=10G"),
        ("disk=G", "disk=10G"),
        ("gpu=1G", "gpu does not take a size"),
        ("disk,,gpu", "'' is not one of"),
        ("nvidia-smi", "a command contains a slash or a space"),
        ("disk,network=1G", "network does not take a size"),
    ],
)
def test_invalid_health_check_is_rejected(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)):
        parse_health_check(text)
