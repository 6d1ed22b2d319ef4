"""Jobs on a list of hosts, over ssh: one replica per host."""
