"""Schedulers, tested on real servers wherever one can run here."""
