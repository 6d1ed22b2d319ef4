"""`relight submit` on this machine, as a whole process."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from conftest import LIMIT_S, long

from relight.base.errors import MachineError
from relight.cli.jobs.common import Follower
from relight.job.handles import Handle
from relight.runner.runner import Runner
from relight.schedulers.processes.record import LocalRecord

from .conftest import Command

pytestmark = pytest.mark.forked

SCRIPT = """
import json, os, sys
print(json.dumps({"argv": sys.argv[1:], "rank": os.environ.get("RANK")}), flush=True)
print("a complaint", file=sys.stderr)
"""


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    "words",
    [
        ("utils.echo",),
        ("--json", "utils.echo"),
        ("--wait", "--log", "utils.echo"),
        ("-cfg", "log_dir=logs,detach=true", "utils.sh", "touch", "here"),
        ("--workspace", ".", "dist.ddp", "-j", "2x2", "--script", "train.py"),
        ("-s", "slurm", "dist.ddp", "-j", "2x2", "--script", "train.py"),
        ("-s", "slurm", "--workspace", ".", "-cfg", "job_dir=there", "utils.echo"),
        ("-s", "docker", "--workspace", ".", "utils.echo"),
        ("comp.py:own",),
    ],
    ids=" ".join,
)
def test_dry_run_has_no_side_effects(
    relight: Command, place: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """What would be submitted is printed on stdout."""
    (place / "train.py").write_text(SCRIPT)
    (place / "comp.py").write_text(
        "import relight.job as specs\n"
        "def own(): return specs.AppDef('a', [specs.Role('r', '', entrypoint='true')])\n"
    )
    before = files(tmp_path)
    found = relight("submit", "--dryrun", *words, PYTHONDONTWRITEBYTECODE="1")
    assert found.returncode == 0, found.stderr
    assert found.stdout
    assert files(tmp_path) == before


def test_dry_run_shows_the_scheduler_request(relight: Command, place: Path) -> None:
    """The request is printed as text, or as an object with four keys."""
    words = ("utils.sh", "echo", "$HOME", "a b")
    assert "sh -c 'echo '" in relight("submit", "--dryrun", *words).stdout
    found = relight("submit", "--dryrun", "--json", *words)
    shown = json.loads(found.stdout)
    assert list(shown) == ["scheduler", "cfg", "app", "request"]
    assert (shown["scheduler"], shown["app"]["name"]) == ("local", "sh")
    (replica,) = shown["request"]["role_params"]["sh"]
    assert replica["args"] == ["sh", "-c", "echo '$HOME' 'a b'"]
    assert replica["cwd"] == str(place)


def test_dry_run_prints_note_about_missing_script(relight: Command) -> None:
    """The note is printed on stderr, and the request is still shown."""
    found = relight("submit", "--dryrun", "dist.ddp", "--script", "no.py")
    assert found.returncode == 0
    assert "relight: note: no such file: no.py\n" in found.stderr


def test_submit_prints_only_handle_on_stdout(relight: Command) -> None:
    """The job's output and its result are printed on stderr."""
    found = relight("submit", "utils.echo", "--msg", "hello you")
    assert found.returncode == 0
    handle = found.stdout.removesuffix("\n")
    assert handle.startswith("local://relight/echo-")
    assert "\n" not in handle
    assert found.stderr.splitlines() == ["echo/0 hello you", f"relight: {handle} SUCCEEDED"]


@pytest.mark.parametrize("flag", ["--wait", long("--log"), "--tee_logs", long("--tee-logs")])
def test_wait_flags_have_no_effect_if_submit_waits_anyway(relight: Command, flag: str) -> None:
    """Nothing is printed twice."""
    found = relight("submit", flag, "utils.echo", "--msg", "hi")
    assert found.returncode == 0
    assert found.stderr.count("echo/0 hi\n") == 1


@pytest.mark.parametrize(
    ("command", "code"), [("exit 7", 7), ("kill -TERM $$", 143), ("true", 0), long("exit 255", 255)]
)
def test_submit_exits_with_job_exit_code(relight: Command, command: str, code: int) -> None:
    found = relight("submit", "utils.sh", "sh", "-c", command)
    assert found.returncode == code


def test_submit_json_prints_one_object_on_stdout(ended: Callable[..., dict[str, Any]]) -> None:
    """The object contains the final state."""
    status = ended("utils.sh", "--num_replicas", "2", "sh", "-c", "exit 3")
    assert (status["state"], status["exitcode"], status["scheduler"]) == ("FAILED", 3, "local")
    assert status["handle"] == f"local://relight/{status['app_id']}"
    (role,) = status["roles"]
    assert [replica["id"] for replica in role["replicas"]] == [0, 1]
    assert 3 in [replica["exitcode"] for replica in role["replicas"]]


def test_failure_of_one_role_ends_the_whole_job(
    ended: Callable[..., dict[str, Any]], place: Path
) -> None:
    """The other role is stopped, and the exit code comes from the first one to fail."""
    (place / "two.py").write_text(
        "import relight.job as specs\n"
        "def app():\n"
        "    bad = specs.Role('bad', '', entrypoint='sh', args=['-c', 'exit 9'])\n"
        "    good = specs.Role('good', '', entrypoint='sleep', args=['300'])\n"
        "    return specs.AppDef('two', [good, bad])\n"
    )
    status = ended("two.py:app")
    assert (status["state"], status["exitcode"]) == ("FAILED", 9)


HARD = ["--data", "a", "--data", "b", "$$", "${x}", "$HOME", "it's", 'a"b', "", " ", "--", "-x",
        "a\\b", "*", "a;b|c&d", "ü", "#c", "~", "!", "--dryrun", "-s", "x"]  # fmt: skip


@pytest.mark.parametrize("component", ["utils.python", "dist.ddp"])
def test_arguments_after_double_dash_are_passed_unchanged(
    relight: Command, place: Path, component: str
) -> None:
    """The arguments include repeated flags, quotes, dollar signs and empty arguments."""
    (place / "train.py").write_text(SCRIPT)
    size = ("-j", "1x1", "--tee", "0") if component == "dist.ddp" else ()
    found = relight("submit", component, *size, "--script", "train.py", "--", *HARD,
                    PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")  # fmt: skip
    assert found.returncode == 0, found.stderr
    line = next(line for line in found.stderr.splitlines() if '"argv"' in line)
    assert json.loads(line[line.index("{") :])["argv"] == HARD


def test_replicas_are_numbered_in_rank_order(relight: Command, place: Path) -> None:
    """`-j 4x2` starts four local replicas, ranked by replica number whichever starts first."""
    (place / "train.py").write_text(SCRIPT)
    found = relight("submit", "dist.ddp", "-j", "4x2", "--script", "train.py")
    assert found.returncode == 0, found.stderr
    ranks: dict[str, set[str]] = {}
    for line in found.stderr.splitlines():
        if '"rank"' in line:
            said = json.loads(line[line.index("{") :])
            ranks.setdefault(line.split()[0], set()).add(said["rank"])
    assert ranks == {f"train/{node}": {str(2 * node), str(2 * node + 1)} for node in range(4)}


LONG = "No checkpoint. " + "a file of many is not there, " * 14 + "since you tried another model"


def test_all_replicas_share_one_full_failure_report(relight: Command, place: Path) -> None:
    """The failed rank's node prints the full report, and the others print one line."""
    script = f"import os\nif os.environ['RANK'] == '1':\n    raise ValueError({LONG!r})\n"
    (place / "train.py").write_text(script + "import time\ntime.sleep(600)\n")
    found = relight("submit", "dist.ddp", "-j", "2x1", "--script", "train.py")
    assert found.returncode == 1
    lines = [line for line in found.stderr.splitlines() if line.startswith("train/")]
    said = "rank 1 raised ValueError: No checkpoint."
    assert [line.split()[0] for line in lines if f"relight: {said}" in line].count("train/1") == 1
    (other,) = [line for line in lines if line.startswith(f"train/0 relight: {said}")]
    assert other.endswith("its own node reports it. Exit code 1")
    assert len([line for line in lines if "exit code 1; no restarts" in line]) == 1
    assert f"train/1 ValueError: {LONG}" in lines
    assert f"exit code 1: {said}" in found.stderr.splitlines()[-1]


def test_scheduler_flag_overrides_scheduler_in_stdin_json(relight: Command) -> None:
    order = {"component_name": "utils.echo", "scheduler_args": {}}
    words = ("submit", "--stdin", "--scheduler", "local", "--dryrun", "--json")
    for scheduler in ({}, {"scheduler": "slurm"}):
        found = relight(*words, stdin=json.dumps({**order, **scheduler}))
        assert json.loads(found.stdout)["scheduler"] == "local"


def test_submit_and_status_json_have_torchx_keys(relight: Command) -> None:
    """The keys are those of `torchx run --json` and `torchx status --json` (nightly 2026.10.26)."""
    found = json.loads(relight("submit", "--json", "utils.echo").stdout)
    assert {"handle", "app_id", "scheduler", "state", "ui_url"} <= found.keys()
    found = json.loads(relight("status", "--json", found["handle"]).stdout)
    assert {
        "handle", "app_id", "scheduler", "state", "num_restarts", "roles", "msg",
        "structured_error_msg", "url", "ui_url",
    } <= found.keys()  # fmt: skip
    assert (found["state"], found["url"]) == ("SUCCEEDED", found["ui_url"])
    assert found["roles"][0]["role"] == "echo"
    assert {"id", "role", "state", "hostname"} <= found["roles"][0]["replicas"][0].keys()


def test_submit_accepts_json_on_stdin_instead_of_arguments(relight: Command) -> None:
    order = {
        "component_name": "utils.echo",
        "scheduler": "local",
        "scheduler_args": {"prepend_cwd": True},
        "component_args": {"msg": "from stdin", "num_replicas": 2},
    }
    found = relight("submit", "--stdin", "--dryrun", "--json", stdin=json.dumps(order))
    shown = json.loads(found.stdout)
    assert shown["cfg"]["prepend_cwd"] is True
    assert shown["app"]["roles"][0]["args"] == ["from stdin"]
    assert shown["app"]["roles"][0]["num_replicas"] == 2
    order.pop("component_args")
    words = {**order, "component_args_str": ["--msg", "words"], "dryrun": True}
    assert "echo words" in relight("submit", "--stdin", stdin=json.dumps(words)).stdout
    found = relight("submit", "--stdin", stdin=json.dumps({**order, "component_args": {}}))
    assert (found.returncode, "hello world" in found.stderr) == (0, True)


def test_default_component_from_settings_accepts_flags(relight: Command, place: Path) -> None:
    """With `[cli:run] component`, flags are for that component."""
    (place / ".torchxconfig").write_text("[cli:run]\ncomponent = utils.echo\n")
    found = relight("submit", "--dryrun", "--msg", "mine")
    assert "echo mine" in found.stdout
    assert "echo hi" in relight("submit", "--dryrun", "utils.echo", "--msg", "hi").stdout
    assert "hello world" in relight("submit", "--dryrun").stdout


def test_component_file_output_goes_to_stderr(relight: Command, place: Path) -> None:
    """Stdout is reserved for the result."""
    (place / "loud.py").write_text(
        "import relight.job as specs\nprint('loading')\n"
        "def app():\n    print('calling')\n"
        "    return specs.AppDef('a', [specs.Role('r', '', entrypoint='true')])\n"
    )
    found = relight("submit", "--dryrun", "--json", "loud.py:app")
    assert json.loads(found.stdout)["app"]["name"] == "a"
    assert "loading" in found.stderr and "calling" in found.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), long(signal.SIGTERM, 143)])
def test_interrupted_submit_stops_its_job(
    start: Callable[..., "subprocess.Popen[bytes]"],
    place: Path,
    variables: dict[str, str],
    tmp_path: Path,
    number: int,
    code: int,
) -> None:
    """A detached job would keep running."""
    text = "echo started; exec sleep 300"
    process = start("submit", "utils.sh", "sh", "-c", text, cwd=place, variables=variables)
    handle = process.stdout.readline().decode().strip()
    assert process.stderr.readline() == b"sh/0 started\n"
    process.send_signal(number)
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == code
    assert said.decode() == f"relight: stopping {handle}\n"
    state = LocalRecord(str(tmp_path / "state" / "jobs" / handle.rpartition("/")[2])).read()
    assert state is not None
    assert state["state"] == "CANCELLED"
    assert [replica["state"] for replica in state["replicas"]] == ["CANCELLED"]


def test_detached_job_keeps_running_after_submit(relight: Command) -> None:
    """The command returns immediately with the handle."""
    found = relight("submit", "-cfg", "detach=true", "utils.sh", "sleep", "300")
    assert (found.returncode, found.stderr) == (0, "")
    handle = found.stdout.strip()
    assert json.loads(relight("status", "--json", handle).stdout)["state"] == "RUNNING"
    relight("delete", handle)


def test_submit_can_wait_for_detached_job(relight: Command) -> None:
    """--wait waits without printing the output, and --log prints it."""
    words = ("-cfg", "detach=true", "utils.echo", "--msg", "hi")
    found = relight("submit", "--wait", *words)
    assert (found.returncode, "echo/0 hi" in found.stderr) == (0, False)
    assert found.stderr.endswith("SUCCEEDED\n")
    assert "echo/0 hi\n" in relight("submit", "--log", *words).stderr


class Replicas:
    """Two replicas that each write this many lines and, if requested, never end."""

    def __init__(self, count: int, *, ends: bool = True) -> None:
        self.count, self.ends = count, ends

    def replicas(self, handle: Handle) -> list[tuple[str, int]]:
        return [("sh", 0), ("sh", 1)]

    def log_lines(self, handle: Handle, role: str, replica: int, **query: Any) -> Iterator[str]:
        yield from map(str, range(self.count))
        if not self.ends:
            threading.Event().wait(LIMIT_S)


class SlowReader(io.StringIO):
    """A stream that is slow to accept its first line."""

    def __init__(self, pause_s: float) -> None:
        super().__init__()
        self.pause_s = pause_s
        self.writes = 0

    def write(self, text: str) -> int:
        if not self.writes:
            time.sleep(self.pause_s)
        self.writes += 1
        return super().write(text)


def follow(replicas: Replicas, where: SlowReader) -> Follower:
    return Follower(cast(Runner, replicas), Handle("local", "relight", "x-1"), where)


def test_slow_reader_receives_all_log_lines() -> None:
    """Lines arrive intact and in order, but in few writes."""
    reader = SlowReader(4)
    follow(Replicas(30_000), reader).join(limit_s=2)
    found = reader.getvalue().splitlines()
    for name in ("sh/0", "sh/1"):
        its = [line.split()[1] for line in found if line.startswith(f"{name} ")]
        assert its == [str(number) for number in range(30_000)]
    assert len(found) == 60_000
    assert reader.writes < 1000


def test_wait_for_missing_output_ends_with_an_error() -> None:
    """If a scheduler has a job's result but not all of its lines, an error says so."""
    reader = SlowReader(0)
    with pytest.raises(MachineError, match="relight logs local://relight/x-1"):
        follow(Replicas(3, ends=False), reader).join(limit_s=2)
    assert len(reader.getvalue().splitlines()) == 6


def test_job_runs_in_copy_of_workspace(relight: Command, tmp_path: Path) -> None:
    """The job's script is found in the copy."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "main.py").write_text("print(open('data').read(), __file__)")
    (source / "data").write_text("seven")
    found = relight("submit", "--workspace", source, "utils.python", "--script", "main.py")
    assert "python/0 seven" in found.stderr, found.stderr
    assert str(source) not in found.stderr


def test_unencodable_output_character_is_escaped(relight: Command) -> None:
    found = relight("submit", "--dryrun", "utils.echo", "--msg", "…", PYTHONIOENCODING="latin-1")
    assert found.returncode == 0
    assert r"\u2026" in found.stdout
