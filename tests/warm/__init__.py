"""Workers that are forked from a process in which modules are preloaded (--preload)."""
