"""The phases that a job's time is divided into, with their names on the status page, in `relight
status` and in the docs.

The timeline, `goodput` in JSON and the metrics use the same keys. docs/watching.md describes when
each phase begins and ends, and the page's style sheet has a colour for each phase.
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
