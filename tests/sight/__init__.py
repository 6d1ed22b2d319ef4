"""A job's views: status, page, metrics."""
