"""Jobs over ssh on real servers: all hosts start and end together, and nothing is left."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clusters.sshd import Sshd
from conftest import LIMIT_S, RELIGHT, Launch, clean_environment
from etcd_server import free_ports
from netlab import Lab
from test_orphans import marked, wait_until_gone

from relight.base.errors import MachineError, RelightError, UsageError
from relight.job import records
from relight.job.app import AppState, BindMount, Role
from relight.schedulers.ssh.scheduler import Ssh
from schedulers.local_jobs import lines, own_place, render, shell, submit, until, wait

pytestmark = pytest.mark.needs_ssh

STUBBORN = "trap '' TERM; setsid sh -c \"trap '' TERM; sleep {0}\" & while :; do sleep {0}; done"
"""Neither this process nor its child (in its own session) exits on SIGTERM."""
QUICK = {"grace": 0.5, "silence": 600.0}
"""A limit that keeps silence from ending a job in tests about anything else."""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Sshd]:
    """Start two servers."""
    with Sshd(["alpha", "beta"]) as servers:
        yield servers


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create the working directory. Jobs are recorded next to it."""
    own_place(tmp_path, monkeypatch)
    return tmp_path / "work"


@pytest.fixture
def scheduler() -> Iterator[Ssh]:
    """Provide the scheduler. Its jobs end with the test."""
    scheduler = Ssh()
    yield scheduler
    scheduler.close()


def running(marker: str) -> list[int]:
    """Return the processes of a job's program on any host, without those that only mention it."""
    names = {"sh", "dash", "bash", "sleep"}
    return [pid for pid in marked(marker) if _name(pid) in names]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


# Dry runs.


def test_dry_run_shows_all_ssh_commands_without_running_them(
    scheduler: Ssh, tmp_path: Path
) -> None:
    """It is JSON with the ssh commands. Nothing is connected to or written."""
    role = shell("echo $$ ${x} ${app_id} ${replica_id}", replicas=2, env={"A": "b"})
    before = sorted(tmp_path.rglob("*"))
    request = render(scheduler, role, hosts=["ann@nowhere.invalid", "other:2222", "third"])
    assert sorted(tmp_path.rglob("*")) == before
    assert json.loads(json.dumps(request.body)) == request.body
    first, second = request.body["role_params"]["main"]
    app_id = request.body["app_id"]
    assert first["args"] == ["sh", "-c", f"echo $$ ${{x}} {app_id} 0"]
    assert first["env"] == {
        "A": "b",
        "RELIGHT_RANK0_HOST": "nowhere.invalid",
        "TORCHX_RANK0_HOST": "nowhere.invalid",
    }
    assert second["env"] == first["env"], "all meet at the first host"
    assert second["ssh"][second["ssh"].index("-p") + 1] == "2222"
    assert "ssh -T" in request.text and f"cd {Path.cwd()}" in request.text
    assert request.notes == ("2 of 3 hosts are used",)
    named = render(scheduler, role, hosts=["a", "b"], rank0_host="10.0.0.1")
    assert named.body["role_params"]["main"][0]["env"]["RELIGHT_RANK0_HOST"] == "10.0.0.1"


def test_too_few_hosts_are_rejected(scheduler: Ssh) -> None:
    """Each replica needs its own, unless a host is listed more than once."""
    with pytest.raises(UsageError, match="3 replicas for 2 hosts; each needs its own") as caught:
        render(scheduler, shell("true", replicas=2), shell("true", "other"), hosts=["a", "b"])
    assert caught.value.hint == "list a host twice for two replicas"
    render(scheduler, shell("true", replicas=2), hosts=["a", "a"])


def test_options_without_effect_cause_a_note(scheduler: Ssh) -> None:
    """These are mounts, images, a minimum number of replicas, and an unreachable rendezvous."""
    role = shell("true", replicas=2, min_replicas=1, mounts=(BindMount("/a", "/b"),))
    notes = render(scheduler, replace(role, image="mine:1"), hosts=["localhost", "node2"]).notes
    assert [note.split(" ")[0] for note in notes] == ["mounts", "the", "node2", "the"]
    assert notes[1] == "the image mine:1 has no effect: replicas see the files of their hosts"
    assert notes[2].endswith("to set an address that it can reach")


@pytest.mark.parametrize("cfg", [{"grace": 31.0}, {"grace": -1.0}, {"silence": 0.1}])
def test_timeout_outside_allowed_range_is_rejected(scheduler: Ssh, cfg: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="expected"):
        render(scheduler, shell("true"), hosts=["a"], **cfg)


# Running.


def test_each_host_runs_one_replica(scheduler: Ssh, hosts: Sshd, work: Path) -> None:
    """Replicas run in host order and in the same directory, and their output is returned."""
    command = "echo $ON ${replica_id} $PWD ${img_root}; sleep 0.2; echo err >&2; printf 'caf\\351'"
    app_id = submit(scheduler, shell(command, replicas=2), **hosts.cfg())
    status = wait(scheduler, app_id)
    assert (status.state, status.exitcode) == (AppState.SUCCEEDED, 0)
    assert [replica.host for replica in status.replicas] == hosts.cfg()["hosts"]
    for k, name in enumerate(("alpha", "beta")):
        out = [f"{name} {k} {work} {work}", "caf\ufffd"]
        assert lines(scheduler, app_id, k=k, stream="stdout") == out
        assert lines(scheduler, app_id, k=k, stream="stderr") == ["err"]
        assert len(lines(scheduler, app_id, k=k)) == 3
    assert [each.app_id for each in scheduler.list()] == [app_id]


def test_arguments_and_environment_variables_are_passed_verbatim(
    scheduler: Ssh, hosts: Sshd
) -> None:
    """This includes text that looks like a variable, quotes and empty values."""
    words = ("$$", "${x}", "$HOME", "a b", "", "'\"\\!", "--x", "--x", "ü\n", "`x`")
    code = "import sys, os, json; print(json.dumps([sys.argv[1:], os.environ['ODD']]))"
    args, odd = ("-c", code, *words), "a 'b'\n\"$c\" ü"
    role = Role("main", "img", entrypoint=sys.executable, args=args, env={"ODD": odd})
    app_id = submit(scheduler, role, **hosts.cfg("alpha"))
    assert wait(scheduler, app_id).state is AppState.SUCCEEDED, lines(scheduler, app_id)
    assert json.loads(lines(scheduler, app_id)[0]) == [list(words), odd]


def test_only_requested_environment_variables_are_sent(
    scheduler: Ssh, hosts: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PATH leads to that Python's relight."""
    monkeypatch.setenv("MY_ONE", "1")
    monkeypatch.setenv("MY_TWO", "2")
    command = 'echo "$MY_ONE,$MY_TWO,$HIS,$(command -v relight)"'
    role = shell(command, env={"HIS": "3"})
    app_id = submit(scheduler, role, copy_env=["MY_O*"], **hosts.cfg("alpha"))
    wait(scheduler, app_id)
    relight = Path(sys.executable).parent / "relight"
    assert lines(scheduler, app_id) == [f"1,,3,{relight}"]


def test_fast_output_is_throttled_and_nothing_is_lost(scheduler: Ssh, hosts: Sshd) -> None:
    """It is faster than the network."""
    code = """
import os, sys, time
open("up", "w").close()
while not os.path.exists("go"): time.sleep(0.02)
for n in range(40000):
    print(n, "x" * 400)
    if n % 100 == 0: open("progress", "w").write(str(n))
sys.exit(5)
"""
    role = Role("main", "img", entrypoint=sys.executable, args=("-c", code))
    app_id = submit(scheduler, role, **hosts.cfg("alpha"))
    until(lambda: Path("up").exists())
    (ssh,) = (pid for pid in marked(str(hosts.directory / "known_hosts")) if _name(pid) == "ssh")
    os.kill(ssh, signal.SIGSTOP)
    Path("go").touch()
    until(lambda: Path("progress").exists())
    before = -1
    while (now := int(Path("progress").read_text() or 0)) != before:
        before = now
        time.sleep(1)
    assert now < 35000, "all that was written would be kept in memory"
    os.kill(ssh, signal.SIGCONT)
    assert wait(scheduler, app_id).exitcode == 5
    found = lines(scheduler, app_id, stream="stdout")
    assert found == [f"{n} {'x' * 400}" for n in range(40000)]


def test_all_hosts_are_stopped_when_one_fails(scheduler: Ssh, hosts: Sshd) -> None:
    """The first failure determines the exit code and the cause."""
    marker = f"{os.getpid()}01.25"
    report = json.dumps({"message": {"message": "ValueError: no data", "extraInfo": {}}})
    fail = f"sleep 0.5; printf %s '{report}' >$TORCHELASTIC_ERROR_FILE; exit 7"
    roles = shell(f"setsid sleep {marker} & sleep {marker}", "a"), shell(fail, "b")
    app_id = submit(scheduler, *roles, **hosts.cfg())
    status = wait(scheduler, app_id)
    assert (status.state, status.exitcode) == (AppState.FAILED, 7)
    assert status.message == "b/0 failed with exit code 7: ValueError: no data"
    assert [replica.state.name for replica in status.replicas] == ["CANCELLED", "FAILED"]
    assert running(marker) == []


def test_replica_killed_by_signal_n_exits_with_128_plus_n(scheduler: Ssh, hosts: Sshd) -> None:
    """255 is treated like any other exit code."""
    status = wait(scheduler, submit(scheduler, shell("kill -KILL $$"), **hosts.cfg("beta")))
    assert (status.message, status.exitcode) == ("main/0 failed with SIGKILL", 137)
    status = wait(scheduler, submit(scheduler, shell("exit 255"), **hosts.cfg("beta")))
    assert (status.message, status.exitcode) == ("main/0 failed with exit code 255", 255)


def test_retry_restarts_whole_job(scheduler: Ssh, hosts: Sshd) -> None:
    role = shell("echo try; mkdir seen || exit 0; exit 3", max_retries=5)
    app_id = submit(scheduler, role, **hosts.cfg("alpha"))
    status = wait(scheduler, app_id)
    assert (status.state, status.restarts) == (AppState.SUCCEEDED, 1)
    assert lines(scheduler, app_id).count("try") == 2


def test_sync_option_copies_working_directory(scheduler: Ssh, hosts: Sshd, work: Path) -> None:
    """Ignored files aren't copied, and the job runs in the copy."""
    (work / "main.sh").write_text("ls; pwd; cat sub/data; touch made; cp made again")
    (work / "sub").mkdir()
    (work / "sub" / "data").write_text("x" * 3_000_000 + "\n")
    (work / "big").touch()
    (work / ".relightignore").write_text("big\n")
    app_id = submit(scheduler, shell("sh ./main.sh", replicas=2), sync=True, **hosts.cfg())
    assert wait(scheduler, app_id).state is AppState.SUCCEEDED, lines(scheduler, app_id)
    for k, name in enumerate(("alpha", "beta")):
        copy = hosts[name].state / "copies" / app_id / "main" / str(k)
        assert lines(scheduler, app_id, k=k)[:3] == ["main.sh", "sub", str(copy)]
        assert len(lines(scheduler, app_id, k=k)[3]) == 3_000_000
        assert (copy / "again").exists(), "what the job has made is kept"
    assert not (work / "made").exists()
    scheduler.delete(app_id)
    for name in ("alpha", "beta"):
        assert list((hosts[name].state / "copies").iterdir()) == []
    assert scheduler.list() == []


def test_job_runs_in_requested_directory(scheduler: Ssh, hosts: Sshd, tmp_path: Path) -> None:
    """A relative `cwd` is below the home directory, or within the copy."""
    home = hosts["alpha"].home
    for cwd, expected in ((str(tmp_path), tmp_path), (".", home), ("~", home)):
        app_id = submit(scheduler, shell("pwd"), cwd=cwd, **hosts.cfg("alpha"))
        wait(scheduler, app_id)
        assert lines(scheduler, app_id) == [str(expected)]
    (tmp_path / "source" / "sub").mkdir(parents=True)
    (tmp_path / "source" / "sub" / "file").touch()
    cfg = {"workspace": str(tmp_path / "source"), "cwd": "sub", **hosts.cfg("alpha")}
    app_id = submit(scheduler, shell("ls"), **cfg)
    wait(scheduler, app_id)
    assert lines(scheduler, app_id) == ["file"]


def test_output_from_remote_shell_startup_is_ignored(scheduler: Ssh) -> None:
    with Sshd(["noisy"]) as hosts:
        (hosts["noisy"].home / "noise").write_text("echo Welcome; echo Beware >&2\n")
        hosts["noisy"].stop()
        hosts["noisy"].start(BASH_ENV=str(hosts["noisy"].home / "noise"))
        app_id = submit(scheduler, shell("echo hi"), **hosts.cfg())
        assert wait(scheduler, app_id).state is AppState.SUCCEEDED
        assert lines(scheduler, app_id) == ["hi"]


def test_environment_variable_values_appear_in_no_file_or_command_line(
    scheduler: Ssh, hosts: Sshd, tmp_path: Path
) -> None:
    """This holds on both sides."""
    secret = "hunter" + os.urandom(4).hex()
    role = shell("touch up; sleep 100", env={"TOKEN": secret})
    submit(scheduler, role, **hosts.cfg("alpha"))
    until(lambda: Path("up").exists())
    assert marked(secret) == []
    for top in (tmp_path, hosts.directory):
        found = [p for p in top.rglob("*") if p.is_file() and secret in p.read_text("latin-1")]
        assert found == []


# Hosts that can't run their replica.


def refused(scheduler: Ssh, tmp_path: Path, *roles: Role, **cfg: Any) -> RelightError:
    """Submit a job that can't run, and return its one-line error. Check that nothing is left."""
    with pytest.raises(RelightError) as caught:
        submit(scheduler, *roles, **cfg)
    assert "\n" not in caught.value.message + caught.value.hint
    assert list((tmp_path / "state").rglob("*")) == []
    return caught.value


def test_error_names_unreachable_host_and_nothing_runs(
    scheduler: Ssh, hosts: Sshd, tmp_path: Path
) -> None:
    """Its name is unknown or its port is closed. The other host runs nothing either."""
    good, role = hosts.cfg("alpha")["hosts"][0], shell("touch ran", replicas=2)
    cfg = {**hosts.cfg(), "hosts": [good, "nosuch.invalid"]}
    error = refused(scheduler, tmp_path, role, **cfg)
    assert error.message.startswith("no such host: nosuch.invalid: ")
    (port,) = free_ports(1)
    error = refused(scheduler, tmp_path, role, **{**cfg, "hosts": [good, f"127.0.0.1:{port}"]})
    assert error.message == f"127.0.0.1:{port} refuses the connection"
    assert isinstance(error, MachineError)
    assert not Path("ran").exists()


def test_rejected_key_does_not_prompt_for_password(
    scheduler: Ssh, hosts: Sshd, tmp_path: Path
) -> None:
    subprocess.run(["ssh-keygen", "-q", "-N", "", "-f", str(tmp_path / "wrong")], check=True)
    cfg = {**hosts.cfg(), "identity": str(tmp_path / "wrong")}
    error = refused(scheduler, tmp_path, shell("true", replicas=2), **cfg)
    first, second = cfg["hosts"]
    assert error.message.startswith(f"permission denied by {first} (publickey)")
    assert error.message.endswith(f"there are errors on {second} too"), "one line for all"
    assert "ssh-copy-id" in error.hint


def test_host_with_unknown_or_changed_key_is_rejected(
    scheduler: Ssh, hosts: Sshd, tmp_path: Path
) -> None:
    known = tmp_path / "known"
    args = hosts.cfg()["ssh_args"].replace(str(hosts.directory / "known_hosts"), str(known))
    cfg = {**hosts.cfg("alpha"), "ssh_args": args}
    alpha = hosts["alpha"]
    known.write_text(f"[127.0.0.1]:{alpha.port} {hosts['beta'].public_key()}\n")
    error = refused(scheduler, tmp_path, shell("true"), **cfg)
    assert error.message == f"the host key of {alpha.host} has changed"
    assert f"ssh-keygen -R '[127.0.0.1]:{alpha.port}'" in error.hint
    known.write_text("")
    error = refused(scheduler, tmp_path, shell("true"), **cfg)
    assert error.message == f"unknown host key for {alpha.host}"


def bare_python(place: Path) -> str:
    """Create a Python without relight."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place / "bare")], check=True)
    return str(place / "bare/bin/python")


def test_missing_program_on_host_is_reported_on_one_line(
    scheduler: Ssh, hosts: Sshd, tmp_path: Path
) -> None:
    """Python, relight, the directory or the command is missing. Each error has a remedy."""
    cfg, alpha = hosts.cfg("alpha"), hosts["alpha"].host
    error = refused(scheduler, tmp_path, shell("true"), python="/no/such/python", **cfg)
    assert error.message.startswith(f"no such Python on {alpha}: ")
    assert "/no/such/python" in error.message and "-cfg python=FILE" in error.hint
    role = shell("true", env={"RELIGHT_LAUNCHER": "installed"})
    error = refused(scheduler, tmp_path, role, python=bare_python(tmp_path), **cfg)
    assert error.message == f"relight is not installed on {alpha}"
    assert "use --launcher=travels to send it" in error.hint
    error = refused(scheduler, tmp_path, shell("true"), cwd="/no/such/place", **cfg)
    assert error.message == f"{alpha}: no such directory: /no/such/place"
    assert isinstance(error, UsageError) and "sync=true" in error.hint
    error = refused(scheduler, tmp_path, Role("main", "img", entrypoint="nosuchcommand"), **cfg)
    assert error.message == f"{alpha}: the command nosuchcommand is not there"


def test_different_relight_version_is_not_reported_as_missing(
    scheduler: Ssh, hosts: Sshd, tmp_path: Path
) -> None:
    """A broken one isn't either."""
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho relight ssh 999\ncat >/dev/null\n")
    other.chmod(0o755)
    role = shell("true", env={"RELIGHT_LAUNCHER": "installed"})
    error = refused(scheduler, tmp_path, role, python=str(other), **hosts.cfg("alpha"))
    assert error.message == f"{hosts['alpha'].host} has a different version of relight"
    other.write_text("#!/bin/sh\necho Traceback >&2\necho ImportError: libx >&2\nexit 1\n")
    error = refused(scheduler, tmp_path, shell("true"), python=str(other), **hosts.cfg("alpha"))
    assert error.message == f"relight does not start on {hosts['alpha'].host}: ImportError: libx"


def test_missing_ssh_is_reported_on_one_line(
    scheduler: Ssh, hosts: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    error = refused(scheduler, tmp_path, shell("true"), **hosts.cfg("alpha"))
    assert error.message == "ssh is not installed on this machine"


# How jobs end. Each host has a process that ignores SIGTERM, and one in its own session.


def start_stubborn(scheduler: Ssh, hosts: Sshd, marker: str, **cfg: Any) -> str:
    """Start a job whose processes ignore SIGTERM, and wait until they are running."""
    role = shell(STUBBORN.format(marker), replicas=2)
    app_id = submit(scheduler, role, **{**QUICK, **hosts.cfg(), **cfg})
    until(lambda: len([pid for pid in running(marker) if _name(pid) == "sleep"]) >= 4)
    return app_id


def test_job_can_be_cancelled_by_another_process(scheduler: Ssh, hosts: Sshd) -> None:
    """When the call returns, the job is over on all hosts."""
    marker = f"{os.getpid()}02.25"
    app_id = start_stubborn(scheduler, hosts, marker)
    code = "from relight.schedulers.ssh.scheduler import Ssh; import sys; "
    code += "Ssh().cancel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, app_id], check=True, timeout=LIMIT_S)
    assert running(marker) == []
    status = scheduler.status([app_id])[app_id]
    assert status.state is AppState.CANCELLED
    assert [replica.exitcode for replica in status.replicas] == [-9, -9]
    scheduler.cancel(app_id)


def test_closing_scheduler_ends_attached_jobs(scheduler: Ssh, hosts: Sshd) -> None:
    marker = f"{os.getpid()}03.25"
    start_stubborn(scheduler, hosts, marker)
    scheduler.close()
    assert running(marker) == []


def test_processes_get_grace_period_to_checkpoint(scheduler: Ssh, hosts: Sshd) -> None:
    """Their output is read to the last line."""
    command = "trap 'sleep 1; echo saved; exit 0' TERM; touch up; while :; do sleep 0.1; done"
    app_id = submit(scheduler, shell(command), grace=20.0, **hosts.cfg("alpha"))
    until(lambda: Path("up").exists())
    scheduler.cancel(app_id)
    assert lines(scheduler, app_id)[-1] == "saved"


SUBMITTER = """
import json, sys, time
from relight.job.app import AppDef, Role
from relight.schedulers.ssh.scheduler import Ssh
scheduler = Ssh()
role = Role("main", "img", entrypoint="sh", args=("-c", sys.argv[2]), num_replicas=2)
cfg = {option.name: option.default for option in scheduler.options} | json.loads(sys.argv[1])
print(scheduler.submit(scheduler.render(AppDef("job", (role,)), cfg, "job-x1")), flush=True)
time.sleep(1000 * (not cfg["detach"]))
"""


def start_submitter(hosts: Sshd, command: str, **cfg: Any) -> "subprocess.Popen[str]":
    """Start a process that submits a job, and wait until it has done so."""
    process = subprocess.Popen(
        [sys.executable, "-c", SUBMITTER, json.dumps({**hosts.cfg(), **cfg}), command],
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(RELIGHT_STATE_DIR=os.environ["RELIGHT_STATE_DIR"]),
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "job-x1\n"
    return process


def test_no_process_outlives_killed_caller(scheduler: Ssh, hosts: Sshd) -> None:
    marker = f"{os.getpid()}04.25"
    process = start_submitter(hosts, STUBBORN.format(marker), **QUICK)
    until(lambda: len(running(marker)) >= 4)
    process.kill()
    process.wait(LIMIT_S)
    assert wait(scheduler, "job-x1").state is AppState.CANCELLED
    assert running(marker) == []


def test_detached_job_outlives_submitter(scheduler: Ssh, hosts: Sshd) -> None:
    process = start_submitter(
        hosts, "while [ ! -e go ]; do sleep 0.02; done; echo done", detach=True
    )
    assert process.wait(LIMIT_S) == 0
    assert scheduler.status(["job-x1"])["job-x1"].state is AppState.RUNNING
    Path("go").touch()
    assert lines(scheduler, "job-x1", k=1, follow=True) == ["done"]
    assert wait(scheduler, "job-x1").state is AppState.SUCCEEDED


def test_hosts_end_job_if_local_processes_are_killed(scheduler: Ssh, hosts: Sshd) -> None:
    """All are killed simultaneously."""
    marker = f"{os.getpid()}05.25"
    app_id = start_stubborn(scheduler, hosts, marker)
    file = Path(records.path(app_id)) / "local" / "state.json"
    os.kill(json.loads(file.read_text())["pid"], signal.SIGKILL)
    wait_until_gone(marker, LIMIT_S)
    assert wait(scheduler, app_id).state is AppState.FAILED


@pytest.mark.parametrize("which", ["ssh", "sshd"])
def test_lost_connection_fails_job_and_error_names_host(
    scheduler: Ssh, hosts: Sshd, which: str
) -> None:
    """Either side may close it. Nothing is left on the host."""
    marker = f"{os.getpid()}06.25"
    app_id = start_stubborn(scheduler, hosts, marker)
    alpha = hosts["alpha"]
    if which == "sshd":
        victims = alpha.sessions()
    else:
        mine = marked(str(hosts.directory / "known_hosts"))
        port = f"-p\0{alpha.port}\0".encode()
        victims = [p for p in mine if port in _command_line(p)]
    assert victims
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    wait_until_gone(marker, LIMIT_S)
    status = wait(scheduler, app_id)
    assert status.state is AppState.FAILED
    assert f"lost the connection to {alpha.host}" in status.message
    assert [replica.state.name for replica in status.replicas] == ["FAILED", "CANCELLED"]


def test_replica_is_killed_when_its_supervisor_on_host_dies(scheduler: Ssh, hosts: Sshd) -> None:
    """The job fails."""
    marker = f"{os.getpid()}07.25"
    app_id = start_stubborn(scheduler, hosts, marker)
    holders = [pid for pid in marked("relight.schedulers.ssh.replica") if _name(pid) != "ssh"]
    below = [pid for pid in holders if _serves(pid, hosts["beta"].sessions())]
    assert len(below) == 1
    os.kill(below[0], signal.SIGKILL)
    wait_until_gone(marker, LIMIT_S)
    assert wait(scheduler, app_id).replicas[1].state is AppState.FAILED


def _serves(pid: int, sessions: list[int]) -> bool:
    """Return whether one of the server's sessions has started this process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) in sessions
    except OSError:
        return False  # from another job's end


def test_unknown_job_has_no_status(scheduler: Ssh, hosts: Sshd) -> None:
    """Every command rejects it."""
    for app_id in ("nosuch-1", "../x", ""):
        assert scheduler.status([app_id]) == {}
        for verb in (scheduler.cancel, scheduler.delete):
            with pytest.raises(UsageError):
                verb(app_id)
        with pytest.raises(UsageError):
            lines(scheduler, app_id)
    request = render(scheduler, shell("echo once"), **hosts.cfg("alpha"))
    app_id = scheduler.submit(request)
    with pytest.raises(UsageError, match="already submitted"):
        scheduler.submit(request)
    wait(scheduler, app_id)
    assert lines(scheduler, app_id) == ["once"]


# The whole command.

TRAIN = """
import os
print(os.environ["ON"], os.environ["RANK"], os.environ["WORLD_SIZE"], flush=True)
"""


def cfg_words(cfg: dict[str, Any]) -> str:
    """Format options for -cfg."""
    texts = {name: ";".join(v) if isinstance(v, list) else str(v) for name, v in cfg.items()}
    return ",".join(f"{name}={shlex.quote(value)}" for name, value in texts.items())


@pytest.mark.slow
def test_two_nodes_train_as_one_job(launch: Launch, hosts: Sshd, work: Path) -> None:
    """With `-j 2x2` there is one agent per host. They meet at the first host and form one job with
    4 workers.
    """
    (work / "train.py").write_text(TRAIN)
    port = str(free_ports(1)[0])
    words = ["submit", "-s", "ssh", "-cfg", cfg_words(hosts.cfg()), "dist.ddp", "-j", "2x2"]
    words += ["--rdzv_port", port, "--script", "train.py"]
    done = launch(*words, cwd=work, RELIGHT_STATE_DIR=os.environ["RELIGHT_STATE_DIR"])
    assert done.returncode == 0, done.stderr
    said = [line.partition("]:")[2].split() for line in done.stderr.splitlines() if "]:" in line]
    assert sorted(rank for _, rank, _ in said) == ["0", "1", "2", "3"], done.stderr
    assert sorted(name for name, _, _ in said) == ["alpha", "alpha", "beta", "beta"]
    assert {size for _, _, size in said} == {"4"}
    assert "no token" not in done.stderr


@pytest.mark.slow
def test_launcher_is_sent_to_hosts_without_relight(
    launch: Launch, scheduler: Ssh, hosts: Sshd, work: Path, tmp_path: Path
) -> None:
    """It is sent once, and the job's agents use it."""
    (work / "train.py").write_text(TRAIN)
    cfg = {**hosts.cfg(), "python": bare_python(tmp_path)}
    words = ["submit", "-s", "ssh", "-cfg", cfg_words(cfg), "dist.ddp", "-j", "2x1"]
    words += ["--rdzv_port", str(free_ports(1)[0]), "--script", "train.py"]
    done = launch(*words, cwd=work, RELIGHT_STATE_DIR=os.environ["RELIGHT_STATE_DIR"])
    assert done.returncode == 0, done.stderr
    said = [x.partition("]:")[2].split() for x in done.stderr.splitlines() if "]:" in x]
    assert sorted(rank for _, rank, _ in said) == ["0", "1"], done.stderr
    kept = [hosts[name].home / ".cache/relight/launchers" for name in ("alpha", "beta")]
    files = [file for place in kept for file in place.glob("*/*")]
    assert [(file.name, file.stat().st_mode & 0o777) for file in files] == [("relight", 0o500)] * 2
    times = [file.stat().st_mtime_ns for file in files]
    app_id = submit(scheduler, shell("relight run --help", replicas=2), **cfg)
    assert wait(scheduler, app_id).state is AppState.SUCCEEDED, lines(scheduler, app_id)
    again = [file for place in kept for file in place.glob("*/*")]
    assert [file.stat().st_mtime_ns for file in again] == times


def test_error_names_host_that_cannot_store_launcher(
    scheduler: Ssh, hosts: Sshd, tmp_path: Path
) -> None:
    cache = hosts["beta"].home / ".cache"
    kept = cache.with_name("kept")
    if cache.exists():
        cache.rename(kept)
    cache.write_text("a file")
    role = shell("true", env={"RELIGHT_LAUNCHER": "travels"}, replicas=2)
    error = refused(scheduler, tmp_path, role, **hosts.cfg())
    assert error.message.startswith(f"can't store the launcher on {hosts['beta'].host}: mkdir: ")
    cache.unlink()
    if kept.exists():
        kept.rename(cache)


@pytest.mark.slow
def test_ctrl_c_ends_job_on_all_hosts(hosts: Sshd, work: Path) -> None:
    """Even workers that ignore it are stopped."""
    marker = f"{os.getpid()}08.25"
    words = ["submit", "-s", "ssh", "-cfg", cfg_words({**hosts.cfg(), "grace": 0.5})]
    words += ["dist.ddp", "-j", "2x1", "--script", "train.py", "--", marker]
    code = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    (work / "train.py").write_text(code + "open('up', 'a').write('x')\ntime.sleep(1000)\n")
    words[-2:-2] = ["--rdzv_port", str(free_ports(1)[0])]
    process = subprocess.Popen([*RELIGHT, *words], start_new_session=True, stderr=subprocess.PIPE)
    assert process.stderr is not None
    with process.stderr:
        until(lambda: Path("up").exists() and len(Path("up").read_text()) == 2)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(LIMIT_S) == 130
    assert marked(marker) == []


@pytest.mark.slow
@pytest.mark.needs_hosts
def test_both_sides_end_job_if_network_goes_silent(work: Path) -> None:
    marker = f"{os.getpid()}09.25"
    with Lab(["node1", "node2", "node3"]) as lab, Sshd(["node2", "node3"], lab) as hosts:
        cfg = {**hosts.cfg(), "hosts": ["node2", "node3"], "grace": 0.5, "silence": 2.0}
        words = ["submit", "-s", "ssh", "-cfg", cfg_words(cfg), "dist.ddp", "-j", "2x1"]
        code = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        (work / "train.py").write_text(code + "open('up', 'a').write('x')\ntime.sleep(1000)\n")
        words += ["--script", "train.py", "--", marker]
        process = lab["node1"].start([*RELIGHT, *words], cwd=work, stderr=subprocess.PIPE)
        try:
            until(lambda: Path("up").exists() and len(Path("up").read_text()) == 2)
            lab.cut("node3")
            said = process.communicate(timeout=LIMIT_S)[1].decode()
        finally:
            process.stderr.close()
        assert process.returncode == 4, said
        assert "lost the connection to node3: Timeout, server node3 not responding." in said
        wait_until_gone(marker, LIMIT_S)
