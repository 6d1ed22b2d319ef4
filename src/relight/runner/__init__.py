"""Runs jobs: describes apps, submits them to a scheduler, monitors them and stops them.

Use `from relight.runner import Runner` to submit jobs from Python. A submission takes this path:

    job/components/loading.py   the app that a component creates
    validation.py               rejects an app that can't run
    settings.py, options.py     the scheduler's options, from flags, Python and settings files
    site_locks.py               rejects what the site's file locks
    job_env.py                  variables that identify the job
    plugin_guard.py             checks what the scheduler returns
    submitted.py                keeps the job's record

Later commands find the job with `lookup`. `event_log` and `agent_reports` add what its agents
recorded to its status. To add an operation on jobs, add a method to `Runner`, and to
`schedulers/api` if schedulers have to support it.
"""

from relight.runner.prepared import Prepared as Prepared
from relight.runner.runner import Runner as Runner
from relight.runner.submitted import Job as Job
