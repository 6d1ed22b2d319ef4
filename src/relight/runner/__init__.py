"""Runs jobs: describes an app, submits it to a scheduler, watches it, stops it.

`from relight.runner import Runner` submits jobs from Python.
"""

from relight.runner.prepared import Prepared as Prepared
from relight.runner.runner import Job as Job
from relight.runner.runner import Runner as Runner
