"""The registers in which a coordinator is written down: etcd and a file, on the real thing."""
