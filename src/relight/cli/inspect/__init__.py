"""Commands that look into a job: status, top, stacks, debug, events."""
