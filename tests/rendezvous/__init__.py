"""The registers of coordinators, etcd and a file, against the real thing."""
