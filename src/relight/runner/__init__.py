"""Runs jobs: describes apps, submits them to a scheduler, monitors them and stops them.

Use `from relight.runner import Runner` to submit jobs from Python.
"""

from relight.runner.prepared import Prepared as Prepared
from relight.runner.runner import Job as Job
from relight.runner.runner import Runner as Runner
