"""Invalid command lines are refused before anything starts: exit code 2, one line, a hint."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from differential.cases import Case
from differential.recording import RELIGHT, prepare, record
from relight.cli.main import main

pytestmark = pytest.mark.slow

FLAGS: tuple[tuple[str, ...], ...] = (
    ("--bogus",),
    ("--nproc-per-nod3=2",),
    ("-x",),
    ("--nproc-per-node=0",),
    ("--nproc-per-node=-1",),
    ("--nproc_per_node", "two"),
    ("--nproc-per-node=1.5",),
    ("--nproc-per-node=",),
    ("--nproc-per-node", "--standalone"),
    ("--nnodes=0",),
    ("--nnodes=2:1",),
    ("--nnodes=1:2:3",),
    ("--nnodes=many",),
    ("--nnodes=",),
    ("--rdzv-backend=c01d",),
    ("--rdzv-backend=",),
    ("--rdzv-endpoint=host:port",),
    ("--rdzv-endpoint=host:99999",),
    ("--rdzv-endpoint=host:",),
    ("--rdzv-endpoint=:123",),
    ("--rdzv-endpoint=ho st:1",),
    ("--rdzv-endpoint=[::1",),
    ("--rdzv-conf=timeout",),
    ("--rdzv-conf=a=1,,b=2",),
    ("--rdzv-conf==1",),
    ("--rdzv-conf=last_call_timeout=soon",),
    ("--rdzv-backend=c10d", "--rdzv-conf=read_timeout=0"),
    ("--rdzv-id=a/b",),
    ("--node-rank=-1",),
    ("--node-rank=x",),
    ("--node-rank=1",),
    ("--master-port=x",),
    ("--master-port=70000",),
    ("--max-restarts=-1",),
    ("--max-restarts=1.5",),
    ("--monitor-interval=0",),
    ("--monitor-interval=often",),
    ("--start-method=bogus",),
    ("--signals-to-handle=SIGFOO",),
    ("--signals-to-handle=SIGTERM,SIGKILL",),
    ("--signals-to-handle=",),
    ("--shutdown-timeout=-1",),
    ("--shutdown-timeout=soon",),
    ("--numa-binding=bogus",),
    ("--log-dir=probe.py",),
    ("--log-dir=probe.py/logs",),
    ("--log-dir=/proc/logs",),
    ("--redirects=4",),
    ("--redirects=0:4",),
    ("--redirects=0:1,x",),
    ("--tee=",),
    ("--tee=a:1",),
    ("--local-ranks-filter=0,",),
    ("--local-ranks-filter=all",),
    ("--event-log-handler=bogus",),
    ("--logs-specs=bogus",),
    ("--standalone=1",),
    ("--standalone", "--rdzv-backend=etcd"),
    ("--standalone", "--rdzv-endpoint=elsewhere:29500"),
    ("--standalone", "--node-rank=1"),
    ("-m", "--no-python"),
    ("-m", "--run-path"),
    ("--lo",),
    ("--use-env",),
)


Refused = Callable[[Case], str]


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Refused:
    """Run a case in this process; return the lines with which relight refuses it."""

    def run(case: Case) -> str:
        work = tmp_path / "work"
        argv, environment, _, inputs = prepare(case, RELIGHT, work)
        with monkeypatch.context() as patch:
            patch.chdir(work)
            for name in os.environ.keys() - environment.keys():
                patch.delenv(name)
            for name, value in environment.items():
                patch.setenv(name, value)
            code = main(argv[argv.index("relight") + 1 :])
        out, err = capfd.readouterr()
        assert (code, out) == (2, ""), err
        left = {path.name for path in work.iterdir()} - {"records", "tmp"}
        assert left <= {name.partition("/")[0] for name in inputs}, left
        assert not [*work.glob("records/*"), *work.glob("tmp/*")]
        return one_line_with_hint(err.rstrip("\n").split("\n"))

    return run


def one_line_with_hint(said: list[str]) -> str:
    line, *hint = said
    assert line.startswith("relight: error: "), said
    assert len(hint) <= 1 and all(each.startswith("hint: ") for each in hint), said
    return "\n".join(said)


@pytest.mark.parametrize("flags", FLAGS, ids=" ".join)
def test_error_for_invalid_flag_value_names_the_flag(
    flags: tuple[str, ...], refused: Refused
) -> None:
    lines = refused(Case("", flags))
    name = flags[-1].partition("=")[0] if flags[-1].startswith("-") else flags[-2]
    if name == "--standalone" and "=" not in flags[-1]:
        name = flags[0]
    assert name.replace("_", "-") in lines, lines


@pytest.mark.parametrize(
    ("flags", "variables", "names"),
    [
        ((), {"PET_NPROC_PER_NODE": "x"}, "PET_NPROC_PER_NODE"),
        ((), {"PET_NNODES": ""}, "PET_NNODES"),
        ((), {"PET_STANDALONE": ""}, "PET_STANDALONE"),
        ((), {"PET_MAX_RESTARTS": "x"}, "PET_MAX_RESTARTS"),
        ((), {"PET_TEE": "9"}, "PET_TEE"),
        ((), {"PET_LOG_DIR": "probe.py"}, "probe.py"),
        ((), {"PYTHON_EXEC": "/nowhere/python"}, "PYTHON_EXEC"),
        (("--nproc-per-node=gpu",), {"CUDA_VISIBLE_DEVICES": ""}, "--nproc-per-node"),
        (
            ("--virtual-local-rank", "--nproc-per-node=2"),
            {"CUDA_VISIBLE_DEVICES": "3", "OMP_NUM_THREADS": "1"},
            "CUDA_VISIBLE_DEVICES",
        ),
        (
            ("--virtual-local-rank", "--log-dir=logs"),
            {"CUDA_VISIBLE_DEVICES": ""},
            "CUDA_VISIBLE_DEVICES",
        ),
    ],
)
def test_error_for_invalid_variable_names_the_variable(
    flags: tuple[str, ...], variables: Mapping[str, str], names: str, refused: Refused
) -> None:
    assert names in refused(Case("", flags, variables=variables))


@pytest.mark.parametrize(
    ("flags", "script", "names"),
    [
        ((), (), "no training script"),
        (("--",), (), "no training script"),
        ((), ("prob.py",), "prob.py"),
        ((), ("nowhere/train.py",), "nowhere/train.py"),
        ((), ("folder",), "folder"),
        ((), ("",), "blank"),
        (("--run-path",), ("prob.py",), "prob.py"),
        (("--no-python",), ("no-such-program",), "no-such-program"),
        (("--no-python",), ("./probe.py",), "./probe.py"),
        (("--no-python",), ("./folder",), "./folder"),
    ],
)
def test_error_for_unrunnable_script_names_the_script(
    flags: tuple[str, ...], script: tuple[str, ...], names: str, refused: Refused
) -> None:
    assert names in refused(Case("", flags, script))


@pytest.mark.parametrize("flags", [("--no-python",), ("--use-env=1",)])
def test_launch_command_rejects_unsupported_flags(flags: tuple[str, ...], tmp_path: Path) -> None:
    """Nothing has started."""
    case = Case("", flags, script=("./program",), command="launch")
    found = record(case, RELIGHT, tmp_path / "work")
    assert (found.exit_code, found.stdout, found.stderr) == (2, [""], []), found
    assert (found.workers, found.files, found.left) == ({}, {}, [])
    assert flags[0].partition("=")[0] in one_line_with_hint(found.says)
