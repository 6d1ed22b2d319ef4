"""Leader locks in real etcd and in files."""
