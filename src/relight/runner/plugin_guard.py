"""Guards against errors in schedulers from other packages. Exceptions, and return values that
violate `schedulers/api.py`, are converted to one-line errors that name the scheduler.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from relight.base.errors import MachineError, RelightError
from relight.base.plugins import one_line
from relight.job import handles
from relight.job.app import AppState
from relight.job.handles import SESSION, Handle
from relight.schedulers.api import (
    AppStatus,
    Capabilities,
    JobSummary,
    Option,
    ReplicaStatus,
    Request,
    Scheduler,
)

_SHOWN = 60
_KINDS = (str, int, float, bool, list, dict)


def guarded(name: str, scheduler: Scheduler) -> Scheduler:
    """Wrap a scheduler from another package so that it only raises RelightErrors.

    Raises:
        MachineError: if part of the interface is missing.
    """
    if type(scheduler).__module__.startswith("relight."):
        return scheduler
    missing = [part for part in _PARTS if " " not in part and not hasattr(scheduler, part)]
    if missing:
        raise MachineError(f"the scheduler plug-in {name} lacks {', '.join(missing)}", hint=_HINT)
    return cast(Scheduler, _Guarded(name, scheduler))


class _Guarded:
    def __init__(self, name: str, scheduler: Scheduler) -> None:
        self._name, self._scheduler = name, scheduler

    def __getattr__(self, part: str) -> Any:
        found = getattr(self._scheduler, part)
        return self._guard(part, found) if callable(found) else self._checked(part, found)

    def _guard(self, verb: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                found = function(*args, **kwargs)
            except RelightError:
                raise
            except Exception as error:
                raise self._error(verb, error) from error
            found = self._checked(verb, found)
            return self._guard_lines(found) if verb == "logs" else found

        return call

    def _guard_lines(self, found: Iterable[Any]) -> Iterable[str]:
        try:
            for line in found:
                yield self._checked("a line of logs", line)
        except RelightError:
            raise
        except Exception as error:
            raise self._error("logs", error) from error

    def _checked(self, part: str, found: Any) -> Any:
        is_right, expected = _PARTS.get(part, _ANYTHING)
        if is_right(found):
            return found
        shown = repr(found)
        if len(shown) > _SHOWN or "\n" in shown:  # a request may contain secrets
            shown = f"a {type(found).__name__}"
        raise MachineError(
            f"the scheduler {self._name} has {shown} as its {part}: expected {expected}", hint=_HINT
        )

    def _error(self, verb: str, error: Exception) -> MachineError:
        return MachineError(f"the scheduler {self._name} failed in {verb}: {one_line(error)}")


_HINT = (
    "this is an error in the package that contains the scheduler; relight.schedulers.api "
    "defines the interface"
)


def _are_options(found: Any) -> bool:
    return isinstance(found, Sequence) and all(
        isinstance(each, Option) and each.kind in _KINDS for each in found
    )


def _is_request(found: Any) -> bool:
    try:
        return (
            isinstance(found, Request)
            and isinstance(found.text, str)
            and bool(json.dumps(found.body))
        )
    except (TypeError, ValueError):
        return False


def _is_id(found: Any) -> bool:
    if not isinstance(found, str) or "/" in found:
        return False
    return handles.is_whole(str(Handle("any", SESSION, found))) and not found.endswith(":")


def _are_statuses(found: Any) -> bool:
    return isinstance(found, Mapping) and all(
        isinstance(each, AppStatus)
        and isinstance(each.state, AppState)
        and all(isinstance(its, ReplicaStatus) for its in each.replicas)
        for each in found.values()
    )


def _are_listed(found: Any) -> bool:
    return isinstance(found, Sequence) and all(
        isinstance(each, JobSummary) and isinstance(each.state, AppState) for each in found
    )


_ANYTHING: tuple[Callable[[Any], bool], str] = (lambda _: True, "")
_PARTS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "name": (lambda found: isinstance(found, str), "a string"),
    "options": (_are_options, "a sequence of Option, each of kind str, int, float, bool, list or "
                "dict"),
    "capabilities": (lambda found: isinstance(found, Capabilities), "Capabilities"),
    "affinity": (lambda found: isinstance(found, int), "a whole number"),
    "render": (_is_request, "a Request whose text is a str and whose body is JSON-serializable"),
    "submit": (_is_id, "a word that contains no slash and does not end with a colon"),
    "status": (_are_statuses, "a mapping of ids to AppStatus"),
    "logs": (lambda found: isinstance(found, Iterable), "an iterator of lines"),
    "a line of logs": (lambda found: isinstance(found, str), "a str"),
    "cancel": _ANYTHING,
    "delete": _ANYTHING,
    "list": (_are_listed, "a sequence of JobSummary"),
    "close": _ANYTHING,
}  # fmt: skip
"""The members of a scheduler. For each member, there is a function that checks the member or its
result, and a description of the requirement.
"""
