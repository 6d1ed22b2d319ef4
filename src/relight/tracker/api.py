"""Defines trackers, and the run that they record for the current process.

Names and meanings are the same as in TorchX (torchx.tracker.api, 0.7), so that TorchX trackers work
in relight and vice versa. The run id is the value of TORCHX_JOB_ID, such as `slurm://torchx/1234`.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relight.base import env as environment

_UNDEFINED = "<UNDEFINED>"
"""The id of a run that no scheduler has started. It is the same as in TorchX."""


@dataclass(frozen=True)
class TrackerSource:
    """A source that a run is derived from. It can be another run, or anything else that has an id.
    The `artifact_name` field is the artifact that the run has used.
    """

    source_run_id: str
    artifact_name: str | None


@dataclass(frozen=True)
class TrackerArtifact:
    """A file or directory that a run has created."""

    name: str
    path: str
    metadata: Mapping[str, object] | None


@dataclass(frozen=True)
class Lineage:
    """A run's sources, and the runs that are derived from it."""

    run_id: str
    sources: Sequence[TrackerSource]
    descendants: Sequence[str]


class TrackerBase(ABC):
    """The base class for trackers, which store records of runs. A tracker plug-in is an entry point
    in the group `relight.tracker` or `torchx.tracker`. The entry point refers to a function that
    takes a configuration (a string or None) and returns a tracker.
    """

    @abstractmethod
    def add_artifact(
        self, run_id: str, name: str, path: str, metadata: Mapping[str, object] | None = None
    ) -> None:
        """Record an artifact. It replaces an earlier artifact with the same name."""

    @abstractmethod
    def artifacts(self, run_id: str) -> Mapping[str, TrackerArtifact]:
        """Return a run's artifacts, by name."""

    @abstractmethod
    def add_metadata(self, run_id: str, **kwargs: object) -> None:
        """Record values. They replace earlier values with the same names."""

    @abstractmethod
    def metadata(self, run_id: str) -> Mapping[str, object]:
        """Return a run's values, by name."""

    @abstractmethod
    def add_source(self, run_id: str, source_id: str, artifact_name: str | None = None) -> None:
        """Record that a run is derived from another run."""

    @abstractmethod
    def sources(self, run_id: str, artifact_name: str | None = None) -> Iterable[TrackerSource]:
        """Return a run's sources. If an artifact name is given, return only the sources from which
        that artifact was used.
        """

    @abstractmethod
    def run_ids(self, **kwargs: str) -> Iterable[str]:
        """Return the ids of all runs or, with `parent_run_id`, of the runs that are derived from
        this parent.
        """

    def lineage(self, run_id: str) -> Lineage:
        """Return a run's sources, and the runs that are derived from it."""
        sources = tuple(self.sources(run_id))
        return Lineage(run_id, sources, tuple(self.run_ids(parent_run_id=run_id)))


@dataclass(frozen=True)
class AppRunTrackableSource:
    """A source that this run is derived from. The `artifact_name` field is the artifact that this
    run used.
    """

    parent: "AppRun"
    artifact_name: str | None


@dataclass(frozen=True)
class AppRun:
    """A run, and the trackers that record it."""

    id: str
    backends: Sequence[Any]

    @staticmethod
    def run_from_env() -> "AppRun":
        """Return this process's run, as `app_run_from_env` does."""
        return app_run_from_env()

    def job_id(self) -> str:
        """Return the run's id."""
        return self.id

    def add_metadata(self, **kwargs: object) -> None:
        """Record values with all trackers."""
        for backend in self.backends:
            backend.add_metadata(self.id, **kwargs)

    def add_artifact(
        self, name: str, path: str, metadata: Mapping[str, object] | None = None
    ) -> None:
        """Record an artifact with all trackers.

        Args:
            name: the artifact's name, such as `model`.
            path: the artifact's location. A tracker may copy the artifact from there.
            metadata: additional information about the artifact.
        """
        for backend in self.backends:
            backend.add_artifact(self.id, name, path, metadata)

    def add_source(self, source_id: str, artifact_name: str | None = None) -> None:
        """Record with all trackers that this run is derived from another run, or from anything else
        that has an id.
        """
        for backend in self.backends:
            backend.add_source(self.id, source_id, artifact_name)

    def sources(self) -> list[AppRunTrackableSource]:
        """Return the sources that the first tracker has recorded for this run."""
        return [
            AppRunTrackableSource(AppRun(each.source_run_id, self.backends), each.artifact_name)
            for backend in self.backends[:1]
            for each in backend.sources(self.id)
        ]


@functools.cache
def app_run_from_env() -> AppRun:
    """Return this process's run. Every call returns the same object.

    The run's id, its trackers and its parent (recorded as a source) are taken from
    TORCHX_JOB_ID, TORCHX_TRACKERS, TORCHX_TRACKER_<NAME>_CONFIG and TORCHX_PARENT_RUN_ID. `relight
    submit`, `relight run --tracker` and `torchx run` set these variables. Without these variables,
    nothing is recorded. A tracker that fails to load is skipped with a warning.
    """
    from relight.tracker import backends

    env = environment.read()
    run = AppRun(env.get("TORCHX_JOB_ID", _UNDEFINED), backends.configured(env.variables))
    parent = env.get("TORCHX_PARENT_RUN_ID")
    if parent:
        run.add_source(parent)
    return run
