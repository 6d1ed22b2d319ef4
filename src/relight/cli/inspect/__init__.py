"""Commands that inspect a job: status, top, stacks, debug, events."""
