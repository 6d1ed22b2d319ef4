"""`relight.torch_launcher` behaves like torch.distributed.launcher."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import LIMIT_S, clean_environment

from relight import torch_launcher
from relight.base.errors import UsageError
from relight.torch_launcher import (
    DefaultLogsSpecs,
    LaunchConfig,
    elastic_launch,
    launch_config,
    replacement,
)

HERE = Path(__file__).parent
OF_TORCH = HERE / "results_of_torch.json"


def results(which: str, tmp_path: Path) -> dict[str, Any]:
    """Return the results of all cases with one of the launchers."""
    done = subprocess.run(
        [sys.executable, "cases.py", which],
        cwd=HERE, text=True, capture_output=True, timeout=LIMIT_S, check=False,
        env=clean_environment(TMPDIR=str(tmp_path)),  # torch leaves its log directories there
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    if which == "torch":
        shown = [line.strip() for line in lines[-2:]]
        assert shown == ["worker spawner"] * 2  # torchrun with relight's launcher
    return dict(json.loads(line) for line in lines if line.startswith('["'))


@pytest.mark.slow
def test_launcher_api_results_and_errors_match_torch(tmp_path: Path) -> None:
    """Functions and programs succeed, fail, are killed, exit, and restart, on one and two nodes."""
    assert results("relight", tmp_path) == json.loads(OF_TORCH.read_text())


@pytest.mark.long
@pytest.mark.needs_torch
def test_recorded_results_and_errors_are_those_of_torch(tmp_path: Path) -> None:
    """The drop-in then runs alongside torch, and inside torchrun itself. RECORD=1 records them."""
    theirs = results("torch", tmp_path)
    assert theirs.pop("torch's config") == theirs["exception"]
    if "RECORD" in os.environ:
        OF_TORCH.write_text(json.dumps(theirs, indent=1) + "\n")
    assert theirs == json.loads(OF_TORCH.read_text())


def config(**fields: Any) -> LaunchConfig:
    return LaunchConfig(1, 1, 2, rdzv_backend="c10d", rdzv_endpoint="localhost:0", run_id="run",
                        max_restarts=0, **fields)  # fmt: skip


def test_worker_logs_are_written_to_configured_directory(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The layout is torch's: `<log_dir>/<run id>_…/attempt_0/<local rank>/stdout.log`."""
    logs = DefaultLogsSpecs(str(tmp_path), {0: 3}, {1: 1}, {1})
    found = elastic_launch(config(logs_specs=logs), "sh")("-c", "echo rank $RANK")
    assert found == {0: None, 1: None}
    (attempt,) = tmp_path.glob("run_*/attempt_0")
    assert [(attempt / f"{rank}/stdout.log").read_text() for rank in (0, 1)] == [
        "rank 0\n", "rank 1\n"
    ]  # fmt: skip
    assert capfd.readouterr().out == "[default_role1]:rank 1\n"


def test_signal_raises_torch_exception_once_workers_have_ended(tmp_path: Path) -> None:
    """Torch need not be imported, and the program's own handlers are restored by then."""
    (tmp_path / "caller.py").write_text("""
import os, signal, sys, threading, time
from relight.torch_launcher import LaunchConfig, SignalException, elastic_launch
def interrupt():
    while not os.path.exists("pid"):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=interrupt, daemon=True).start()
config = LaunchConfig(1, 1, 1, rdzv_backend="c10d", run_id="run")
try:
    elastic_launch(config, "sh")("-c", "echo $$ > new; mv new pid; exec sleep 600")
except SignalException as error:
    print(error.sigval.name, signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
    print(os.path.exists("/proc/" + open("pid").read().strip()))
""")
    result = subprocess.run(
        [sys.executable, "caller.py"], cwd=tmp_path, env=clean_environment(), text=True,
        capture_output=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert result.stdout == "SIGTERM True\nFalse\n", result.stderr


@pytest.mark.parametrize(
    ("fields", "entrypoint", "said"),
    [
        ({}, None, "entrypoint=None: expected a function or a program name"),
        ({"logs_specs": "logs"}, "true", "logs_specs='logs': only DefaultLogsSpecs is supported"),
        ({}, "no-such-program", "no such program: no-such-program"),
        ({"signals_to_handle": "SIGNONE"}, "true", "--signals-to-handle=SIGNONE"),
        ({"numa_options": 3}, "true", "numa_options=3"),
        ({"rdzv_configs": 5}, "true", "rdzv_configs=5: expected values by name"),
        ({"signals_to_handle": 15}, "true", "signals_to_handle=15: expected names"),
        (
            {"duplicate_stdout_filters": "a"},
            "true",
            "duplicate_stdout_filters='a': expected a list",
        ),
        ({"virtual_local_rank": "no"}, "true", "virtual_local_rank='no': expected True or False"),
        ({"shutdown_timeout": float("nan")}, "true", "--shutdown-timeout=nan: expected a finite"),
    ],
)
def test_invalid_launch_config_is_rejected(
    fields: dict[str, Any], entrypoint: Any, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        elastic_launch(config(**fields), entrypoint)()


def test_unsupported_launch_config_option_is_rejected() -> None:
    with pytest.raises(UsageError, match="health_check_server is not supported"):
        elastic_launch(config(), "true", health_check_server=object())()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [([], "no program given"), (["nowhere"], "no such script or program: nowhere")],
)
def test_missing_program_is_rejected(arguments: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        replacement.main(arguments)


def test_fields_from_newer_torch_versions_are_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    """The prefix has had ${hostname} since torch 2.14; the timeout becomes a field after 2.15."""
    found = config(
        logs_specs=DefaultLogsSpecs(tee=1),
        log_line_prefix_template="${hostname} ${rank}|",
        exit_barrier_timeout=7.5,
    )
    elastic_launch(found, "echo")("hi")
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines) == [f"{socket.gethostname()} {rank}|hi" for rank in (0, 1)]
    assert ("exit_barrier_timeout=7.5") in " ".join(launch_config.to_spec(found, "echo", ()).flags)


def test_launch_config_has_same_defaults_as_torch() -> None:
    """The defaults, and the error for a negative time, are those of torch 2.13."""
    own = torch_launcher.LaunchConfig(1, 2, 3)
    assert (own.rdzv_backend, own.max_restarts, own.role) == ("etcd", 3, "default_role")
    assert own.rdzv_configs == {"timeout": 900}
    assert own.shutdown_timeout == 30
    assert own.exit_barrier_timeout == 300
    assert LaunchConfig(1, 1, 1, rdzv_timeout=5).rdzv_configs == {"timeout": 5}
    with pytest.raises(ValueError, match="shutdown_timeout=-1"):
        LaunchConfig(1, 1, 1, shutdown_timeout=-1)
    with pytest.raises(ValueError, match="exit_barrier_timeout=-1"):
        LaunchConfig(1, 1, 1, exit_barrier_timeout=-1)
    with pytest.raises(ValueError, match="shutdown_timeout='x': expected 0 or more seconds"):
        LaunchConfig(1, 1, 1, shutdown_timeout="x")  # type: ignore[arg-type]
