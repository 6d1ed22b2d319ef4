"""The host layer for systems other than Linux, tested on a Linux that imitates macOS."""
