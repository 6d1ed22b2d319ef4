"""Excludes nodes that have been recorded as bad (`health/bad_nodes`) when a job is submitted."""

from collections.abc import Sequence
from typing import Any

from relight.base.env import Environment
from relight.base.text import pluralize
from relight.flags.site import Site
from relight.health import bad_nodes
from relight.schedulers.api import Scheduler

_SHOWN = 5


def add(
    name: str, found: Scheduler, values: dict[str, Any], env: Environment, site: Site
) -> Sequence[str]:
    """Add the bad nodes to the scheduler's `exclude` option if the scheduler supports it. The
    option's value is a list or a comma-separated string.

    Args:
        name: the scheduler's name, as it appears in the agents' records of bad nodes.
        found: the scheduler. Its optional `excludable` method returns the nodes that it can
            exclude.
        values: the values of the scheduler's options (modified in place).
        env: the environment. It may set the directory.
        site: the site's configuration. It may also set the directory.

    Returns:
        A note for each excluded node, or one note that explains why no node is excluded.

    Raises:
        UsageError: if the directory name is invalid.
    """
    kind = next((each.kind for each in found.options if each.name == "exclude"), None)
    place = bad_nodes.directory(env, site) if kind in (str, list) else None
    if place is None:
        return []
    try:
        records, surplus = bad_nodes.current(place)
    except OSError as error:
        return [f"bad nodes are not avoided: can't read {place.path}: {error.strerror}"]
    known = [each for each in records if each.scheduler in (name, found.name)]
    excludable = getattr(found, "excludable", None)
    if known and excludable is not None:
        possible = excludable([each.name for each in known], values)
        known = [each for each in known if each.name in possible]
    if not known:
        return surplus
    names = [each.name for each in known]
    given = values.get("exclude")
    if kind is list:
        values["exclude"] = [*(given or ()), *(each for each in names if each not in (given or ()))]
    else:
        values["exclude"] = ",".join([*([given] if given else []), *names])
    notes = [*surplus, *(f"not using {each.describe()}" for each in known[:_SHOWN])]
    more = len(known) - _SHOWN
    notes += [f"not using {pluralize(more, 'more bad node')}"] if more > 0 else []
    return [*notes, f"to let jobs use it again: relight nodes forget {names[0]}"]
