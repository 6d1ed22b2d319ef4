"""Workers that are forked from a process with modules loaded (--preload)."""
