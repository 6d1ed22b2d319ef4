"""Applies the site's `locked` list to a job, and finds names in it that have no effect, such as
misspelled ones.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from relight.base.env import Environment
from relight.base.errors import RelightError, UsageError
from relight.base.text import did_you_mean
from relight.flags.arguments import parse
from relight.flags.rdzv_conf import KEYS
from relight.flags.site import CONF, Site
from relight.flags.spec import FLAG_BY_NAME, FLAGS
from relight.job.app import AppDef
from relight.runner import options
from relight.schedulers import registry
from relight.schedulers.api import Locks, Scheduler

_SCHEDULERS = "schedulers."
DEFAULTS = ("submit.", "components.")
"""The beginnings of the names of `relight submit`'s defaults, which can't be locked."""
_VALID = "flags of relight run, keys of --rdzv-conf, and schedulers.NAME.OPTION"


def check(name: str, found: Scheduler, app: AppDef, cfg: Mapping[str, Any], site: Site) -> Locks:
    """Reject a job that sets a locked flag of `relight run` with a variable, or that changes what a
    locked option of the scheduler sets in another way, such as with words for sbatch. The agent
    would only reject the variable on its node, after the job has waited for one. Return the
    scheduler's locked options.

    Args:
        name: the scheduler's name.
        found: the scheduler.
        app: the job.
        cfg: the scheduler's options, which may include variables (`env`).
        site: the site's configuration.

    Raises:
        UsageError: as for the command line.
    """
    _check_variables(app, cfg, site)
    own = options.site_options(site, found.name, name)
    if not own.locked:
        return Locks()
    locks = options.locks(name, found.options, own)
    for what, option in getattr(found, "bypasses", lambda *_: ())(app, cfg, locks):
        raise bypassed(what, name, option, cfg, site)
    return locks


def bypassed(what: str, name: str, option: str, cfg: Mapping[str, Any], site: Site) -> UsageError:
    """Return the error for something that changes what a scheduler's locked option sets."""
    to = "" if cfg[option] is None else f" to {cfg[option]}"
    return UsageError(
        f"{what}: {name}'s option {option} is locked{to} by {site.path}",
        hint="leave it out, or ask your cluster administrator",
    )


def _check_variables(app: AppDef, cfg: Mapping[str, Any], site: Site) -> None:
    if not site.locked:
        return
    flags = [flag for flag in FLAGS if site.locks(flag.name) or flag.name == CONF]
    given = cfg.get("env")
    common = given if isinstance(given, Mapping) else {}
    for role in app.roles:
        parse([], Environment({**common, **role.env}), flags, site)


def unknown(site: Site) -> Iterator[tuple[str, str]]:
    """Yield each locked name that has no effect, as a message and a hint."""
    for what in unlockable(site):
        yield what, f"can be locked: {_VALID}"
    for name in sorted(site.locked):
        if not name.startswith(DEFAULTS) and (known := _alternatives(name)):
            own = name if name.startswith(_SCHEDULERS) else plain_name(name)
            hint = did_you_mean(own, known, f"valid names: {_VALID}")
            yield f"locked: there is no {name}, so this has no effect", hint


def unlockable(site: Site) -> Iterator[str]:
    """Yield a note for each locked default of `relight submit`, such as `submit.scheduler`. These
    names exist, so whoever relies on the lock would not suspect that it has no effect.
    """
    for name in sorted(site.locked):
        if name.startswith(DEFAULTS):
            yield f"locked: {name} can't be locked, so this has no effect"


def _alternatives(name: str) -> list[str]:
    """Return the valid names to choose from for an unknown name. The list is empty for a name that
    exists.
    """
    if not name.startswith(_SCHEDULERS):
        known = [*FLAG_BY_NAME, *(key.name for key in KEYS)]
        return [] if plain_name(name) in known else known
    scheduler, _, option = name.removeprefix(_SCHEDULERS).partition(".")
    if scheduler not in (*registry.names(), *registry.ALIASES):
        return [f"{_SCHEDULERS}{each}.{option}" for each in registry.names()]
    try:
        own = registry.find(scheduler).options
    except RelightError:  # a broken plug-in
        return []
    is_known = any(options.named(each, {option: 1}) for each in own)
    return [] if is_known else [f"{_SCHEDULERS}{scheduler}.{each.name}" for each in own]


def plain_name(name: str) -> str:
    """Return the name of a flag or key without its section."""
    return name.removeprefix("run.").removeprefix(f"{CONF}.")
