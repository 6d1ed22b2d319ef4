"""Only permitted nodes join a job, and others can't disturb it."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import LIMIT_S, long
from netlab import Lab

from nodes.jobs import AgentOn, Job, c10d
from relight.base.fields import plain, to_json
from relight.core.group.group_types import GroupSettings
from relight.core.group.messages import Join, NodeReady
from relight.core.ranks import NO_GENERATION

pytestmark = [pytest.mark.slow, pytest.mark.needs_hosts]

SOON = "--rdzv-conf=last_call_timeout=0.1"
GIVE_UP = "--rdzv-conf=last_call_timeout=0.1,join_timeout=1.2"
FEW_DESCRIPTORS = ("bash", "-c", 'ulimit -n 1024; exec "$0" "$@"')
ATTACKS = r"""
import os, random, socket, sys, time
target = ("10.77.0.1", 29400)
GREETING = b"relight 3\n"
random.seed(1)

def is_over():
    return os.path.exists(sys.argv[2])

def connect(first=b""):
    while True:
        try:
            sock = socket.create_connection(target, 5)
            sock.sendall(first)
            return sock
        except (ConnectionError, TimeoutError):
            time.sleep(0.01)

def wait_for_end(sock):
    try:
        while sock.recv(65536):
            pass
    except OSError:
        pass
    sock.close()

def frame(text):
    return len(text).to_bytes(4, "big") + text

def random_bytes():
    wait_for_end(connect(random.randbytes(random.choice([1, 20, 5000]))))

def torch_bytes():
    wait_for_end(connect(b"\0" + random.randbytes(500)))

def half_frames():
    hello = GREETING + frame(b'{"type":"hello","nonce":"%s","token":false}' % (b"00" * 32))
    for cut in (1, 9, 12, 30, len(hello) - 1):
        connect(hello[:cut]).close()
    time.sleep(0.1)

def slow():
    socks = [connect() for _ in range(20)]
    for byte in GREETING + frame(b"{}"):
        for sock in socks:
            if is_over():
                return
            try:
                sock.send(bytes([byte]))
            except OSError:
                pass
        time.sleep(1)

def idle():
    held = [connect() for _ in range(2000)]
    print(len(held), flush=True)
    while not is_over():
        time.sleep(0.05)

def long_frame():
    sock = connect(GREETING + b"\xff\xff\xff\xff")
    try:
        for _ in range(100):
            sock.sendall(bytes(1 << 20))
    except OSError:
        pass
    sock.close()

def wrong_token():
    hello = b'{"type":"hello","nonce":"%s","token":true}' % os.urandom(32).hex().encode()
    proof = b'{"type":"proof","mac":"%s"}' % (b"0" * 64)
    wait_for_end(connect(GREETING + frame(hello) + frame(proof)))

def deep():
    wait_for_end(connect(GREETING + frame(b"[" * 4000)))

def datagrams():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for size in (0, 1, 8, 24, 25, 8000) * 20:
            sock.sendto(random.randbytes(size), target)
    time.sleep(0.05)

attack = globals()[sys.argv[1]]
while not is_over():
    attack()
"""
KINDS = ["random_bytes", "torch_bytes", "half_frames", "slow", "idle", "long_frame",
         "wrong_token", "deep", "datagrams"]  # fmt: skip


def begin(
    lab: Lab, tmp_path: Path, under: tuple[str, ...] = (), **variables: str
) -> tuple[Job, list[AgentOn]]:
    """Start a job with two nodes that has room for a third."""
    job = Job(lab, tmp_path, *c10d("10.77.0.1", "2:3", SOON))
    agents = [job.start(host, under=under, **variables) for host in ("node1", "node2")]
    job.until_runs(agents, 2)
    return job, agents


def assert_undisturbed(job: Job, agents: list[AgentOn], by: str = "") -> None:
    before = job.counts()
    job.until(lambda: all(job.counts()[name] > count for name, count in before.items()), by)
    for agent in agents:
        assert agent.process.poll() is None, (by, job.report())
        assert len(agent.workers) == 1, (by, job.report())
        assert "workers are frozen" not in agent.text, (by, job.report())


@pytest.mark.parametrize("theirs", ["wrong", ""])
def test_only_nodes_with_the_token_can_join(lab: Lab, tmp_path: Path, theirs: str) -> None:
    """A node with a different token, or none, reports the reason and exits."""
    job, agents = begin(lab, tmp_path, RELIGHT_TOKEN="right")
    variables = {"RELIGHT_TOKEN": theirs} if theirs else {}
    stranger = job.start("node3", GIVE_UP, **variables)
    assert stranger.wait() in (2, 3)
    assert re.search(r"token", stranger.text.splitlines()[-1]), stranger.text
    if not theirs:
        assert "set RELIGHT_TOKEN" in stranger.text
    job.until_says(agents[0], r"refused a connection from 10\.77\.0\.3:\d+: the peer .* token")
    assert_undisturbed(job, agents)
    newcomer = job.start("node3", RELIGHT_TOKEN="right")
    job.until_runs([*agents, newcomer], 3, generation=1)
    job.tell("stop")
    assert [agent.wait() for agent in [*agents, newcomer]] == [0, 0, 0]


def test_node_with_token_does_not_join_job_without_one(lab: Lab, tmp_path: Path) -> None:
    """Anybody could have started a job without a token."""
    job, agents = begin(lab, tmp_path)
    careful = job.start("node3", GIVE_UP,
                        RELIGHT_TOKEN="right")  # fmt: skip
    assert careful.wait() in (2, 3)
    assert "token" in careful.text.splitlines()[-1], careful.text
    assert_undisturbed(job, agents)
    assert job.stop()[:2] == [0, 0]


def test_token_file_is_equivalent_to_token_variable(lab: Lab, tmp_path: Path) -> None:
    """token_file is equivalent to RELIGHT_TOKEN; surrounding white space is ignored."""
    (tmp_path / "token").write_text("  right\n")
    job = Job(lab, tmp_path, *c10d("node1", "2"))
    agents = [
        job.start("node1", "--rdzv-conf=token_file=token"),
        job.start("node2", RELIGHT_TOKEN="right"),
    ]
    job.until_runs(agents, 2)
    assert job.stop() == [0, 0]
    assert not any("no token" in agent.text for agent in agents)


def test_multi_host_job_without_token_warns_once(lab: Lab, tmp_path: Path) -> None:
    """A loopback endpoint causes the warning too: its host listens on all of its addresses."""
    job = Job(lab, tmp_path, *c10d("node1", "2"))
    agents = [job.start("node1"), job.start("node2")]
    job.until_runs(agents, 2)
    assert job.stop() == [0, 0]
    lines = [line for agent in agents for line in agent.text.splitlines() if "token" in line]
    assert len(lines) == 1, lines
    assert re.search(r"node1:29400.*RELIGHT_TOKEN", lines[0])
    local = Job(lab, tmp_path, *c10d("localhost", "1:2", "--rdzv-conf=last_call_timeout=0.1"))
    agent = local.start("node1")
    assert agent.wait() == 0
    assert "any host that can reach localhost:29400 can join this job" in agent.text


def certificates(directory: Path, authority: str, *names: str) -> None:
    """Create a certificate authority and certificates that it signed."""

    def openssl(*arguments: str) -> None:
        command = ["openssl", *arguments]
        subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=LIMIT_S)

    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *new_key, "-days", "2", "-subj", f"/CN={authority}",
            "-keyout", f"{authority}.key", "-out", f"{authority}.pem")  # fmt: skip
    for name in names:
        openssl("req", *new_key, "-subj", f"/CN={name}",
                "-keyout", f"{name}.key", "-out", f"{name}.csr")  # fmt: skip
        openssl("x509", "-req", "-in", f"{name}.csr", "-days", "2", "-out", f"{name}.pem",
                "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key",
                "-CAcreateserial")  # fmt: skip


@pytest.mark.needs_openssl
def test_only_nodes_with_certificates_from_same_authority_can_join(
    lab: Lab, tmp_path: Path
) -> None:
    """A node without TLS, or with a certificate from another authority, reports that."""
    certificates(tmp_path, "ca", "node")
    certificates(tmp_path, "other-ca", "other")
    tls = "last_call_timeout=0.1,tls_ca=ca.pem,tls_cert={0}.pem,tls_key={0}.key"
    job = Job(lab, tmp_path, *c10d("node1", "2:3", "--max-restarts=1"))
    agents = [job.start(host, f"--rdzv-conf={tls.format('node')}") for host in ("node1", "node2")]
    job.until_runs(agents, 2)
    short = "--rdzv-conf=join_timeout=1.2,"
    plain = job.start("node3", GIVE_UP)
    other = job.start("node4", short + tls.format("other"))
    for stranger in (plain, other):
        assert stranger.wait() in (2, 3), stranger.text
    assert "TLS" in plain.text.splitlines()[-1], plain.text
    assert "certificate" in other.text[other.text.index("relight: error: ") :], other.text
    assert_undisturbed(job, agents)
    job.tell("fail.1")
    job.until_runs(agents, 2, generation=1)
    assert job.stop()[:2] == [0, 0]
    assert not any("no token" in agent.text for agent in agents), "TLS keeps strangers out"


def test_unauthorized_peers_do_not_disturb_a_job(lab: Lab, tmp_path: Path) -> None:
    """Another host sends noise, silence, floods, and false claims at the same time. The workers
    keep running, no node is lost, and a permitted node can still join.
    """
    job, agents = begin(lab, tmp_path, under=FEW_DESCRIPTORS, RELIGHT_TOKEN="right")
    attacks = []
    for kind in KINDS:
        command = [sys.executable, "-c", ATTACKS, kind, str(tmp_path / "over")]
        with (tmp_path / f"{kind}.txt").open("wb") as file:
            attacks.append(lab["node4"].start(command, stdout=file, stderr=subprocess.STDOUT))
    job.until(lambda: "2000" in (tmp_path / "idle.txt").read_text(), "2000 connections")
    assert_undisturbed(job, agents)
    newcomer = job.start("node3", RELIGHT_TOKEN="right")
    job.until_runs([*agents, newcomer], 3, generation=1)
    (tmp_path / "over").touch()
    for process, kind in zip(attacks, KINDS, strict=True):
        assert process.wait(LIMIT_S) == 0, (kind, (tmp_path / f"{kind}.txt").read_text())
    for agent in job.agents:
        job.until_counts(agent.host)
    for agent in job.agents:
        assert "lost" not in agent.text, agent.text
        assert "workers are frozen" not in agent.text, agent.text
    assert len(agents[0].text.splitlines()) < 40, agents[0].text  # reported, but not every time
    assert job.stop() == [0, 0, 0]


JOIN = to_json(
    Join(
        node="x", host="evil", address="10.77.0.4", local_world_size=1, role="default",
        node_rank=-1, min_nodes=2, max_nodes=3, max_restarts=0, facts={}, announce=None,
    )
)  # fmt: skip
READY = to_json(NodeReady(NO_GENERATION, 1, (), ()))
BIG = 1 << 62
LONG = "é" * 1_400_000
"""It fits into a frame as UTF-8, but not with every character escaped."""
LONE = "\ud800"
"""JSON can represent it, but no encoding can."""
FIRST, SECOND = ({"number": number, "origin": "ORIGIN"} for number in (0, 1))
"""Generations of the current coordinator, as far as the liar knows."""
ANNOUNCE = {"generation": {"number": BIG, "origin": "x"}, "restart": BIG, "group_rank": 0,
            "group_world_size": BIG, "done": False}  # fmt: skip

LIES = {
    "unknown types": [{"type": "generationformed"}, {"type": "x"}, {"type": ""}],
    "no joiner": [READY, {"type": "failed", "generation": FIRST, "reason": "x"},
                  {"type": "done", "generation": FIRST}, {"type": "leave", "reason": "x"}],
    "wrong types": [{**JOIN, "facts": {"a": 1}}, {**JOIN, "local_world_size": 0},
                    {**JOIN, "node": None},
                    {**JOIN, "announce": []}, {**READY, "failures": [1]},
                    {**READY, "succeeded_ranks": 1}],
    "the coordinator's words": [{"type": "end", "exit_code": 0, "reason": "", "report": [],
                                 "root": None}, {"type": "confirm", "generation": FIRST}],
    "other people's generation": [JOIN, {"type": "failed", "generation": FIRST, "reason": "x"},
                                  {"type": "done", "generation": FIRST},
                                  {**JOIN, "announce": {**ANNOUNCE, "generation": FIRST}}],
    "a generation far ahead": [{**JOIN, "announce": ANNOUNCE}],
    "a long heartbeat": [{"type": "heartbeat", "number": LONG}],
    "a long name": [{**JOIN, "host": LONG, "min_nodes": 1}, {**JOIN, "host": LONG}],
    "long facts": [{**JOIN, "facts": {"script": LONG, LONG: "x"}}],
    "no text": [{**JOIN, "host": LONE, "facts": {"script": LONE}}],
    "many nodes": [{**JOIN, "node": f"x{number}"} for number in range(1000)],
}  # fmt: skip
LIAR = r"""
import json, os, re, socket, sys, time
GREETING = b"relight 3\n"
settings, connections = json.load(open(sys.argv[1]))
origin = b"x"
def frame(message):
    try:
        body = json.dumps(message, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        body = json.dumps(message).encode()
    body = body.replace(b"ORIGIN", origin)
    return len(body).to_bytes(4, "big") + body
hello = {"type": "hello", "nonce": os.urandom(32).hex(), "token": False, "job": "test",
    "settings": settings}
for group in connections:
    sock = socket.create_connection(("10.77.0.1", 29400), 5)
    sock.sendall(GREETING + frame(hello))
    time.sleep(0.05)
    try:
        for message in group:
            if isinstance(message, dict):
                sock.sendall(frame(message))
            elif message == "until formed":
                sock.settimeout(0.2)
                heard = b""
                while b'"type":"generationformed"' not in heard:
                    sock.sendall(frame({"type": "heartbeat", "number": 1}))
                    try:
                        data = sock.recv(65536)
                    except TimeoutError:
                        continue
                    if not data:
                        sys.exit(f"turned away: {heard}")
                    heard += data
                formed = heard[heard.index(b'"type":"generationformed"'):]
                origin = re.search(rb'"origin":"(\w+)"', formed)[1]
                sock.settimeout(5)
            else:
                time.sleep(message)
    except OSError:
        pass
    sock.close()
"""


def send_lies(lab: Lab, tmp_path: Path, *connections: list[object]) -> None:
    """Send messages to the coordinator from another host, as an admitted peer; a number means a
    pause in seconds.
    """
    (tmp_path / "messages.json").write_text(
        json.dumps([plain(GroupSettings(2, 3, 0)), connections])
    )
    command = [sys.executable, "-c", LIAR, str(tmp_path / "messages.json")]
    assert lab["node4"].start(command).wait(LIMIT_S) == 0


def test_garbage_from_accepted_peer_does_not_disturb_the_group(lab: Lab, tmp_path: Path) -> None:
    """After an admitted peer has sent nonsense, the next one can still join."""
    job, agents = begin(lab, tmp_path)
    for what, messages in LIES.items():
        each = [[message, 0.05] for message in messages[:10]]
        send_lies(lab, tmp_path, *each, [*messages, 0.1])
        assert_undisturbed(job, agents, what)
        assert "settings with" not in agents[0].text, what  # it had been admitted
    newcomer = job.start("node3")
    job.until_runs([*agents, newcomer], 3, generation=1)
    (tmp_path / "over").touch()
    assert job.stop() == [0, 0, 0]


RECORD = {"stop_signal": [], "at": {}, "rank": 0, "exitcode": 1e400, "report": {"kind": 1}}


@pytest.mark.parametrize(
    "lies",
    [
        [{**READY, "generation": SECOND, "failures": [RECORD, {}], "succeeded_ranks": [BIG - 1]}],
        long([{"type": "failed", "generation": SECOND, "reason": LONG}]),
        long([{"type": "leave", "reason": LONE}]),
        [{**JOIN, "node": "y"}, {**JOIN, "node": "z"}],
        long([{**JOIN, "announce": {**ANNOUNCE, "generation": SECOND}}]),
    ],
    ids=["records", "a long reason", "invalid text", "several in one", "another place"],
)
def test_member_that_sends_garbage_is_treated_as_lost(
    lab: Lab, tmp_path: Path, lies: list[object]
) -> None:
    """The node had joined properly; the others continue without it."""
    job, agents = begin(lab, tmp_path)
    # The group with the liar is generation 1. It may have ended before an agent has reported it.
    send_lies(lab, tmp_path, [JOIN, READY, "until formed", *lies, 0.3])
    job.until(lambda: all("generation 2: 2 workers on 2 nodes" in agent.text for agent in agents),
              "the group without the liar")  # fmt: skip
    job.until(lambda: all(job.running(agent.host) for agent in agents), "workers")
    assert job.stop() == [0, 0]


def test_rejected_node_does_not_form_a_group(lab: Lab, tmp_path: Path) -> None:
    """A node with a wrong token starts no workers, and does not take over after the job's end."""
    job = Job(lab, tmp_path, *c10d("node1", "1:3", "--rdzv-conf=last_call_timeout=1"))
    first = job.start("node1", RELIGHT_TOKEN="right")
    job.until_runs([first], 1)
    wrong = job.start("node1", RELIGHT_TOKEN="wrong")
    job.until_says(wrong, "a different token than this node")
    job.tell("stop")
    assert first.wait() == 0
    time.sleep(2)  # time for ten attempts by the other node to reach the endpoint or take it over
    assert not wrong.workers
    assert wrong.process.poll() is None
    assert "generation" not in wrong.text


def test_job_waits_while_job_with_another_token_holds_the_endpoint(
    lab: Lab, tmp_path: Path
) -> None:
    """The second job gets the endpoint once the first one has ended."""
    first, agents = begin(lab, tmp_path, RELIGHT_TOKEN="first")
    place = tmp_path / "second"
    place.mkdir()
    second = Job(lab, place, *c10d("node1", "2"), "--rdzv-id=second")
    waiting = [second.start(host, RELIGHT_TOKEN="second") for host in ("node1", "node2")]
    for agent in waiting:
        second.until_says(
            agent, r"waiting for the coordinator .* other jobs, with a different token"
        )
    assert first.stop() == [0] * len(agents)
    second.until_runs(waiting, 2)
    assert second.stop() == [0, 0]
