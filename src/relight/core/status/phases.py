"""The phases of a job's time, with their names on the status page, in `relight status` and in the
docs.

The timeline, the JSON object `goodput` and the metrics use the same keys. When each phase begins
and ends is described in docs/watching.md, and the page's style sheet has a colour for each phase.
"""

PHASES = {
    "productive": "productive",
    "running": "running",
    "lost": "lost since the last checkpoint",
    "rendezvous": "rendezvous",
    "spawn": "spawn",
    "imports": "imports",
    "init": "init",
    "first_step": "first step",
    "detect": "detect",
    "teardown": "teardown",
    "frozen": "frozen",
    "unknown": "unknown",
}
"""The name of each phase, in the order of the page's legend."""
