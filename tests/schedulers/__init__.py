"""The schedulers, on real servers where one can run here."""
