"""Where jobs run: one file a scheduler, the same verbs (`api`)."""
