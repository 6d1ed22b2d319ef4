"""Hosts and a network for tests, on one machine: those of `relight sandbox`."""

from relight.sandbox.lab import Host, Lab, LabError, lab_unavailable

__all__ = ["Host", "Lab", "LabError", "lab_unavailable"]
