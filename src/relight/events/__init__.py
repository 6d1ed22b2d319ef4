"""The events of a job, for `--event-log`, `relight events`, handlers and metrics.

`event_types` has one small immutable type per event. `event_text` has their descriptions,
`event_schema` has the documentation of their fields (the source for docs/events.md), and
`event_lines` reads and filters the lines of a log.

Users import the types from here.

A new event needs a type, a description and a schema entry. The code that detects it calls
`Journal.record`.
"""

from relight.events.event_types import (
    CheckpointFound as CheckpointFound,
)
from relight.events.event_types import (
    Ended as Ended,
)
from relight.events.event_types import (
    Event as Event,
)
from relight.events.event_types import (
    FailureNoticed as FailureNoticed,
)
from relight.events.event_types import (
    Formed as Formed,
)
from relight.events.event_types import (
    GroupBegan as GroupBegan,
)
from relight.events.event_types import (
    GroupStep as GroupStep,
)
from relight.events.event_types import (
    GroupStopped as GroupStopped,
)
from relight.events.event_types import (
    HealthChecked as HealthChecked,
)
from relight.events.event_types import (
    InternalErrorEvent as InternalErrorEvent,
)
from relight.events.event_types import (
    LoggedEvent as LoggedEvent,
)
from relight.events.event_types import (
    NotRestarting as NotRestarting,
)
from relight.events.event_types import (
    PreloadReady as PreloadReady,
)
from relight.events.event_types import (
    PreloadStarted as PreloadStarted,
)
from relight.events.event_types import (
    PreloadUnfit as PreloadUnfit,
)
from relight.events.event_types import (
    PreloadWithout as PreloadWithout,
)
from relight.events.event_types import (
    ProcessRemains as ProcessRemains,
)
from relight.events.event_types import (
    RanksSlow as RanksSlow,
)
from relight.events.event_types import (
    Restarting as Restarting,
)
from relight.events.event_types import (
    SignalReceived as SignalReceived,
)
from relight.events.event_types import (
    SpawnerLost as SpawnerLost,
)
from relight.events.event_types import (
    StateChanged as StateChanged,
)
from relight.events.event_types import (
    StepsReported as StepsReported,
)
from relight.events.event_types import (
    StoreReached as StoreReached,
)
from relight.events.event_types import (
    Tick as Tick,
)
from relight.events.event_types import (
    WarmProcessTaken as WarmProcessTaken,
)
from relight.events.event_types import (
    WarmProcessUnfit as WarmProcessUnfit,
)
from relight.events.event_types import (
    WorkerExited as WorkerExited,
)
from relight.events.event_types import (
    WorkersFrozen as WorkersFrozen,
)
from relight.events.event_types import (
    WorkerStarted as WorkerStarted,
)
from relight.events.event_types import (
    WorkersWarm as WorkersWarm,
)
