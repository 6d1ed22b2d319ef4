"""Runs jobs: describes an app, submits it to a scheduler, watches it, stops it."""
