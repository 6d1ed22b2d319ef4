"""Status pages for real jobs."""

import os
import pty
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LIMIT_S, Launch, Start

from .conftest import ADDRESS, Find, Link, link_in, read_link, read_until, wait_until_closed

pytestmark = pytest.mark.forked

FAILS_ONCE = """\
import os, time
print("step 1 <b>of</b>", os.environ["RANK"], flush=True)
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    time.sleep(1.5)
    raise ValueError("bad batch, token=hunter2")
time.sleep(600)
"""
WAITS = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]):\n    time.sleep(0.05)\n"


@pytest.mark.slow
def test_standalone_status_page_shows_restart_and_outlives_job(
    start: Start, script: Callable[[str], Path], find: Find
) -> None:
    """A page opened with `--status` closes when the job ends."""
    agent = start("run", "--nproc-per-node=2", "--max-restarts=1", "--status=0",
                  script(FAILS_ONCE))  # fmt: skip
    assert agent.stderr is not None
    first = read_link(agent.stderr.fileno())
    state = find(first, lambda each: each["job"]["generation"] == 1 and len(each["ranks"]) == 2
                 and each["failures"])  # fmt: skip
    assert state["job"]["restart"] == 1
    assert "rank 1 raised ValueError: bad batch, token=<hidden>" in state["failures"][0]["text"]
    (lane,) = state["lanes"]
    assert [mark[1] for mark in lane["marks"]] == ["failure"]
    assert [bar[0] for bar in lane["bars"]] == sorted(bar[0] for bar in lane["bars"])
    assert {"Formed", "WorkerExited", "Restarting"} <= {e["event"] for e in state["events"]}
    assert "hunter2" not in str(state)
    assert state["actions"] == ["stacks", "cancel"]

    leader, follower = pty.openpty()
    page = start("status", "--web", state["job"]["id"], stdout=follower)
    os.close(follower)
    mine = read_link(leader)
    assert mine.token != first.token
    stacks = mine.act("stacks")
    assert "time.sleep" in stacks or "train.py" in stacks
    assert "step 1 <b>of</b> 1" in mine.get("output?rank=1")
    assert "has been cancelled" in mine.act("cancel")
    assert agent.wait(LIMIT_S) == 128 + signal.SIGTERM
    wait_until_closed(first.address)
    ended = find(mine, lambda each: each["job"]["over"])
    assert ended["job"]["shown_state"] == "cancelled"
    assert len(ended["ranks"]) == 2
    page.send_signal(signal.SIGINT)
    assert page.wait(LIMIT_S) == 0
    os.close(leader)


@pytest.mark.slow
def test_status_page_closes_when_agent_is_killed(
    start: Start, script: Callable[[str], Path], tmp_path: Path
) -> None:
    agent = start("run", "--status=127.0.0.1:0", script(WAITS), tmp_path / "end")
    assert agent.stderr is not None
    page = read_link(agent.stderr.fileno())
    agent.kill()
    wait_until_closed(page.address)


@pytest.mark.slow
def test_job_runs_without_status_page_if_port_is_taken(
    start: Start, script: Callable[[str], Path], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        agent = start("run", f"--status={port}", script(WAITS), tmp_path / "end")
        assert agent.stderr is not None
        line = rf"relight: no status page: can't listen on 127\.0\.0\.1:{port}: Address already"
        read_until(agent.stderr.fileno(), line)
        (tmp_path / "end").touch()
        assert agent.wait(LIMIT_S) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["status", "--web"], "--web needs a job"),
        (["status", "--web", "no-such-job-1"], "no-such-job-1"),
        (["status", "--listen", "80", "x"], "--listen and --until-end require --web"),
        (["status", "--web", "--listen", "99999", "x"], "a port is a number from 0 to 65535"),
        (["status", "--web", "--listen", "localhost", "x"], "expected [HOST:]PORT"),
        (["status", "--web", "--json", "x"], "--json and --roles can't be combined with --web"),
        (["status", "--web", "local://relight/x"], "shows jobs started with relight run"),
        (["run", "--status=http", "x.py"], "expected [HOST:]PORT"),
        (["run", "--status=80,open", "x.py"], "expected [HOST:]PORT or [HOST:]PORT,public"),
    ],
    ids=lambda each: " ".join(each)[:40] if isinstance(each, list) else "",
)
def test_invalid_status_page_request_is_rejected(
    launch: Launch, words: list[str], message: str
) -> None:
    found = launch(*words)
    assert found.returncode == 2
    assert message in found.stderr


@pytest.mark.slow
def test_multi_node_job_has_one_status_page_for_all_nodes(
    start: Start, script: Callable[[str], Path], find: Find, tmp_path: Path
) -> None:
    """It is served by the node with rank 0, although both nodes were started with the flag."""
    flags = ("run", "--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=file", "--rdzv-id=paged",
             f"--rdzv-endpoint={tmp_path}/where", "--status=0")  # fmt: skip
    program = script("import os, time\nprint('rank', os.environ['RANK'])\ntime.sleep(600)\n")
    logs = [tmp_path / f"log{n}" for n in range(2)]
    for log in logs:
        with log.open("wb") as output:
            start(*flags, program, stderr=output)

    def pages() -> list[Link]:
        found = [link_in(log.read_text()) for log in logs]
        return [link for link in found if link is not None]

    deadline = time.monotonic() + LIMIT_S
    while not pages():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (page,) = pages()
    state = find(page, lambda each: len(each["ranks"]) == 4 and len(each["lanes"]) == 2)
    assert [row[:2] for row in state["ranks"]] == [[0, 0], [1, 0], [2, 1], [3, 1]]
    assert [lane["name"] for lane in state["lanes"]] == [
        state["job"]["host"], f"{state['job']['host']} #2",
    ]  # fmt: skip
    assert page.get("output?rank=3&stream=stdout") == "rank 3\n"


@pytest.mark.slow
def test_user_supplied_page_token_is_hidden_from_workers(
    start: Start, script: Callable[[str], Path], find: Find
) -> None:
    """Prometheus needs one that stays the same. Only the same user can read another
    process's file.
    """
    token = "x" * 32
    text = "import os, time\nprint(os.environ.get('RELIGHT_STATUS_TOKEN'))\ntime.sleep(600)\n"
    agent = start("run", "--status=0", script(text), variables={"RELIGHT_STATUS_TOKEN": token})
    assert agent.stderr is not None
    line = r"page: (http://127\.0\.0\.1:\d+/) \(its token is in RELIGHT_STATUS_TOKEN\)"
    link = Link(read_until(agent.stderr.fileno(), line)[1], token)
    find(link, lambda each: bool(each["ranks"]))
    assert link.get("output?rank=0") == "None\n"
    pages = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in _children(agent.pid)]
    assert any(b"--web" in words for words in pages)
    assert not any(token.encode() in words for words in pages)


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in found for each in _children(int(child)))]


@pytest.mark.slow
def test_public_page_is_readable_by_anyone_but_offers_no_actions(
    start: Start, script: Callable[[str], Path], find: Find
) -> None:
    """It doesn't use a token, as no one would be able to see it."""
    agent = start("run", "--status=public", script("import time\ntime.sleep(600)"))
    assert agent.stderr is not None
    address = read_until(agent.stderr.fileno(), r"status page: (http://127\.0\.0\.1:\d+/)\n")[1]
    assert find(Link(address, ""), lambda each: bool(each["ranks"]))["actions"] == []


@pytest.mark.slow
def test_page_token_file_is_private_and_removed_when_page_closes(
    start: Start, script: Callable[[str], Path], tmp_path: Path
) -> None:
    agent = start("run", "--status=0", script(WAITS), tmp_path / "end")
    assert agent.stderr is not None
    file = Path(read_until(agent.stderr.fileno(), ADDRESS)[2])
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o077 == 0 or file.parent.parent.stat().st_mode & 0o077 == 0
    (tmp_path / "end").touch()
    assert agent.wait(LIMIT_S) == 0
    assert not file.exists()


def test_weak_page_token_is_rejected(launch: Launch) -> None:
    for token in ("short", "x" * 20 + "\u00e4", "x" * 20 + " x"):
        found = launch("run", "--status=0", "x.py", RELIGHT_STATUS_TOKEN=token)
        assert found.returncode == 2
        assert "RELIGHT_STATUS_TOKEN: expected at least 16 characters" in found.stderr
        assert token not in found.stderr


@pytest.mark.slow
def test_page_reads_output_from_log_files_if_output_is_redirected(
    start: Start, script: Callable[[str], Path], find: Find, tmp_path: Path
) -> None:
    prints = script("import time\nprint('step 7', flush=True)\ntime.sleep(600)\n")
    agent = start("run", "--status=0", "--redirects=3", f"--log-dir={tmp_path}/logs", prints)
    assert agent.stderr is not None
    page = read_link(agent.stderr.fileno())
    state = find(page, lambda each: each["ranks"] and each["ranks"][0][10])
    assert state["ranks"][0][10] == "step 7"
    assert page.get("output?rank=0") == "step 7\n"
