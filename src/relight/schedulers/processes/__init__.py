"""Jobs whose replicas are processes of this machine: `local` jobs, and `ssh` jobs as seen here."""
