"""The host layer for systems that are not Linux, on a Linux that plays macOS."""
