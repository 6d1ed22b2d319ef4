"""The status page of a job, a process of its own (`relight status --web`)."""
