"""A terminal, but no other console, has a line with the reason for the agent's wait."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import LIMIT_S, Launch, Start
from test_logs_console import Terminal

pytestmark = pytest.mark.forked

Script = Callable[[str], Path]
CLEAR = b"\r\x1b[K"
TWO_NODES = ("run", "--nnodes=2", "--rdzv-backend=file", "--rdzv-id=j")


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal(columns=60)
    yield terminal
    terminal.close()


def on_screen(data: bytes) -> str:
    """Return the final text, after lines have been rewritten in place."""
    return re.sub(r"[^\n]*\r\x1b\[K", "", data.decode().replace("\r\n", "\n"))


@pytest.mark.slow
def test_status_line_is_updated_while_agent_waits(
    start: Start, terminal: Terminal, script: Script, tmp_path: Path
) -> None:
    """The line fits the terminal, can do without colours, and never mixes with worker output."""
    flags = (*TWO_NODES, f"--rdzv-endpoint={tmp_path}", script("print('at work')"))
    variables = {"TERM": "xterm", "NO_COLOR": "1"}
    first = start(*flags, stdout=terminal.agents_end, stderr=terminal.agents_end,
                  variables=variables)  # fmt: skip
    terminal.read_until_match(rb"relight: (\d+) s: .*relight: (?!\1 )\d+ s: ")
    second = start(*flags, variables=variables)
    seen = terminal.read_to_end(first)
    assert (first.wait(), second.wait(LIMIT_S)) == (0, 0)
    rows = [row.split(b"\r\n")[0] for row in seen.split(CLEAR)[1:]]
    shown = [row.decode() for row in rows if row.startswith(b"relight: ") and b" s: " in row]
    waited_s = [int(row.split()[1]) for row in shown]
    assert 1 <= waited_s[0] < waited_s[1]
    assert " s: 1 of 2 nodes have joined: " in shown[0]
    assert max(map(len, shown)) < 60
    assert b"\x1b[2m" not in seen
    left = on_screen(seen)
    assert " s: " not in left and "have joined" not in left
    assert re.search(
        r"\nrelight: generation 0: 2 workers on 2 nodes; this is node \d\nat work\n", left
    )
    said = second.stderr.read()
    assert b"\x1b" not in said and b" s: " not in said


STUBBORN = """
import signal, time
def save(*_):
    print("saving", end="", flush=True)
    time.sleep(1.5)
    print(" done", flush=True)
    time.sleep(1.5)
    raise SystemExit
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_waiting_status_line_never_mixes_with_worker_output(
    start: Start, terminal: Terminal, script: Script
) -> None:
    """The line never interrupts a worker's line, and it is dim if colours are enabled."""
    agent = start("run", script(STUBBORN), stdout=terminal.agents_end, stderr=terminal.agents_end,
                  variables={"TERM": "xterm"})  # fmt: skip
    terminal.read_until(b"ready")
    agent.send_signal(signal.SIGTERM)
    seen = terminal.read_to_end(agent)
    assert agent.wait() == 143
    assert b"\r\nsaving done\r\n" in seen
    assert re.search(
        rb"\r\x1b\[K\x1b\[2mrelight: \d s: waiting for local rank 0 to stop; it is", seen
    )
    assert on_screen(seen).splitlines()[-1] == "saving done"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["a pipe", "a dumb terminal"])
def test_wait_reason_is_plain_text_without_terminal(
    start: Start, terminal: Terminal, script: Script, tmp_path: Path, where: str
) -> None:
    end = terminal.agents_end if where == "a dumb terminal" else subprocess.PIPE
    term = "dumb" if where == "a dumb terminal" else "xterm"
    flags = (*TWO_NODES, f"--rdzv-endpoint={tmp_path}", "--rdzv-conf=join_timeout=1.5")
    agent = start(*flags, script(""), stdout=end, stderr=end, variables={"TERM": term})
    if where == "a pipe":
        seen = b"".join(reversed(agent.communicate(timeout=LIMIT_S)))
    else:
        seen = terminal.read_to_end(agent)
    assert agent.wait() == 3
    assert b"\x1b" not in seen and CLEAR not in seen
    assert re.search(
        rb"relight: 1 of 2 nodes have joined: \S+; waiting for 1 more \(join time", seen
    )


def test_restart_is_reported_on_one_line(launch: Launch, script: Script) -> None:
    """The line has the cause, the restart's number, and the limit."""
    failing = "import os; raise SystemExit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')"
    done = launch("run", "--max-restarts=2", script(failing))
    assert done.returncode == 0
    host = os.uname().nodename
    assert re.fullmatch(
        rf"relight: rank 0 exited with code 1 \(pid \d+ on {host}\); restart 1 of 2\n", done.stderr
    )


@pytest.mark.slow
def test_lonely_node_says_how_to_start_others_and_what_it_waited_for(
    start: Start, script: Script, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    with output.open("wb") as file:
        agent = start(*TWO_NODES, f"--rdzv-endpoint={tmp_path}", script(""), stderr=file)
    hint = (
        b"relight: hint: no other node has connected yet; if you start the nodes by hand, run the "
        b"same command on each\n"
    )
    end = time.monotonic() + LIMIT_S
    while hint not in output.read_bytes():
        assert agent.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(LIMIT_S) == 143
    *_, last = output.read_bytes().splitlines()
    assert last.startswith(b"relight: got SIGTERM before workers could start: 1 of 2 nodes have ")
