"""Records a job's metadata, its artifacts and the runs that it is derived from.

    from relight.tracker import app_run_from_env
    run = app_run_from_env()
    run.add_metadata(lr=0.1)
    run.add_artifact("model", "s3://bucket/model.pt", {"step": 1000})

The API is the same as in TorchX (torchx.tracker 0.7). docs/trackers.md describes how runs are
stored.
"""

from relight.tracker.api import AppRun as AppRun
from relight.tracker.api import AppRunTrackableSource as AppRunTrackableSource
from relight.tracker.api import Lineage as Lineage
from relight.tracker.api import TrackerArtifact as TrackerArtifact
from relight.tracker.api import TrackerBase as TrackerBase
from relight.tracker.api import TrackerSource as TrackerSource
from relight.tracker.api import app_run_from_env as app_run_from_env
