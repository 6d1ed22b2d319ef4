"""The kinds of objects that the user can select with `-cfg kind=NAME`."""

from relight.schedulers.kubernetes.job import IndexedJob
from relight.schedulers.kubernetes.jobset import JobSet
from relight.schedulers.kubernetes.kind import Kind
from relight.schedulers.kubernetes.trainjob import TrainJob
from relight.schedulers.kubernetes.volcano import Volcano

DEFAULT: Kind = IndexedJob()
KINDS: dict[str, Kind] = {kind.name: kind for kind in (DEFAULT, JobSet(), Volcano(), TrainJob())}
