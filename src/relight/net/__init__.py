"""The network layer between nodes: connections, heartbeats, TLS, names, ports, and torch's store.

`listener` accepts connections, `handshake` authenticates peers and agrees on a version, and
`connection` carries messages over a `byte_stream` (plain or `tls`). `heartbeats` are sent as
datagrams. `tcp_store` serves torch's TCPStore protocol at MASTER_PORT, with one store per
generation. All of these modules limit the size of network input, and drop malformed input.
"""
