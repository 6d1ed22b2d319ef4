"""Systems that lack functions."""
