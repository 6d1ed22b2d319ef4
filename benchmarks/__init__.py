"""Measurements, side by side with torch's own launcher where it has the same thing."""
