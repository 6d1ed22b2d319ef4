"""What runs inside workers and may be imported by training scripts. Costs nothing to import."""
