"""The progress of the imports that make restarts warm, for `relight status`."""

from typing import NamedTuple

from relight.base.text import format_duration, pluralize

WAITING, IMPORTING, READY, UNUSABLE = "waiting", "importing", "ready", "unusable"
"""The states of the imports. While `waiting`, the imports have not started. While `importing`, they
are running. If `ready`, the next workers will have the modules. If `unusable`, workers will never
have them.
"""
_MAX_SHOWN = 5


class LeftOut(NamedTuple):
    """A module that each worker has to import itself, and the reason why."""

    module: str
    reason: str


class PreloadStatus(NamedTuple):
    """The imports on one node.

    The `modules` field is the number of known modules, and the `imported` field is how many of
    them have been imported. The `importing` field is the module that is being imported, and the
    `seconds` field is the time since the imports began. The `reason` field is the reason why
    restarts are cold.
    """

    state: str
    reason: str = ""
    modules: int = 0
    imported: int = 0
    importing: str = ""
    seconds: float = 0.0
    left_out: tuple[LeftOut, ...] = ()


def describe(status: PreloadStatus) -> list[str]:
    """Return the lines to show in `relight status`."""
    known = pluralize(status.modules, "module")
    if status.state == IMPORTING:
        took = format_duration(status.seconds)
        now = f", now {status.importing}" if status.importing else ""
        text = (
            f"{status.imported} of {known} imported in {took}{now}; restarts stay cold until all "
            "are imported"
        )
    elif status.state == READY:
        text = f"restarts are warm, {known} imported"
    else:
        text = f"restarts are cold: {status.reason}"
    lines = [f"preload: {text}"]
    shown = status.left_out[:_MAX_SHOWN]
    lines += [f"preload: left out {each.module}: {each.reason}" for each in shown]
    if more := len(status.left_out) - len(shown):
        lines.append(f"preload: left out {pluralize(more, 'more module')}")
    return lines
