"""Programs that built-in components run in a job: `python -m relight.job.apps.NAME`."""
