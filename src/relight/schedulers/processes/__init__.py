"""Jobs whose replicas are processes of this machine: `local` jobs, and this side of `ssh` jobs."""
