"""A scheduler as a plug-in: the distribution in `plugin/` uses what docs/clusters/your-own.md
documents, and is installed with pip. Its jobs run on its own hosts with real agents.
"""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clusters.kubernetes import free_port
from conftest import LIMIT_S, Launch, clean_environment

PROJECT = Path(__file__).with_name("plugin")
Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the distribution with pip, and return the directory, which contains nothing else."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(PROJECT, folder / "source")  # the build writes to it
    pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run(
        [sys.executable, *pip, "--target", folder / "site", folder / "source"], check=True
    )
    return folder / "site"


class Place:
    """A working directory, a home directory and a pool."""

    def __init__(self, folder: Path, installed: Path, launch: Launch) -> None:
        self.work, self.pool = folder / "work", folder / "pool"
        self._state, self._launch = folder / "state", launch
        for each in (self.work, self.pool):
            each.mkdir()
        self.variables = {
            "HOME": str(folder),
            "RELIGHT_STATE_DIR": str(self._state),
            "PYTHONPATH": str(installed),
        }

    def __call__(self, *words: str | Path) -> "subprocess.CompletedProcess[str]":
        """Run a relight command to completion."""
        return self._launch(*words, cwd=self.work, **self.variables)

    def submit(self, *words: str) -> str:
        """Submit a job and return its handle."""
        options = f"directory={self.pool},cwd={self.work}"
        result = self("submit", "-s", "pool", "-cfg", options, *words)
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()

    def is_empty(self) -> bool:
        """Return whether neither the pool nor relight has anything left from a job."""
        jobs = self._state / "jobs"
        return not [*self.pool.iterdir(), *(jobs.iterdir() if jobs.exists() else ())]


@pytest.fixture
def place(tmp_path: Path, installed: Path, launch: Launch) -> Place:
    return Place(tmp_path, installed, launch)


@pytest.fixture
def hosts(place: Place) -> Iterator[list[str]]:
    """Start two hosts that take replicas from the pool."""
    names = ["alpha", "beta"]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "relight_pool.host", place.pool, name, "127.0.0.1"],
            env=clean_environment(**place.variables),
        )
        for name in names
    ]
    yield names
    for process in processes:
        process.send_signal(signal.SIGTERM)
    assert [process.wait(LIMIT_S) for process in processes] == [0, 0]


def script(place: Place, text: str) -> None:
    (place.work / "train.py").write_text(f"import os, sys, time\n{text}")


def test_plugin_scheduler_appears_in_listing_and_shell_completion(place: Place) -> None:
    """It appears wherever relight's own schedulers do."""
    assert "pool        yes   retries, elastic, survives_caller" in place("schedulers").stdout
    options = place("schedulers", "pool").stdout
    assert "directory  str   required  directory of the pool" in options
    assert place("submit", "-s", "pool", "-cfg", "help").stdout.startswith("OPTION")
    for shell in ("bash", "fish"):
        assert " ray pool auto" in place("completion", shell).stdout
    assert "[pool]" in place("configure", "--print", "-s", "pool").stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "pool needs the option directory"),
        ("directory=/nowhere", "/nowhere is not the directory of a pool"),
        ("directory={pool},stop=kil", "stop=kil: expected one of ask, kill\nhint: did you mean"),
        ("directory={pool},priority=high", "priority=high: expected a whole number"),
        ("directry={pool}", "pool has no option directry\nhint: did you mean directory?"),
    ],
)
def test_invalid_plugin_option_leaves_nothing_behind(
    place: Place, options: str, message: str
) -> None:
    words = ("-cfg", options.format(pool=place.pool)) if options else ()
    result = place("submit", "-s", "pool", *words, "utils.echo")
    assert (result.returncode, result.stdout) == (2, "")
    assert f"relight: error: {message}" in result.stderr
    assert place.is_empty()


def test_plugin_dry_run_leaves_nothing_behind_and_hides_secrets(place: Place) -> None:
    words = ("dist.ddp", "-j", "2x1", "--env", "MY_TOKEN=xyzzy", "--script", "train.py")
    result = place("submit", "-s", "pool", "-cfg", f"directory={place.pool}", "--dryrun", *words)
    assert result.returncode == 0, result.stderr
    assert "export MY_TOKEN='<hidden>'" in result.stdout
    assert "xyzzy" not in result.stdout
    assert place.is_empty()


@pytest.mark.slow
@pytest.mark.long
def test_agents_in_plugin_scheduler_job_can_rendezvous(place: Place, hosts: list[str]) -> None:
    """The job brings its launcher, options come from .relightconfig, and the script exists only on
    the hosts.
    """
    script(place, "print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], sys.argv[1])")
    (place.work / ".relightconfig").write_text(
        f"[pool]\ndirectory = {place.pool}\ncwd = {place.work}\n"
    )
    job = ("dist.ddp", "-j", "2x2", "--rdzv_port", str(free_port()), "--script", "train.py")
    result = place("submit", "-s", "pool", "--launcher=travels", "--log", *job, "--", "a b")
    assert result.returncode == 0, result.stderr
    for rank in range(4):
        assert f"rank {rank} of 4 a b" in result.stderr, result.stderr
    handle = result.stdout.strip()
    status = json.loads(place("status", "--json", handle).stdout)
    assert status["state"] == "SUCCEEDED"
    replicas = status["roles"][0]["replicas"]
    assert sorted(each["hostname"] for each in replicas) == hosts
    assert handle in place("list").stdout
    shutil.rmtree(place.variables["RELIGHT_STATE_DIR"])  # as on another machine
    assert handle in place("list", "-s", "pool").stdout
    assert "not submitted from this machine" in place("describe", handle).stdout


@pytest.mark.slow
def test_plugin_job_can_be_followed_cancelled_and_deleted(place: Place, hosts: list[str]) -> None:
    script(place, "print('first', flush=True)\ntime.sleep(1000)")
    handle = place.submit("dist.ddp", "--script", "train.py")
    with subprocess.Popen(
        [sys.executable, "-m", "relight", "logs", "-f", handle],
        env=clean_environment(**place.variables), cwd=place.work, text=True,
        stdout=subprocess.PIPE,
    ) as follower:  # fmt: skip
        assert follower.stdout is not None
        assert any("first" in line for line in follower.stdout)
        timed_out = place("wait", handle, "--timeout", "0.1")
        assert timed_out.returncode == 124
        described = place("describe", handle).stdout
        assert "options    directory=" in described
        assert "image" not in described  # replicas don't use images here
        assert place("cancel", handle).returncode == 0
        assert follower.wait(LIMIT_S) == 0
    assert f"{handle} CANCELLED" in place("status", handle).stdout
    assert place("delete", handle).returncode == 0
    gone = place("status", handle)
    assert (gone.returncode, gone.stdout) == (2, "")
    assert place.is_empty()


@pytest.mark.slow
def test_plugin_job_reports_exit_code_and_is_retried(place: Place, hosts: list[str]) -> None:
    """A replica can read its restart count."""
    script(place, "print('try', os.environ['RELIGHT_REQUEUES'])\nsys.exit(7)")
    handle = place.submit("dist.ddp", "-j", "1x1", "--max_retries", "1", "--script", "train.py")
    assert place("wait", handle).returncode == 7
    logs = place("logs", handle).stdout
    tries = [line[-5:] for line in logs.splitlines() if "[0]:try" in line]
    assert tries == ["try 0", "try 1"]
    wrong = place("logs", f"{handle}/train/1")
    assert wrong.returncode == 2
    assert "has no replica" in wrong.stderr
