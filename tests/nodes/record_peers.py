"""Record the messages between an agent and its coordinator, for test_versions.py.

    PYTHONPATH=src:tests python -m nodes.record_peers > tests/nodes/recorded/VERSION.json

Run this from a release's commit, so that the next version is tested against it.
"""

import json
import os
import re
import selectors
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from etcd_server import free_ports

import relight
from relight.core.link.wire import GREETING

SCRIPT = """\
import os, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if os.environ["RANK"] == "1":
        raise ValueError("bad batch")
    time.sleep(600)
"""


def words(endpoint: str, is_host: int) -> list[str]:
    """Return the command line of an agent that meets another agent. Its rank 1 fails once."""
    return [
        *(sys.executable, "-m", "relight", "run", "--nnodes=2", "--rdzv-id=recorded"),
        "--max-restarts=1",
        *("--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}"),
        *(f"--rdzv-conf=is_host={is_host}", "train.py"),
    ]


def main() -> None:
    """Run two agents whose connection passes through here, and print their messages."""
    folder = Path(tempfile.mkdtemp())
    (folder / "train.py").write_text(SCRIPT)
    port = free_ports(1)[0]
    with socket.create_server(("127.0.0.1", 0)) as server:
        through = f"127.0.0.1:{server.getsockname()[1]}"
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        host = subprocess.Popen(words(f"127.0.0.1:{port}", 1), cwd=folder, env=environment)
        while True:
            try:
                upstream = socket.create_connection(("127.0.0.1", port))
                break
            except ConnectionRefusedError:
                continue
        agent = subprocess.Popen(words(through, 0), cwd=folder, env=environment)
        downstream, _ = server.accept()
        said = pass_on({"agent": downstream, "coordinator": upstream})
    assert (host.wait(), agent.wait()) == (0, 0)
    recorded = {"version": relight.__version__, "greeting": GREETING.decode(), "said": said}
    text = json.dumps(recorded, indent=1).replace(str(folder), "/job")
    print(re.sub(rf"\b{re.escape(socket.gethostname())}\b", "node2", text))


def pass_on(ends: dict[str, socket.socket]) -> list[list[object]]:
    """Relay messages in both directions until one side closes; return them, without echoes."""
    said: list[list[object]] = []
    buffers = dict.fromkeys(ends, b"")
    greeted = set[str]()
    with selectors.DefaultSelector() as selector:
        for name, end in ends.items():
            selector.register(end, selectors.EVENT_READ, name)
        while True:
            for key, _ in selector.select():
                name = key.data
                data = ends[name].recv(65536)
                if not data:
                    return said
                ends["agent" if name == "coordinator" else "coordinator"].sendall(data)
                buffers[name] += data
                if name not in greeted:
                    buffers[name] = buffers[name].removeprefix(GREETING)
                    greeted.add(name)
                while len(buffers[name]) >= 4:
                    (length,) = struct.unpack(">I", buffers[name][:4])
                    if len(buffers[name]) < 4 + length:
                        break
                    message = json.loads(buffers[name][4 : 4 + length])
                    buffers[name] = buffers[name][4 + length :]
                    if message["type"] != "heartbeat":
                        said.append([name, message])


if __name__ == "__main__":
    main()
