"""Habits from other launchers: rejected before anything starts, with the right command."""

import os
import re
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import relight
from relight.agent import entrypoint, prepare, unused_variables
from relight.base.env import Environment
from relight.base.errors import UsageError
from relight.cli.coordinator import COORDINATOR_FLAGS
from relight.cli.doctor import DOCTOR_FLAGS
from relight.cli.doctor import usage as doctor_help
from relight.cli.main import main
from relight.flags.arguments import parse, to_spec
from relight.flags.spec import FLAGS, Flag, LaunchSpec, unknown_variables
from relight.flags.usage import coordinator_help, run_help, shown_default

Refused = Callable[..., str]
EVERY_FLAG = list(dict.fromkeys([*FLAGS, *COORDINATOR_FLAGS, *DOCTOR_FLAGS]))


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Refused:
    """Return the two-line rejection of a command line, in a directory with some scripts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHON_EXEC", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # hides running jobs
    for name in ("train.py", "pkg/train.py", "empty/train.py", "code/train.py", "name/space.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "empty" / "__init__.py").write_text("")
    (tmp_path / "code" / "__init__.py").write_text("raise SystemExit")
    (tmp_path / "go.sh").write_text("python train.py\n")
    (tmp_path / "a.ipynb").write_text('{"cells": []}')
    (tmp_path / "python.sh").write_text("print(1)\n")

    def run(*argv: str) -> str:
        assert main(list(argv)) == 2
        return capsys.readouterr().err

    return run


LONG = "9" * 5000  # int() raises ValueError


@pytest.mark.parametrize(
    "argv",
    [
        ("run", f"--redirects={LONG}:1", "train.py"),
        ("run", f"--local-ranks-filter={LONG}", "train.py"),
        ("run", f"--keep-warm=while:{LONG}", "train.py"),
        ("run", "--nproc-per-node=1000001", "train.py"),
        ("sandbox", LONG, "train.py"),
        ("sandbox", "²", "train.py"),
        ("stacks", LONG),
        ("debug", LONG),
        ("warm", "stop", LONG),
        ("logs", f"local://relight/x/role/{LONG}"),
    ],
    ids=lambda argv: argv[0],
)
def test_overlong_and_out_of_range_numbers_are_rejected(
    argv: tuple[str, ...], refused: Refused
) -> None:
    said = refused(*argv)
    assert said.startswith("relight: error: ") and "int_max_str_digits" not in said


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (("train.py", "--lr", "1"), "relight run train.py --lr 1?"),
        (("--nproc-per-node=2", "train.py"), "relight run --nproc-per-node=2 train.py?"),
        (("-m", "pkg.train"), "relight run -m pkg.train?"),
        (("runn", "train.py"), "relight run?"),
        (("torchrun", "train.py"), "relight run?"),
        (("ls",), "relight list?"),
        (("submit", "--script", "x.py"), "relight submit dist.ddp --script x.py?"),
        (
            ("submit", "-s", "local", "-m", "x", "--", "1"),
            "relight submit --scheduler=local dist.ddp -m x -- 1?",
        ),
        (("--verison",), "relight --version?"),
        (("--hlep",), "relight --help?"),
        (("--standalone",), "relight run --standalone?"),
        (("run", "\u2014nnodes=1", "train.py"), "begins with a typographic dash; type `--`"),
        (
            ("run", "train.py --lr 1"),
            "don't quote the script and its arguments together: train.py --lr 1",
        ),
        (("run", "--nproc_per_node", "=", "2", "train.py"), "type --nproc-per-node=2"),
        (("run", "--preload", "train.py"), "--preload takes a value"),
        (("run", "--lr", "1", "train.py"), "put the script's own flags after it"),
        (("status", "-x"), "hint: --help lists the flags\n"),
        (("run", "--use_env", "train.py"), "relight launch has the flag"),
        (("run", "train"), "did you mean train.py?"),
        (("run", "python", "train.py"), "relight starts Python itself: relight run [flags] train"),
        (("run", "python3.11", "-u", "-m", "pkg.train"), "relight run [flags] -m pkg.train"),
        (("run", "torchrun", "train.py"), "relight replaces torchrun"),
        (("run", "env"), "did you mean --no-python env?"),
        (("run", "OMP_NUM_THREADS=4", "train.py"), "command: OMP_NUM_THREADS=4 relight run"),
        (("run", "--NNODES=1", "train.py"), "did you mean --nnodes?"),
        (("run", "--nproc_per_node 2", "train.py"), "don't quote a flag and its value together"),
        (("run", " --nnodes=1", "train.py"), "the name begins with a space"),
        (("run", "--nnodes=1 train.py --lr 1"), "the quotes probably join several arguments"),
        (("run", "go.sh"), "--no-python bash go.sh"),
        (("run", "--no-python", "go.sh"), "./go.sh"),
        (("run", "pkg.train"), "did you mean -m pkg.train?"),
        (("run", "dist.ddp", "-j", "2x2"), "relight submit dist.ddp"),
        (("run", "-m", "train.py"), "-m train; to run a file, leave out -m: train.py"),
        (("run", "-m", "pkg.train.py"), "did you mean -m pkg.train?"),
        (("run", "-m", "pkg/train.py"), "-m pkg.train; to run a file, leave out -m: pkg/train.py"),
        (("run", "-m", "trian"), "did you mean -m train?"),
        (("run", "-m", "pgk.train"), "did you mean -m pkg.train?"),
        (("run", "-m", "pkg.trian"), "did you mean -m pkg.train?"),
        (("run", "-m", "empty.trian"), "did you mean -m empty.train?"),
        (("run", "-m", "no_such_module.at_all"), "searched this directory, PYTHONPATH"),
        (("run", " ", "train.py"), "delete the space or carriage return after a backslash"),
        (
            ("run", "--nnodes=2", "\r", "train.py"),
            "delete the space or carriage return after a backslash",
        ),
        (("launch", "--use-env", "-m", "\u00a0", "pkg.train"), "after a backslash"),
        (("run", "--no-python", " ", "sh"), "after a backslash"),
        (("sandbox", "2", " ", "train.py"), "after a backslash"),
        (("warm", "start", " ", "train.py"), "after a backslash"),
        (("doctor", " "), "after a backslash"),
        (("submit", "-s", "slurm", " ", "dist.ddp"), "after a backslash"),
        ((" ", "run", "train.py"), "after a backslash"),
        (("run", "", "train.py"), "perhaps a quoted variable that is unset"),
        (
            ("run", "--standalone", "true", "train.py"),
            "--standalone does not take a value; leave out true",
        ),
        (
            ("run", "--standalone", "False", "train.py"),
            "--standalone does not take a value; leave out --standalone False",
        ),
        (("run", "--nproc-per-node=a100:4", "train.py"), "type --nproc-per-node=4, or"),
        (("run", "--nproc-per-node=gpu:a100:4(S:0)", "train.py"), "type --nproc-per-node=4, or"),
        (("run", "--nproc-per-node=8(x2)", "train.py"), "type --nproc-per-node=8, or"),
        (("run", "--nproc-per-node=0,1,2", "train.py"), "type --nproc-per-node=3, or"),
        (("run", "--nproc-per-node=", "train.py"), "perhaps because a variable is unset"),
        (("run", "--nproc-per-node", "train.py"), "train.py was taken as the value, perhaps"),
        (("run", "--nproc-per-node='2'", "train.py"), "the quotes are part of the value"),
        (("run", "--nnodes=", "train.py"), "because a variable is unset; for example: --nnodes=2"),
        (("run", "--node-rank=", "train.py"), "because a variable is unset; --node-rank: rank of"),
        (("run", "--master-port=$PORT", "train.py"), "variables in single quotes"),
        (("run", "--rdzv-endpoint=$HOST:1", "train.py"), "variables in single quotes"),
        (("run", "--master-addr", "--master-port=1", "train.py"), "from an unset variable"),
        (("run", "--master-addr=", "--master-port=1", "train.py"), "from an unset variable"),
        (("run", "--nnodes=2", "--master-addr=", "train.py"), "from an unset variable"),
        (("run", "--nnodes=2", "--master-addr=h\r", "train.py"), "=h\\r: expected a host name"),
        (("run", "train.py\r"), "no such file: train.py\\r\nhint: a carriage return is in it"),
        (("run", "--master-addr=123.456.123.456", "train.py"), "IPv4 address are at most 255"),
        (("run", "--rdzv-endpoint=1.2.3.456:1", "train.py"), "IPv4 address are at most 255"),
        (("run", "--master-addr=gpu-1:29500", "train.py"), "gpu-1:29500: expected a host name or"),
        (("run", "--rdzv-endpoint", "10.0.0.1", "172.17.0.1:29500", "x.py"), "quote the value"),
        (("run", "--rdzv-endpoint", "10.0.0.1", "fe80::1", "x.py"), "quote the value"),
        (("run", "--rdzv-backend=C10D", "train.py"), "did you mean c10d?"),
        (("run", "--rdzv-backend=nccl", "train.py"), "init_process_group(backend=…)"),
        (("run", "a.ipynb"), "jupyter nbconvert --to script a.ipynb"),
        (("run", "~/train.py"), "doesn't replace ~ and variables in quotes"),
        (("run", "$HOME/train.py"), "doesn't replace ~ and variables in quotes"),
        (("run", "https://example.com/train.py"), "a script is a local file"),
        (("run", "tain.py"), "did you mean train.py?"),
        (("run", "Train.py"), "did you mean train.py?"),
        (("run", "--hang-timeout=5min", "train.py"), "type --hang-timeout=300\n"),
        (("run", "--shutdown-timeout", "1.5 h", "train.py"), "type --shutdown-timeout=5400\n"),
        (("run", "pkg/trian.py"), "did you mean pkg/train.py?"),
    ],
)
def test_typo_error_suggests_intended_command_line(
    argv: tuple[str, ...], hint: str, refused: Refused
) -> None:
    """The suggestions also cover habits from other launchers."""
    assert hint in refused(*argv)


def test_error_for_name_of_python_program_on_path_suggests_its_path(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The console scripts of Python packages are Python scripts."""
    program = tmp_path / "bin" / "llama-train"
    program.parent.mkdir()
    program.write_text("#!/opt/venv/bin/python3\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    assert f"did you mean {program}?" in refused("run", "llama-train", "sft.yaml")


def test_single_node_job_waits_for_master_addr_to_resolve(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name of a pod, in MASTER_ADDR, may resolve some seconds after the pod has started."""
    tries: list[bytes] = []

    def look_up(host: bytes, *_: object, **__: object) -> list[object]:
        tries.append(host)
        if len(tries) < 3:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    spec, given = spec_of("--master-addr=job-0.job", "--master-port=29500", __file__)
    job, _ = prepare.prepare(spec, given, Environment({}))
    assert (job.store_host, tries) == ("job-0.job", [b"job-0.job"] * 3)
    assert capsys.readouterr().err.count("for job-0.job to resolve: unknown") == 1


@pytest.mark.parametrize("script", ["a.py", "chain.py", "train.json", "pkg/eval.py"])
def test_missing_script_error_shows_directory_if_no_similar_file_exists(
    script: str, refused: Refused
) -> None:
    """The extension dominates short names, and a script isn't mistaken for a configuration file."""
    for name in ("b.py", "pkg/evaluation.py"):
        Path(name).write_text("")
    folder = Path(script).parent.resolve()
    assert refused("run", script).endswith(f"hint: searched {folder}\n")


def test_missing_directory_error_shows_full_path(refused: Refused) -> None:
    folder = Path("scripts").resolve()
    assert refused("run", "scripts/x.py").endswith(f"hint: no such directory: {folder}\n")


@pytest.mark.parametrize(
    ("flags", "meant"),
    [
        ("--nprocs -n -np -np4 --num-processes --num_processes", "--nproc-per-node"),
        ("--gpus --num_gpus --multi_gpu -g", "--nproc-per-node=gpu"),
        ("--num-machines --num_nodes --nodes -N", "--nnodes"),
        ("--world-size --world_size", "--nnodes times --nproc-per-node"),
        ("--machine-rank --machine_rank", "--node-rank"),
        ("--main_process_ip", "--master-addr"),
        ("--main_process_port", "--master-port"),
        ("--hostfile -hostfile -H --hosts", "relight submit -s ssh"),
        ("-s --scheduler -cfg", "relight submit"),
        ("--nproc-per-nodes", "--nproc-per-node"),
        ("--rdzv-timeout --rdzv_timeout", "--rdzv-conf join_timeout="),
    ],
)
def test_flag_from_another_launcher_suggests_relight_equivalent(
    flags: str, meant: str, refused: Refused
) -> None:
    """The launchers are mpirun, srun, accelerate, deepspeed and torchx."""
    for flag in flags.split():
        found = refused("run", flag, "2", "train.py")
        assert f"unknown flag: {flag}\n" in found or flag == "-cfg"
        assert meant in found, flag


def spec_of(*argv: str) -> tuple[LaunchSpec, set[str]]:
    parsed = parse(list(argv), Environment({}))
    return to_spec(parsed), parsed.given


@pytest.mark.parametrize(
    "words",
    ["train.py", "python.sh", "-", "-m train", "-m pkg.train", "-m name.space", "-m json.tool",
     "-m code.made_by_its_code", "-m pkg", "-m train.py.more", "-m ${local_rank}", "-m .x"],
)  # fmt: skip
def test_plausible_command_line_is_not_rejected(words: str, refused: Refused) -> None:
    """Only a script that can't possibly work is rejected. A package's code, another Python or its
    flags may know more than the launcher.
    """
    entrypoint.check(spec_of(*words.split())[0], Environment({}), sys.executable)


@pytest.mark.parametrize(
    ("names", "says", "hint"),
    [
        ("no_such_module", "no such module: no_such_module", "searched this directory"),
        ("jsn", "no such module: jsn", "did you mean --preload=json?"),
        ("json,ours.pat", "no such module: ours.pat", "did you mean --preload=ours.part?"),
        ("ours.made_there", "", ""),
        ("hides.x", "", ""),
        ("os.path,json.tool,pkg", "", ""),
        ("auto", "", ""),
    ],
)  # fmt: skip
def test_nonexistent_preload_module_is_rejected(
    names: str, says: str, hint: str, refused: Refused
) -> None:
    """The check doesn't import the module's package. A module that the package's code might
    provide isn't rejected, nor is one that another Python might have.
    """
    for name in ("hides", "ours"):
        Path(name).mkdir()
    Path("ours/part.py").touch()
    Path("ours/__init__.py").write_text("import sys; sys.modules[f'{__name__}.made_there'] = 1")
    Path("hides/__init__.py").write_text("__path__.append('/elsewhere')\n")
    preload = spec_of(f"--preload={names}", "train.py")[0].preload
    entrypoint.check_preload(preload, "/usr/bin/python3")
    if not says:
        entrypoint.check_preload(preload, sys.executable)
        return
    with pytest.raises(UsageError) as caught:
        entrypoint.check_preload(preload, sys.executable)
    assert caught.value.message == says
    assert hint in caught.value.hint


def test_module_is_not_checked_if_workers_run_another_python(refused: Refused) -> None:
    """If workers run a different Python, that Python checks -m."""
    spec = spec_of("-m", "no_such_module")[0]
    entrypoint.check(spec, Environment({}), "/usr/bin/python3")
    with pytest.raises(UsageError, match="no such module: no_such_module"):
        entrypoint.check(spec, Environment({}), sys.executable)


def test_python_exec_with_arguments_causes_error_with_hint() -> None:
    spec, given = spec_of(__file__)
    with pytest.raises(UsageError) as caught:
        prepare.prepare(spec, given, Environment({"PYTHON_EXEC": "python3 -O"}))
    assert caught.value.hint == "it names a program, without arguments"


def test_launcher_flags_after_script_print_one_note() -> None:
    """A launcher flag after the script is passed to the script, with a note. The note is
    omitted if the launcher also got the flag, or if scripts commonly have it.
    """
    words = ("--nproc_per_node=2", "--nnodes", "2", "--log-dir=x", "--lr=1", "--nnodes", "3")
    spec, given = spec_of("train.py", *words)
    assert spec.script_args == words
    (note,) = entrypoint.misplaced_flags(spec, given)
    assert note.startswith("--nproc_per_node=2, --nnodes: passed to train.py")
    spec, given = spec_of("--nnodes=1", "--nproc-per-node=2", "train.py", *words)
    assert entrypoint.misplaced_flags(spec, given) == []


UNDERSCORE = 'parser.add_argument("--local_rank", type=int)\n'
DASH = "parser.add_argument('--local_rank', '--local-rank', type=int)\n"


@pytest.mark.parametrize(
    ("text", "words", "is_passed", "note"),
    [
        (UNDERSCORE, "", True, ""),
        (UNDERSCORE.replace(")", ", required=True)"), "", False, ""),
        (
            UNDERSCORE,
            "",
            False,
            "train.py appears to read its local rank from --local_rank, which",
        ),
        (DASH, "", True, ""),
        (DASH, "", False, "train.py appears to read its local rank from --local_rank, which"),
        (UNDERSCORE + 'os.environ["LOCAL_RANK"]', "", False, ""),
        (UNDERSCORE + "import other", "", False, ""),
        (UNDERSCORE + "import deepspeed", "", False, ""),
        (UNDERSCORE, "--local_rank ${local_rank}", False, ""),
        (UNDERSCORE, "--lr 1 --local_rank 0", False, "all 2 workers are passed --local_rank 0; "),
        ("", "--local-rank=7", False, "all 2 workers are passed --local-rank=7; "),
        ("", "--local_rank", False, ""),
        ("print('--lr')", "", True, ""),
    ],
)
def test_unsupported_use_of_local_rank_prints_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str, is_passed: bool,
    note: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "other.py").write_text("rank = os.environ['LOCAL_RANK']")
    spec, _ = spec_of("train.py", *words.split())
    notes = entrypoint.local_rank_notes(spec, 2, is_passed=is_passed)
    assert len(notes) == bool(note)
    assert all(each.startswith(note) for each in notes)


@pytest.mark.parametrize("flags", [["--max-restarts=1"], []])
@pytest.mark.parametrize("script", ["-", "pipe"])
def test_script_that_can_be_read_only_once_is_limited_to_one_worker(
    script: str, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second worker, or a restart, would read an empty script and succeed."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    spec, _ = spec_of(*flags, script)
    if not flags:
        assert entrypoint.check_streams(spec, 1) == []
    with pytest.raises(UsageError, match="would run an empty program"):
        entrypoint.check_streams(spec, 1 if flags else 2)
    assert entrypoint.check_streams(spec_of("--no-python", script)[0], 2) == []


def test_script_from_process_substitution_is_rejected() -> None:
    """Workers get the name from `<(…)`, but not the descriptor."""
    readable, writable = os.pipe()
    try:
        path = f"/dev/fd/{readable}"
        for argument in (path, f"--config={path}"):
            (note,) = entrypoint.check_streams(spec_of("train.py", argument)[0], 1)
            assert note.startswith(f"{path} is a shell pipe")
        with pytest.raises(UsageError, match="is a shell pipe"):
            entrypoint.check_streams(spec_of(path)[0], 1)
    finally:
        os.close(readable)
        os.close(writable)
    assert entrypoint.check_streams(spec_of("train.py", path)[0], 1) == []


PLACE = {"MASTER_ADDR": "10.9.8.7", "MASTER_PORT": "29511"}
DEVICES = {"CUDA_VISIBLE_DEVICES": "0,1"}


@pytest.mark.parametrize(
    ("words", "variables", "note"),
    [
        ("x.py", PLACE, "MASTER_ADDR=10.9.8.7, MASTER_PORT=29511: no effect, as in torchrun"),
        ("--standalone x.py", PLACE, "MASTER_ADDR=10.9.8.7, MASTER_PORT=29511: no effect, as in"),
        ("--master-port=29511 x.py", PLACE, "MASTER_ADDR=10.9.8.7: no effect, as in torchrun; the"),
        ("--master-port=1 x.py", PLACE, "MASTER_ADDR=10.9.8.7, MASTER_PORT=29511: no effect, as"),
        ("--master-addr=10.9.8.7 --master-port=29511 x.py", PLACE, ""),
        ("--rdzv-endpoint=10.9.8.7:29511 x.py", PLACE, ""),
        ("--rdzv-backend=c10d --rdzv-endpoint=10.9.8.7:29511 x.py", PLACE, ""),
        ("--nnodes=2 --rdzv-endpoint=a x.py", PLACE, ""),
        ("x.py", {**PLACE, "LOCAL_RANK": "0"}, ""),
        ("x.py", {**PLACE, "TORCHELASTIC_RUN_ID": "x"}, ""),
        ("x.py", DEVICES, "starting 1 worker, which sees all 2 devices in CUDA_VISIBLE_DEVICES"),
        (
            "x.py",
            {"HIP_VISIBLE_DEVICES": "2,3"},
            "starting 1 worker, which sees all 2 devices in H",
        ),
        ("--nproc-per-node=1 x.py", DEVICES, ""),
        ("x.py", {"CUDA_VISIBLE_DEVICES": "0"}, ""),
        ("x.py", {"CUDA_VISIBLE_DEVICES": ""}, ""),
        ("x.py", {"RELIGHT_HANG_TIMOUT": "5"}, "RELIGHT_HANG_TIMOUT is ignored; did you mean "
         "RELIGHT_HANG_TIMEOUT?"),
        ("x.py", {"PET_NPROC_PER_NODES": "2"}, "PET_NPROC_PER_NODES is ignored; did you mean "
         "PET_NPROC_PER_NODE?"),
        ("x.py", {"RELIGHT_MAX_RESTARTS": "3"}, "RELIGHT_MAX_RESTARTS is ignored; did you mean "
         "PET_MAX_RESTARTS?"),
        ("x.py", {"RELIGHT_EXPERIMENT": "a", "PET_NAME_OF_MY_CAT": "b"}, ""),
    ],
)  # fmt: skip
def test_ignored_environment_variable_prints_a_note(
    words: str, variables: dict[str, str], note: str
) -> None:
    """Users expect the launcher to read it."""
    unknown = unknown_variables(variables)
    found = unused_variables.notes(*spec_of(*words.split()), variables, 1, unknown)
    assert len(found) == bool(note)
    assert all(each.startswith(note) for each in found)


def test_relights_own_variables_are_not_taken_for_typos() -> None:
    text = "".join(path.read_text() for path in Path(relight.__file__).parent.rglob("*.py"))
    names = re.findall(r"\b(?:RELIGHT|PET)_[A-Z_]*[A-Z]\b", text)
    assert "RELIGHT_JOB_DIR" in names
    assert unknown_variables(names) == []


def test_script_in_a_named_pipe_is_not_scanned(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.py")
    spec, _ = spec_of(str(tmp_path / "train.py"))
    assert entrypoint.local_rank_notes(spec, 2, is_passed=False) == []


@pytest.mark.parametrize("command", ["run", "launch", "submit", "doctor"])
def test_every_command_accepts_version_flag(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command line is `relight COMMAND --version`."""
    assert main([command, "--version"]) == 0
    assert capsys.readouterr().out == f"relight {relight.__version__}\n"


def test_help_subcommand_matches_help_flag(capsys: pytest.CaptureFixture[str]) -> None:
    """`relight help COMMAND` prints the same as `relight COMMAND --help`."""
    assert main(["help", "run"]) == 0
    assert capsys.readouterr().out.startswith("usage: relight run")


def test_run_help_shows_flag_groups_and_defaults() -> None:
    """`relight run --help` shows each flag under a heading, with its default, in 80 columns."""
    text = run_help(FLAGS)
    assert max(map(len, text.splitlines())) <= 80
    for flag in FLAGS:
        assert f" --{flag.name}" in text
    before = text.partition("  --nnodes")[0]
    assert before.endswith("\n\nsize:\n    ")
    for default in ("[1]", "[static]", "[30]", "[29500]", "[SIGTERM,SIGINT,SIGHUP,SIGQUIT]"):
        assert default in text


@pytest.mark.parametrize("flag", EVERY_FLAG, ids=lambda f: f.name)
def test_default_shown_in_help_parses_to_actual_default(flag: Flag) -> None:
    """Typing the default has no effect. An uninformative default, such as no directory, isn't
    shown.
    """
    shown = shown_default(flag)
    if shown == "all":
        assert flag.name == "local-ranks-filter"
    elif shown and flag.parse is not None:
        assert flag.parse(shown) == flag.default
    else:
        no_value = flag.parse is None or flag.default is None
        assert no_value or flag.name == "rdzv-id" or not str(flag.default).strip("()")


@pytest.mark.parametrize("text", [coordinator_help(COORDINATOR_FLAGS), doctor_help()])
def test_coordinator_and_doctor_help_show_defaults(text: str) -> None:
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    flags = lines[lines.index("", 2) + 1 : lines.index("examples:") - 1]
    assert all(line[32:34].strip() == "" and len(line) <= 80 for line in flags if len(line) > 34)
    assert "      --rdzv-endpoint HOST[:PORT]" in flags
    assert "[c10d]" in text


def test_launch_function_is_offered_by_editor_completion() -> None:
    """`relight.launch` is among the names offered by an editor or notebook."""
    assert "launch" in dir(relight)
