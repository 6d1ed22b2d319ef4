"""Trackers, and the run of this process as they see it.

Names and meanings are those of TorchX (torchx.tracker.api, 0.7), so that its trackers work here,
and these there. A run id is what TORCHX_JOB_ID says, such as `slurm://torchx/1234`.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relight.base import env as environment

_UNDEFINED = "<UNDEFINED>"
"""The id of a run that no scheduler has started, as in TorchX."""


@dataclass(frozen=True)
class TrackerSource:
    """A source of a run: another run, or anything with an id. `artifact_name` is the part used."""

    source_run_id: str
    artifact_name: str | None


@dataclass(frozen=True)
class TrackerArtifact:
    """A file or directory created by a run."""

    name: str
    path: str
    metadata: Mapping[str, object] | None


@dataclass(frozen=True)
class Lineage:
    """The sources of a run, and the runs derived from it."""

    run_id: str
    sources: Sequence[TrackerSource]
    descendants: Sequence[str]


class TrackerBase(ABC):
    """Storage for the records of runs. A plug-in is a function that takes a configuration (a string
    or None) and returns one: an entry point of the group `relight.tracker` or `torchx.tracker`.
    """

    @abstractmethod
    def add_artifact(
        self, run_id: str, name: str, path: str, metadata: Mapping[str, object] | None = None
    ) -> None:
        """Record an artifact; a later one of the same name takes its place."""

    @abstractmethod
    def artifacts(self, run_id: str) -> Mapping[str, TrackerArtifact]:
        """Return the artifacts of a run, by name."""

    @abstractmethod
    def add_metadata(self, run_id: str, **kwargs: object) -> None:
        """Record values; a later one of the same name takes its place."""

    @abstractmethod
    def metadata(self, run_id: str) -> Mapping[str, object]:
        """Return the values of a run, by name."""

    @abstractmethod
    def add_source(self, run_id: str, source_id: str, artifact_name: str | None = None) -> None:
        """Record that a run comes from another one."""

    @abstractmethod
    def sources(self, run_id: str, artifact_name: str | None = None) -> Iterable[TrackerSource]:
        """Return the sources of a run; with a name, only those whose part of that name was used."""

    @abstractmethod
    def run_ids(self, **kwargs: str) -> Iterable[str]:
        """Return the ids of all runs, or with `parent_run_id` of those that come from that one."""

    def lineage(self, run_id: str) -> Lineage:
        """Return the sources of a run, and the runs derived from it."""
        sources = tuple(self.sources(run_id))
        return Lineage(run_id, sources, tuple(self.run_ids(parent_run_id=run_id)))


@dataclass(frozen=True)
class AppRunTrackableSource:
    """A run that is a source of this one. `artifact_name` is the part used."""

    parent: "AppRun"
    artifact_name: str | None


@dataclass(frozen=True)
class AppRun:
    """A run, and the trackers that record it."""

    id: str
    backends: Sequence[Any]

    @staticmethod
    def run_from_env() -> "AppRun":
        """Return the run of this process, as `app_run_from_env` does."""
        return app_run_from_env()

    def job_id(self) -> str:
        """Return the id."""
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
            name: of the artifact, such as `model`.
            path: where it is; a tracker may copy it from there.
            metadata: more about it.
        """
        for backend in self.backends:
            backend.add_artifact(self.id, name, path, metadata)

    def add_source(self, source_id: str, artifact_name: str | None = None) -> None:
        """Record with all trackers that this run comes from another one, or from something else
        that has an id.
        """
        for backend in self.backends:
            backend.add_source(self.id, source_id, artifact_name)

    def sources(self) -> list[AppRunTrackableSource]:
        """Return what this run comes from, as the first tracker says."""
        if not self.backends:
            return []
        return [
            AppRunTrackableSource(AppRun(each.source_run_id, self.backends), each.artifact_name)
            for each in self.backends[0].sources(self.id)
        ]


@functools.cache
def app_run_from_env() -> AppRun:
    """Return the run of this process, always the same object.

    Its id, its trackers and its parent, which is recorded as its source, come from TORCHX_JOB_ID,
    TORCHX_TRACKERS, TORCHX_TRACKER_<NAME>_CONFIG and TORCHX_PARENT_RUN_ID, set by `relight submit`,
    `relight run --tracker` and `torchx run`. Without these variables, nothing is recorded. A
    tracker that fails to load is skipped with a warning.
    """
    from relight.tracker import backends

    env = environment.read()
    run = AppRun(env.get("TORCHX_JOB_ID", _UNDEFINED), backends.configured(env.variables))
    parent = env.get("TORCHX_PARENT_RUN_ID")
    if parent:
        run.add_source(parent)
    return run
