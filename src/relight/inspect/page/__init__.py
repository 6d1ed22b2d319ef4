"""The status page of a job, a separate process (`relight status --web`)."""
