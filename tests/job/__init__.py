"""Descriptions of jobs: apps, components, records, handles, hidden secrets."""
