"""Where jobs run: one folder a scheduler, the same verbs (`api`)."""
