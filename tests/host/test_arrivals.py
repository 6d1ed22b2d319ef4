"""Which workers have arrived at the store, derived from the kernel's socket tables."""

import os
import socket
import subprocess
import sys

from relight.net.missing_at_init import arrived

CLIENT = """
import socket, sys
if sys.argv[1] != "0":
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print("here", flush=True)
sys.stdin.read()
"""


def test_process_connected_to_store_port_counts_as_arrived() -> None:
    """A process without a connection to the port, or one that has exited, hasn't arrived."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        clients = [
            subprocess.Popen(
                [sys.executable, "-c", CLIENT, str(target)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for target in (port, 0, port)
        ]
        for client in clients:
            assert client.stdout is not None
            client.stdout.readline()
        first, without, third = (client.pid for client in clients)
        assert arrived([first, without, third], port) == {first, third}
        assert arrived([first], port + 1) == set()
        for client in clients:
            client.communicate()
        assert arrived([first, without, third], port) == set()
        assert arrived([os.getpid()], port) == set()
