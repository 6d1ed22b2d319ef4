"""One test of two ranks, in three ways."""
