"""What runs jobs: describes an app, sends it to a scheduler, watches it, stops it."""
