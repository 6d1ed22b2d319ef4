"""Programs that built-in components run in a job, as `python -m relight.job.apps.NAME`."""
