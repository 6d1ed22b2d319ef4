"""The network layer between nodes: connections, heartbeats, TLS, names, ports, and torch's store.

`listener` accepts, `handshake` authenticates and agrees on a version, `connection` carries messages
over a `byte_stream` (plain or `tls`); `heartbeats` are datagrams. `tcp_store` serves torch's
TCPStore protocol at MASTER_PORT, with one store per generation; `missing_at_init` uses it to find
the workers that others are waiting for. Network input is bounded, and malformed input is dropped.
"""
