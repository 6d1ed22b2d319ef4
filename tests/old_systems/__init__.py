"""Systems that lack some functions."""
