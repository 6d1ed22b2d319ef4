"""`relight.launch` on remote hosts: real sshd servers on this machine."""

import subprocess
import sys
import textwrap
from ast import literal_eval
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clusters.sshd import Sshd
from conftest import LIMIT_S, clean_environment

pytestmark = [pytest.mark.slow, pytest.mark.needs_ssh]
Call = Callable[[str], "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Sshd]:
    """Two SSH servers."""
    with Sshd(["alpha", "beta"]) as servers:
        yield servers


@pytest.fixture
def call(tmp_path: Path, hosts: Sshd) -> Call:
    """Run a script in which `there` holds the arguments that relight.launch needs for two hosts."""

    def run(text: str) -> "subprocess.CompletedProcess[str]":
        cfg = hosts.cfg()
        there = {"hosts": cfg.pop("hosts"), "ssh": cfg}
        path = tmp_path / "caller.py"
        begin = "import os, relight\nfrom relight.base.errors import RelightError"
        path.write_text(f"{begin}\nthere = {there!r}\n{textwrap.dedent(text)}")
        return subprocess.run(
            [sys.executable, path],
            cwd=tmp_path,
            env=clean_environment(OMP_NUM_THREADS="1", RELIGHT_STATE_DIR=str(tmp_path / "state")),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    return run


def left_behind(tmp_path: Path, hosts: Sshd) -> list[str]:
    """Return the files that jobs left behind, locally and on the hosts."""
    places = [tmp_path / "state", *(hosts[name].state for name in hosts.names)]
    found = [path for place in places for path in place.rglob("*") if path.is_file()]
    return [str(path) for path in found if path.name != "token"]


def test_results_from_remote_hosts_are_returned(call: Call, tmp_path: Path, hosts: Sshd) -> None:
    """Even large results arrive, output is shown, and nothing is left behind."""
    result = call("""
        def work(size):
            print("on", os.environ["ON"], end="")
            os.chdir("/")
            return os.environ["ON"], int(os.environ["RANK"]), os.urandom(size), os.environ["MINE"]
        found = relight.launch(work, 500_000, nproc_per_node=2, env={"MINE": "$x 'y'"}, **there)
        print()
        print([(on, rank, len(data), mine) for on, rank, data, mine in found])
    """)
    *said, last = result.stdout.splitlines()
    found = [*literal_eval(last)]
    assert [each[1:] for each in found] == [(rank, 500_000, "$x 'y'") for rank in range(4)], result
    assert sorted(each[0] for each in found) == ["alpha", "alpha", "beta", "beta"]
    assert found[0][0] == found[1][0]
    assert sum(line.count("on alpha") for line in said) == 2
    assert "no token" not in result.stderr
    assert "differ between the nodes" not in result.stderr
    assert left_behind(tmp_path, hosts) == []


def test_exception_on_remote_host_is_raised_locally(
    call: Call, tmp_path: Path, hosts: Sshd
) -> None:
    """The exception includes its traceback."""
    result = call("""
        def work():
            if os.environ["RANK"] == "1":
                raise KeyError("there")
            import time; time.sleep(1000)
        try:
            relight.launch(work, **there)
        except KeyError as error:
            print("caught", error, "in work" in str(error.__cause__))
    """)
    assert result.stdout.endswith("caught 'there' True\n"), result
    assert left_behind(tmp_path, hosts) == []


def test_error_names_unreachable_host(call: Call, tmp_path: Path, hosts: Sshd) -> None:
    """The error is a single line, and nothing runs on the other host."""
    result = call("""
        def work():
            raise SystemExit("it ran")
        there["hosts"][1] = "127.0.0.1:1"
        try:
            relight.launch(work, **there)
        except RelightError as error:
            print("caught", error.message)
    """)
    assert result.stdout == "caught 127.0.0.1:1 refuses the connection\n", result
    assert left_behind(tmp_path, hosts) == []


def test_error_names_remote_rank_that_exits_before_returning(call: Call) -> None:
    result = call("""
        def work():
            if os.environ["RANK"] == "1":
                os._exit(0)
        try:
            print(relight.launch(work, **there))
        except RelightError as error:
            print("caught", error.message)
    """)
    assert result.stdout.endswith("caught rank 1 exited with 0 before work returned\n"), result
