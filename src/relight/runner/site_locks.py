"""Finds names in the site's `locked` list that have no effect, such as misspelled ones."""

from collections.abc import Iterator

from relight.base.errors import RelightError
from relight.base.text import did_you_mean
from relight.flags.site import CONF, Site
from relight.flags.spec import FLAG_BY_NAME
from relight.rendezvous.conf import KEYS
from relight.runner.options import named
from relight.schedulers import registry

_SCHEDULERS = "schedulers."
_VALID = "flags of relight run, keys of --rdzv-conf, and schedulers.NAME.OPTION"


def unknown(site: Site) -> Iterator[tuple[str, str]]:
    """Yield each locked name that doesn't exist, as a message and a hint."""
    for name in sorted(site.locked):
        if known := _alternatives(name):
            own = name if name.startswith(_SCHEDULERS) else _plain(name)
            hint = did_you_mean(own, known, f"valid names: {_VALID}")
            yield f"locked: there is no {name}, so this has no effect", hint


def _alternatives(name: str) -> list[str]:
    """Return the valid names to choose from for an unknown name. The list is empty for a name that
    exists.
    """
    if not name.startswith(_SCHEDULERS):
        known = [*FLAG_BY_NAME, *(key.name for key in KEYS)]
        return [] if _plain(name) in known else known
    scheduler, _, option = name.removeprefix(_SCHEDULERS).partition(".")
    if scheduler not in (*registry.names(), *registry.ALIASES):
        return [f"{_SCHEDULERS}{each}.{option}" for each in registry.names()]
    try:
        options = registry.find(scheduler).options
    except RelightError:  # a broken plug-in
        return []
    is_known = any(named(each, {option: 1}) for each in options)
    return [] if is_known else [f"{_SCHEDULERS}{scheduler}.{each.name}" for each in options]


def _plain(name: str) -> str:
    return name.removeprefix("run.").removeprefix(f"{CONF}.")
