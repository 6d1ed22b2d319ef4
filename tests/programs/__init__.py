"""Complete programs that use popular training libraries."""
