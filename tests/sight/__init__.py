"""Views of a job: status, web page, metrics."""
