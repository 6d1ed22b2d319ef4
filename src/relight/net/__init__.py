"""Bytes between nodes: connections, heartbeats, TLS, names, ports, and the store for torch.

`listener` accepts, `handshake` authenticates and agrees on a version, `connection` carries messages
over a `byte_stream` (plain or `tls`); `heartbeats` are datagrams. `tcp_store` serves torch's
TCPStore protocol at MASTER_PORT, one for each generation; `missing_at_init` reads from it which
workers others wait for. Input from the network is bounded and dropped if malformed.
"""
