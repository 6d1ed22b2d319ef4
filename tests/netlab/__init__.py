"""Hosts and a network for tests, on one machine, from `relight sandbox`."""

from relight.sandbox.lab import Host, Lab, LabError, lab_unavailable

__all__ = ["Host", "Lab", "LabError", "lab_unavailable"]
