"""The `mlflow` tracker, which stores each run as an MLflow run whose name is the run id.

As in TorchX (torchx.tracker.mlflow, 0.7), values are stored as tags, and artifacts are copied to
MLflow. Sources, which TorchX does not store in MLflow, are stored in the tag `relight.sources`.
"""

import getpass
import json
import os
import socket
from collections.abc import Mapping
from typing import Any

from relight.base import env as environment
from relight.base.env import Environment
from relight.base.errors import UsageError
from relight.runner import settings
from relight.tracker.api import TrackerArtifact, TrackerBase, TrackerSource

_OF_ARTIFACT = "torchx.artifact.metadata."
_SOURCES = "relight.sources"
_INTERNAL = ("mlflow.", _OF_ARTIFACT, _SOURCES)
"""The prefixes of tags that the user hasn't set."""
_MAX_RUNS = 1000


class MLflowTracker(TrackerBase):
    """Stores runs in an MLflow experiment.

    Args:
        client: an MLflow client.
        experiment_name: the experiment, created if it does not exist.
        artifact_location: the artifact store for a new experiment, or None for the server's
            default.
    """

    def __init__(
        self, client: Any, experiment_name: str, artifact_location: str | None = None
    ) -> None:
        self._client = client
        self._name = experiment_name
        found = client.get_experiment_by_name(experiment_name)
        if found is None:
            try:
                client.create_experiment(experiment_name, artifact_location)
            except Exception:  # another rank has just created the experiment
                if client.get_experiment_by_name(experiment_name) is None:
                    raise
            found = client.get_experiment_by_name(experiment_name)
        self._experiment = found.experiment_id

    def __str__(self) -> str:
        return f"the experiment {self._name} of MLflow"

    def add_artifact(
        self, run_id: str, name: str, path: str, metadata: Mapping[str, object] | None = None
    ) -> None:
        """Copy a local file to MLflow, into the run's artifact directory `name`."""
        run = self._run(run_id)
        self._client.log_artifact(run.info.run_id, path, name)
        for key, value in (metadata or {}).items():
            self._client.set_tag(run.info.run_id, f"{_OF_ARTIFACT}{name}.{key}", value)

    def artifacts(self, run_id: str) -> dict[str, TrackerArtifact]:
        """Return a run's artifacts, by name. An artifact's name is its directory."""
        run = self._find_run(run_id)
        if run is None:
            return {}
        found: dict[str, TrackerArtifact] = {}
        folders = [""]
        for folder in folders:  # the loop appends to this list
            for each in self._client.list_artifacts(run.info.run_id, folder or None):
                if each.is_dir:
                    folders.append(each.path)
                    continue
                name = folder or each.path
                of_artifact = f"{_OF_ARTIFACT}{name}."
                metadata: dict[str, object] = {
                    key.removeprefix(of_artifact): value
                    for key, value in run.data.tags.items()
                    if key.startswith(of_artifact)
                }
                metadata["mlflow.file_size"] = each.file_size
                path = f"{run.info.artifact_uri}/{each.path}"
                found[name] = TrackerArtifact(name, path, metadata)
        return found

    def add_metadata(self, run_id: str, **kwargs: object) -> None:
        """Record values as tags. MLflow tags are strings."""
        run = self._run(run_id)
        for key, value in kwargs.items():
            self._client.set_tag(run.info.run_id, key, value)

    def metadata(self, run_id: str) -> dict[str, object]:
        """Return a run's tags, without MLflow's own tags."""
        run = self._find_run(run_id)
        tags = run.data.tags if run is not None else {}
        return {key: value for key, value in tags.items() if not key.startswith(_INTERNAL)}

    def add_source(self, run_id: str, source_id: str, artifact_name: str | None = None) -> None:
        """Record that a run is derived from another run."""
        run = self._run(run_id)
        pairs = _sources(run)
        if (source_id, artifact_name) not in pairs:
            text = json.dumps([*pairs, (source_id, artifact_name)])
            self._client.set_tag(run.info.run_id, _SOURCES, text)

    def sources(self, run_id: str, artifact_name: str | None = None) -> list[TrackerSource]:
        """Return a run's sources. If an artifact name is given, return only the sources from which
        that artifact was used.
        """
        return [
            TrackerSource(source, artifact)
            for source, artifact in _sources(self._find_run(run_id))
            if artifact_name is None or artifact == artifact_name
        ]

    def run_ids(self, parent_run_id: str | None = None, **kwargs: str) -> list[str]:
        """Return the ids of the newest 1,000 runs. With `parent_run_id`, return only the ids of the
        runs that are derived from this parent.
        """
        del kwargs
        return [
            run.info.run_name
            for run in self._client.search_runs([self._experiment], max_results=_MAX_RUNS)
            if not parent_run_id or parent_run_id in [source for source, _ in _sources(run)]
        ]

    def _find_run(self, run_id: str) -> Any:
        """Return the oldest run with this id, or None."""
        name = run_id.replace("'", "\\'")
        runs = self._client.search_runs(
            [self._experiment],
            filter_string=f"tags.`mlflow.runName` = '{name}'",
            order_by=["attributes.start_time ASC", "attributes.run_id ASC"],
            max_results=1,
        )
        return runs[0] if runs else None

    def _run(self, run_id: str) -> Any:
        """Return a run, and create it if necessary. If several ranks create the run at the same
        time, all of them use the oldest one.
        """
        found = self._find_run(run_id)
        if found is None:
            made = self._client.create_run(self._experiment, run_name=run_id)
            found = self._find_run(run_id) or made
            if found.info.run_id != made.info.run_id:
                self._client.delete_run(made.info.run_id)
        return found


def _sources(run: Any) -> list[tuple[str, str | None]]:
    text = run.data.tags.get(_SOURCES, "") if run is not None else ""
    return [(source, artifact) for source, artifact in json.loads(text or "[]")]


def create(config: str | None) -> MLflowTracker:
    """Return the tracker that is configured in the [tracker:mlflow] section of a settings file.

    The section's keys are `tracking_uri` (MLflow's own setting, such as MLFLOW_TRACKING_URI, by
    default), `experiment_name` (overridden by TORCHX_TRACKING_EXPERIMENT_NAME) and
    `artifact_location`.

    Args:
        config: the settings file or its directory, or None for the default settings files.

    Raises:
        UsageError: if mlflow is not installed, or the file is invalid.
    """
    try:
        from mlflow import MlflowClient
    except ImportError:
        raise UsageError(
            "tracker mlflow requires the mlflow package", hint="pip install 'mlflow-skinny>=2.14'"
        ) from None
    env = environment.read()
    section = settings.load(_environment(config) if config else env).section("tracker:mlflow")
    default = f"default-experiment/{getpass.getuser()}/{socket.getfqdn()}"
    name = env.get("TORCHX_TRACKING_EXPERIMENT_NAME", section.get("experiment_name", default))
    client = MlflowClient(section.get("tracking_uri"))
    return MLflowTracker(client, name, section.get("artifact_location"))


def _environment(config: str) -> Environment:
    """Return an environment in which settings are only read from the given file or directory."""
    paths = [os.path.join(config, name) for name in settings.NAMES]
    path = next(filter(os.path.isfile, paths), config)
    return Environment({"RELIGHTCONFIG": path})
