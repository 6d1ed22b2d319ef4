"""Tests which of many packages can be preloaded: `make packages`."""
