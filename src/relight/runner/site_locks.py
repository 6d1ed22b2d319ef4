"""Finds names in the site's `locked` list that have no effect, such as misspelled ones."""

from collections.abc import Iterator, Mapping, Sequence

from relight.base.text import did_you_mean
from relight.flags.site import CONF, Site
from relight.flags.spec import FLAG_BY_NAME
from relight.rendezvous.conf import KEYS
from relight.runner.options import named
from relight.schedulers import registry
from relight.schedulers.api import Option

_SCHEDULERS = "schedulers."
_VALID = "flags of relight run, keys of --rdzv-conf, and schedulers.NAME.OPTION"


def unknown(site: Site, options: Mapping[str, Sequence[Option]]) -> Iterator[str]:
    """Yield a note for each locked name that doesn't exist.

    Args:
        site: the site's configuration.
        options: the options of the schedulers to check, by scheduler name.
    """
    keys = [key.name for key in KEYS]
    for name in sorted(site.locked):
        known, own = list[str](), name
        if name.startswith(_SCHEDULERS):
            scheduler, _, option = name.removeprefix(_SCHEDULERS).partition(".")
            prefix = f"{_SCHEDULERS}{scheduler}."
            if scheduler not in (*registry.names(), *registry.ALIASES):
                known = [f"{_SCHEDULERS}{each}.{option}" for each in registry.names()]
            elif scheduler not in options or any(named(x, {option: 1}) for x in options[scheduler]):
                continue
            else:
                known = [prefix + each.name for each in options[scheduler]]
        else:
            own = name.removeprefix("run.").removeprefix(f"{CONF}.")
            if own in FLAG_BY_NAME or own in keys:
                continue
            known = [*FLAG_BY_NAME, *keys]
        hint = did_you_mean(own, known, f"valid names: {_VALID}")
        yield f"{site.path}: locked: there is no {name}, so this has no effect; {hint}"
