"""The phases of a job's time, with their names on the page, in `relight status` and in the docs.

The keys are those of the timeline, of `goodput` in JSON and of metrics. docs/watching.md says when
each begins and ends; the page's style sheet has a colour for each.
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
"""Words by phase, in the order of the page's legend."""
