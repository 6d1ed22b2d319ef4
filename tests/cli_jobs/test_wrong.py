"""Invalid command lines: exit code 2, one line and perhaps a hint, and no side effects."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import LIMIT_S

from .conftest import Command

FILE = """
import relight.job as specs
def good(n: int = 1): return specs.AppDef("a", [specs.Role("r", "", entrypoint="true")])
def untyped(n): ...
def odd(n: set[int]): ...
def many(**n: int): ...
def nothing() -> specs.AppDef: ...
def empty(): return specs.AppDef("a")
def fails(): raise KeyError("x")
def leaves(): raise SystemExit(0)
def wrong(): return specs.AppDef("a", [specs.Role("r", "", entrypoint="true", num_replicas="2")])
def letters(): return specs.AppDef("a", [specs.Role("r", "", entrypoint="true", args="abc")])
def named(): return specs.AppDef("a", [specs.Role("a/b", "", entrypoint="true")])
async def later(): ...
"""

# A command line, and part of its message.
SUBMIT = [
    ("", "no component given"),
    ("--dryrun", "no component given"),
    ("-s slurm --script c.py", "no component given"),
    ("-s slurm --metadata a=b dist.ddp -j 1x2", "--metadata must come after dist.ddp"),
    ("--msg=hi utils.echo", "--msg must come after utils.echo"),
    ("-j 1x2 c.py:good", "-j must come after c.py:good"),
    ("utils.ecoh", "unknown component: utils.ecoh"),
    ("train.py", "unknown component: train.py"),
    ("nofile.py:f", "no such file: nofile.py"),
    ("nofile.py:f:g", "no such file or module: nofile.py:f"),
    ("no.module:f", "no such file or module: no.module"),
    (":f", ":f: expected FILE:FUNCTION or MODULE:FUNCTION"),
    ("c.py:", "c.py:: expected FILE:FUNCTION"),
    ("c.py:nope", "no nope in c.py"),
    ("c.py:untyped --n 1", "c.py:4: the parameter n of c.py:untyped has no type annotation"),
    ("c.py:odd --n 1", "c.py:5: the parameter n of c.py:odd"),
    ("c.py:many --n 1", "c.py:6: **n of c.py:many has no"),
    ("c.py:nothing", "c.py:nothing returned nothing"),
    ("c.py:empty", "app a has no roles"),
    ("c.py:fails", "c.py:fails failed in c.py:9: KeyError: 'x'"),
    ("c.py:leaves", "c.py:leaves failed in c.py:10: SystemExit: 0"),
    ("c.py:wrong", "role r has '2' for its num_replicas: expected int"),
    ("c.py:letters", "args of role r: expected a list, not 'abc'"),
    ("c.py:named", "role name 'a/b'"),
    ("c.py:later", "c.py:14: c.py:later is async"),
    ("c.py:good --n x", "--n=x: expected a whole number, not 'x'"),
    ("c.py:good --n 1 --n 2", "--n is given twice"),
    ("c.py:good --m 1", "c.py:good has no parameter --m"),
    ("c.py:good more", "c.py:good takes flags only, not 'more'"),
    ("c.py:good --n", "--n needs a value"),
    ("bad.py:f", "can't load bad.py:1: SyntaxError"),
    ("-s nosuch utils.echo", "unknown scheduler: nosuch"),
    ("-s", "--scheduler needs a value"),
    ("-s local -s local utils.echo", "--scheduler is given twice"),
    ("--dryrun --dryrun utils.echo", "--dryrun is given twice"),
    ("--dryrun=1 utils.echo", "--dryrun does not take a value"),
    ("--drynur utils.echo", "unknown flag: --drynur"),
    ("-x utils.echo", "unknown flag: -x"),
    ("--w utils.echo", "--w is ambiguous"),
    ("-cfg", "--scheduler-args needs a value"),
    ("-cfg bogus=1 utils.echo", "local has no option bogus"),
    ("--cfg bogus=1 utils.echo", "local has no option bogus"),
    ("-cfg log_dri=1 utils.echo", "local has no option log_dri"),
    ("-cfg prepend_cwd=maybe utils.echo", "prepend_cwd=maybe: expected true or false"),
    ("-cfg prepend_cwd utils.echo", "-cfg prepend_cwd: expected key=value"),
    ("-cfg log_dir=a,logDir=b utils.echo", "are the same option"),
    (
        "--workspace /no/where utils.echo",
        "--workspace=/no/where: workspace /no/where is not a directory",
    ),
    (
        "--launcher torchrn utils.echo",
        "--launcher=torchrn: expected auto, installed, travels, torchrun",
    ),
    ("dist.ddp", "exactly one of --script and -m is required, got neither"),
    ("dist.ddp --script a.py -m a", "exactly one of --script and -m is required, got both"),
    ("dist.ddp a.py --lr 1", "a.py would be passed to the script as an argument"),
    ("dist.ddp --script no.py", "no such file: no.py"),
    ("dist.ddp --script a.py -j 2x", "-j '2x': expected NODESxWORKERS"),
    ("dist.ddp --script a.py -j 1x2x3", "expected NODESxWORKERS"),
    ("dist.ddp --script a.py -j 0x1", "there must be at least 1 node"),
    ("dist.ddp --script a.py -j 4:2x1", "the minimum, 4, is above the maximum, 2"),
    ("dist.ddp --script a.py -j -1", "expected NODESxWORKERS"),
    ("dist.ddp --script a.py -h gpu.smal", "unknown named resource: gpu.smal"),
    ("dist.ddp --script a.py --cpu many", "--cpu=many: expected a whole number"),
    ("dist.ddp --script a.py --debug yes", "--debug=yes: expected true or false"),
    ("dist.ddp --script a.py --env A", "--env=A: expected key=value"),
    ("dist.ddp --script a.py --env A=B=C", "two '='"),
    ("dist.ddp --script a.py --env A=1,A=2", "A is given twice"),
    ("dist.ddp --script a.py --mounts src=/a", "a mount starts with its type"),
    ("dist.ddp --script a.py --mounts type=bind,src=/a", "lacks dst"),
    ("dist.ddp --script a.py --rdzv_port 0", "--rdzv_port=0: expected a port"),
    ("dist.ddp --script a.py --rdzv_port 99999", "--rdzv_port=99999: expected a port"),
    ("dist.ddp --script a.py --tee 4", "--tee=4: expected 0, 1, 2 or 3"),
    ("dist.ddp --script a.py --max_retries -1", "role a has max_retries=-1"),
    ("dist.ddp --script a.py --lr 0.1", "dist.ddp has no parameter --lr"),
    (
        "dist.spmd --script a.py -j 2 -h cpu.small",
        "has no GPUs, so the number of workers is unknown",
    ),
    ("dist.spmd --script a.py -j 1x1x1", "expected NODESxWORKERS or NODES"),
    ("utils.echo --num_replicas 0", "role echo has num_replicas=0"),
    ("utils.echo --num_replicas 1.5", "--num_replicas=1.5: expected a whole number"),
    ("utils.echo --num_replicas 99999999999999999999", "echo has more than 100000 replicas"),
    ("--dryrun dist.ddp --script a.py -j 999999x1", "more than 100000 nodes"),
    ("--dryrun dist.ddp --script a.py -j 1x999999", "more than 100000 nodes or workers"),
    ("--dryrun dist.ddp --script a.py -j 1x" + "9" * 5000, "expected NODESxWORKERS"),
    ("--dryrun dist.ddp -m ..", "-m ..: expected a module name"),
    ("--dryrun dist.ddp --script a.py --cpu -2", "role a has cpu=-2"),
    ("--dryrun dist.ddp --script a.py --rdzv_conf a", "--rdzv_conf=a: expected A=1,B=2"),
    ("--dryrun dist.ddp --script a.py --rdzv_backend=", "--rdzv_backend=: expected a name"),
    ("utils.echo --image", "--image needs a value"),
    ("utils.touch", "utils.touch needs --file"),
    ("utils.sh", "utils.sh needs a command"),
    ("utils.sh --entrypoint nope", "the command of sh/0, nope, is not there"),
    ("utils.binary --entrypoint nope", "the command of binary/0, nope, is not there"),
    ("utils.binary --entrypoint ./c.py", "./c.py, is not executable"),
    ("utils.python a.py --lr 1", "a.py would be passed to the script as an argument"),
    ("utils.python", "exactly one of -m, -c and --script is required, got none"),
    ("utils.python -m a -c b", "exactly one of -m, -c and --script is required, got 2"),
    ("utils.booth --x1 1 --x2 a", "--x2=a: expected a number"),
    ("utils.copy --src a", "utils.copy needs --dst"),
    ("--stdin utils.echo", "--stdin and utils.echo are mutually exclusive"),
]
OTHERS = [
    ("status --roles a", "--roles needs a job"),
    ("status a b", "relight status takes one job only, not b"),
    ("status nope", "no such job: nope"),
    ("status local://relight/nope", "no such job: local://relight/nope"),
    ("status nosuch://a/b", "unknown scheduler: nosuch"),
    ("status local://relight", "is not a job handle"),
    ("logs", "relight logs needs one job"),
    ("logs local://relight/nope", "no such job: local://relight/nope"),
    ("logs local://relight/nope --regex (", "--regex=(: missing )"),
    (
        "logs local://relight/nope --streams both",
        "--streams=both: both is not one of stdout, stderr, combined",
    ),
    ("logs local://relight/nope --replica x", "--replica=x: expected numbers"),
    ("logs local://relight/nope --since soon", "--since=soon: expected 30s, 10m"),
    ("logs local://relight/nope --since 99999999999d", "this is before the year 1"),
    (
        "cancel local://relight/nope/echo/0",
        "is only a part of a job; jobs can only be cancelled as a whole",
    ),
    (
        "delete local://relight/nope/echo/0",
        "is only a part of a job; jobs can only be deleted as a whole",
    ),
    ("logs garbage/x", "no such job: garbage"),
    ("wait", "relight wait needs one job"),
    ("wait --timeout -1 local://relight/nope", "--timeout=-1: expected seconds"),
    ("wait --timeout soon local://relight/nope", "--timeout=soon: expected seconds"),
    ("wait --timeout 1 local://relight/nope", "no such job"),
    ("cancel", "relight cancel needs a job"),
    ("cancel local://relight/nope", "no such job: local://relight/nope"),
    ("delete", "relight delete needs a job"),
    ("delete local://relight/nope", "no such job: local://relight/nope"),
    ("delete local://relight/..", "no such job: local://relight/.."),
    ("describe local://relight/nope", "no such job: local://relight/nope"),
    ("describe --jsn x", "unknown flag: --jsn"),
    ("list more", "relight list takes flags only, not more"),
    ("list -s nosuch", "unknown scheduler: nosuch"),
    ("list --state RUNING", "did you mean RUNNING?"),
    ("components nope", "unknown component: nope"),
    ("components c.py:untyped", "c.py:4: the parameter n of c.py:untyped has no type annotation"),
    ("schedulers nosuch", "unknown scheduler: nosuch"),
    ("schedulers local slurm", "relight schedulers takes one scheduler only, not slurm"),
    ("configure -s nosuch", "unknown scheduler: nosuch"),
    ("configure more", "relight configure takes flags only"),
    ("completion", "relight completion needs one shell"),
    ("completion tcsh", "no completion for tcsh"),
    ("log x", "unknown command: log"),
    ("sumbit utils.echo", "unknown command: sumbit"),
]
STDIN: list[tuple[Any, str]] = [
    ("{", "--stdin: not valid JSON"),
    ("", "--stdin: not valid JSON"),
    ("\udcff", "--stdin: not valid JSON"),
    ([], "--stdin: expected a JSON object"),
    ({}, "--stdin: component_name is missing"),
    ({"bogus": 1}, "--stdin: unknown key: bogus"),
    ({"component_nam": "x"}, "--stdin: unknown key: component_nam"),
    ({"component_name": 1}, "--stdin: component_name must be a str, not 1"),
    ({"dryrun": "yes"}, "--stdin: dryrun must be a bool, not 'yes'"),
    ({"scheduler_args": {"bogus": 1}}, "local has no option bogus"),
    ({"scheduler_args": {"prepend_cwd": 1}}, "prepend_cwd=1: expected true or false"),
    ({"component_args": {"msg": 5}}, "msg of the arguments: expected str, not 5"),
    ({"component_args": {"nope": ""}}, "utils.echo has no parameter nope"),
    ({"component_args": {"msg": "a\0"}}, "an argument that is not a string"),
    ({"component_args_str": [1]}, "--stdin: component_args_str must be a list of strings"),
    ({"component_args": {}, "component_args_str": []}, "are mutually exclusive"),
    ({"scheduler": "nosuch"}, "unknown scheduler: nosuch"),
    ({"component_name": "a\0b"}, "unknown component"),
    (
        {"workspace": "/no/where"},
        "--workspace=/no/where: workspace /no/where is not a directory",
    ),
]
WHOLE = {"component_name": "utils.echo", "scheduler": "local", "scheduler_args": {}}


@pytest.fixture
def files(place: Path) -> None:
    (place / "c.py").write_text(FILE)
    (place / "bad.py").write_text("def f(:\n")
    (place / "a.py").write_text("")


def check(found: Any, text: str, place: Path, tmp_path: Path) -> None:
    """Check for one line with this text and at most a hint, with nothing on stdout, no job and no
    file.
    """
    assert (found.returncode, found.stdout) == (2, "")
    lines = found.stderr.splitlines()
    assert lines[0].startswith("relight: error: ")
    assert text in lines[0]
    assert len(lines) == 1 or (len(lines) == 2 and lines[1].startswith("hint: "))
    assert list((tmp_path / "state").glob("*/*")) == []
    assert {path.name for path in place.iterdir()} <= {"c.py", "a.py", "bad.py", "__pycache__"}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        # What to run is only known when the job is about to be started, after a call to git.
        pytest.param(*each, marks=pytest.mark.processes if "--entrypoint" in each[0] else ())
        for each in SUBMIT
    ],
    ids=lambda value: value[:80] or "nothing",
)
@pytest.mark.usefixtures("files")
def test_invalid_submit_command_is_rejected_before_submission(
    here: Command, place: Path, tmp_path: Path, words: str, text: str
) -> None:
    check(here("submit", *words.split()), text, place, tmp_path)


@pytest.mark.parametrize(("words", "text"), OTHERS, ids=str)
@pytest.mark.usefixtures("files")
def test_invalid_job_command_is_rejected(
    here: Command, place: Path, tmp_path: Path, words: str, text: str
) -> None:
    check(here(*words.split()), text, place, tmp_path)


@pytest.mark.parametrize(("order", "text"), STDIN, ids=lambda value: ascii(value)[:40])
def test_invalid_json_on_stdin_is_rejected(
    here: Command, place: Path, tmp_path: Path, order: Any, text: str
) -> None:
    if isinstance(order, dict) and order and "bogus" not in order:
        order = {**WHOLE, **order}
    said = order if isinstance(order, str) else json.dumps(order)
    if said == "\udcff":
        said = "�"
    check(here("submit", "--stdin", stdin=said), text, place, tmp_path)


def test_unreadable_settings_file_fails_every_command(
    here: Command, place: Path, tmp_path: Path
) -> None:
    """The error names the file."""
    (place / "a.py").write_text("")
    for words in (("submit", "utils.echo"), ("list",), ("status", "local://relight/x")):
        found = here(*words, RELIGHTCONFIG=str(place / "a.py") + "x")
        check(found, "RELIGHTCONFIG=", place, tmp_path)
    (place / "c.py").write_text("no section\n")
    check(here("list", TORCHXCONFIG="c.py"), "can't read c.py: ", place, tmp_path)


@pytest.mark.parametrize("word", ["--dryrun", "-s"])
def test_submit_flag_after_component_is_rejected(here: Command, word: str) -> None:
    """The error says where the flag belongs."""
    found = here("submit", "dist.ddp", word, "--script", "a.py")
    assert found.returncode == 2
    assert found.stderr.endswith("it must come before dist.ddp\n")


def test_submit_rejects_value_for_boolean_flag(here: Command) -> None:
    """The value is rejected both before and after the component."""
    found = here("submit", "dist.ddp", "--wait=false", "--script", "a.py")
    assert found.returncode == 2
    assert found.stderr.endswith("before dist.ddp and takes no value: --wait\n")
    for value, hint in (("false", "leave it out"), ("true", "type --wait")):
        found = here("submit", f"--wait={value}", "dist.ddp", "--script", "a.py")
        assert (found.returncode, found.stderr.splitlines()[1]) == (2, f"hint: {hint}")


def test_invalid_setting_error_shows_its_file(here: Command, place: Path) -> None:
    """A byte order mark is ignored."""
    file = place / "set"
    file.write_text("\ufeff[local]\nprepend_cwd = maybe\n")
    found = here("submit", "--dryrun", "utils.echo", RELIGHTCONFIG=str(file))
    assert found.returncode == 2
    assert f"in the settings ({file}): prepend_cwd=maybe: expected" in found.stderr


@pytest.mark.parametrize("words", [("components",), ("--help",), ("completion", "bash")])
def test_write_error_on_full_stdout_is_one_line(
    relight: Command, place: Path, words: tuple[str, ...]
) -> None:
    """The command exits with the code for machine errors."""
    command = [sys.executable, "-m", "relight", *words]
    with open("/dev/full", "w") as full:
        found = subprocess.run(
            command, check=False, stdout=full, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S
        )
    assert found.returncode == 4
    assert found.stderr == "relight: error: can't write the output: No space left on device\n"


def test_list_works_in_deleted_working_directory(relight: Command, place: Path) -> None:
    code = "import os, sys; os.rmdir(os.getcwd()); from relight.cli.main import main; "
    (place / "gone").mkdir()
    found = subprocess.run(
        [sys.executable, "-c", code + "sys.exit(main(['list', '--json']))"],
        cwd=place / "gone", capture_output=True, text=True, timeout=LIMIT_S, check=False,
        env={**os.environ, "RELIGHT_STATE_DIR": str(place), "XDG_RUNTIME_DIR": str(place)},
    )  # fmt: skip
    assert (found.returncode, found.stdout, found.stderr) == (0, "[]\n", "")


@pytest.mark.processes
@pytest.mark.parametrize("words", [["run", "train.py"], ["submit", "utils.echo"]])
def test_error_names_deleted_working_directory_as_the_cause(place: Path, words: list[str]) -> None:
    """A deleted working directory is often recreated under the same name, as by git checkout."""
    (place / "gone").mkdir()
    code = "import os; os.rmdir(os.getcwd()); from relight.cli.main import entry; entry()"
    found = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=place / "gone", capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert (found.returncode, found.stdout) == (4, "")
    assert found.stderr.startswith("relight: error: the working directory was deleted\nhint: cd")


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has pipes of packets")
def test_each_stderr_line_is_written_in_a_single_write() -> None:
    """Agents that share a terminal, as under srun and in shell loops, don't mix their lines."""
    readable, writable = os.pipe2(os.O_DIRECT)
    command = [sys.executable, "-m", "relight", "run", "missing.py"]
    try:
        subprocess.run(command, check=False, stderr=writable, timeout=LIMIT_S)
        os.close(writable)
        written = list(iter(lambda: os.read(readable, 4096), b""))
    finally:
        os.close(readable)
    assert len(written) == 2
    assert all(packet.endswith(b"\n") for packet in written)


def test_submit_fails_without_a_usable_state_directory(relight: Command, tmp_path: Path) -> None:
    """The error names the variable."""
    (tmp_path / "file").write_text("")
    found = relight("submit", "utils.echo", RELIGHT_STATE_DIR=str(tmp_path / "file"))
    assert found.returncode == 4
    assert found.stdout == ""
    assert "choose another place with RELIGHT_STATE_DIR" in found.stderr
