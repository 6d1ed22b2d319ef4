"""A job's status page, served by a separate process (`relight status --web`)."""
