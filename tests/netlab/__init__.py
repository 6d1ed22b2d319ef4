"""Hosts and a network for tests, on one machine: see hosts.py."""

from netlab.hosts import Host, Lab, LabError, lab_unavailable

__all__ = ["Host", "Lab", "LabError", "lab_unavailable"]
