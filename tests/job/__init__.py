"""Descriptions of jobs: apps, components, records, handles, what is hidden."""
