"""Turns exceptions of other packages' schedulers into one-line errors that name the scheduler."""

from collections.abc import Callable, Iterator
from typing import Any, cast

from relight.errors import MachineError, RelightError
from relight.schedulers.api import Scheduler


def guarded(name: str, scheduler: Scheduler) -> Scheduler:
    """Return a scheduler that raises only RelightErrors, if it belongs to another package."""
    if type(scheduler).__module__.startswith("relight."):
        return scheduler
    return cast(Scheduler, _Guarded(name, scheduler))


class _Guarded:
    def __init__(self, name: str, scheduler: Scheduler) -> None:
        self._name, self._scheduler = name, scheduler

    def __getattr__(self, verb: str) -> Any:
        try:
            found = getattr(self._scheduler, verb)
        except Exception as error:
            raise self._error(verb, error) from error
        return self._guard(verb, found) if callable(found) else found

    def _guard(self, verb: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                found = function(*args, **kwargs)
            except RelightError:
                raise
            except Exception as error:
                raise self._error(verb, error) from error
            return self._guard_lines(found) if verb == "logs" else found

        return call

    def _guard_lines(self, found: Iterator[str]) -> Iterator[str]:
        try:
            yield from found
        except RelightError:
            raise
        except Exception as error:
            raise self._error("logs", error) from error

    def _error(self, verb: str, error: Exception) -> MachineError:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        return MachineError(f"the scheduler {self._name} failed in {verb}: {why}")
