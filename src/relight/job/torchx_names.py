"""Provides more names from TorchX's specs, so that only one line has to be changed in files that
use them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from relight.base.errors import UsageError
from relight.job import handles
from relight.job.app import NOTHING, AppDef, AppState, Resource
from relight.job.resources import named_resources

ALL = "all"
MISSING = "<MISSING>"
NONE = "<NONE>"
UNKNOWN = "<UNKNOWN>"
AppHandle = str
CfgVal = Any
ReplicaState = AppState
InvalidRunConfigException = UsageError
MalformedAppHandleException = UsageError
UnknownAppException = UsageError
UnknownSchedulerException = UsageError


class ParsedAppHandle(NamedTuple):
    """The parts of a handle."""

    scheduler_backend: str
    session_name: str
    app_id: str


class AppDryRunInfo:
    """The argument of `Role.pre_proc`. It contains the scheduler's rendered request (a mutable
    dict), and the app and the options that the request was rendered from.
    """

    def __init__(
        self,
        request: Any,
        fmt: Callable[[Any], str] = str,
        *,
        app: AppDef | None = None,
        cfg: Mapping[str, CfgVal] = NOTHING,
    ) -> None:
        self.request, self.app, self.cfg = request, app, cfg
        self._format = fmt

    def __repr__(self) -> str:
        return self._format(self.request)


def make_app_handle(scheduler_backend: str, session_name: str, app_id: str) -> AppHandle:
    """Build a job's handle."""
    return str(handles.Handle(scheduler_backend, session_name, app_id))


def parse_app_handle(app_handle: AppHandle) -> ParsedAppHandle:
    """Split a handle into its parts.

    Raises:
        UsageError: if the text is not a handle.
    """
    return ParsedAppHandle(*handles.to_handle(app_handle)[:3])


def materialize_appdef(
    cmpnt_fn: Callable[..., Any],
    cmpnt_args: Sequence[str],
    cmpnt_defaults: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> AppDef:
    """Call a component with command-line arguments, and return its app. `--help` prints the
    component's parameters and exits.

    Args:
        cmpnt_fn: the component.
        cmpnt_args: its arguments.
        cmpnt_defaults: defaults that replace those of the component.
        config: values that replace the defaults but not the arguments.

    Raises:
        UsageError: if an argument or the component is invalid.
    """
    from relight.job.components import AUTO, arguments, loading

    name = cmpnt_fn.__name__
    signature = arguments.read_signature(name, cmpnt_fn)
    try:
        args, kwargs = arguments.bind(signature, cmpnt_args, cmpnt_defaults or {}, config or {})
    except arguments.HelpAskedError:
        print(arguments.usage(signature, "").replace("  ", " ", 1))  # noqa: T201
        raise SystemExit(0) from None
    return loading.call(name, cmpnt_fn, args, kwargs, AUTO)


def get_named_resources(res: str) -> Resource:
    """Look up a resource by name.

    Raises:
        UsageError: if no resource has this name.
    """
    return named_resources[res]


def is_terminal(state: AppState) -> bool:
    """Return whether the state is final."""
    return state.is_over


def is_started(state: AppState) -> bool:
    """Return whether a job is running or has run."""
    return state is AppState.RUNNING or state.is_over
