"""What one node runs of a job: made from the command line by `launch`, carried out by `agent`."""

from relight.core.commands import Command
from relight.core.group_types import GroupSettings
from relight.typed import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from relight.host.warm_spawner import Workplace
    from relight.rendezvous.meeting import Meeting


class NodeJob(NamedTuple):
    """The workers' command and number, and how the nodes meet. Times in seconds.

    `store_host` and `store_port` are where the workers' store listens. `meeting` is None for a job
    of one node. A worker that is stuck in the system for `stuck_after_s`, unless that is 0, has
    failed. `cpus` has one affinity mask a worker, or is empty. `run_directory` is where logs
    are kept, `scratch` where a directory may be made that is removed at the end; either may be
    empty. `workplace` is for --preload.
    """

    command: Command
    nproc: int
    store_host: str
    store_port: int
    cpus: tuple[frozenset[int], ...]
    grace_s: float
    stuck_after_s: float
    run_directory: str
    scratch: str
    settings: GroupSettings
    meeting: "Meeting | None"
    facts: dict[str, str]
    workplace: "Workplace | None"
