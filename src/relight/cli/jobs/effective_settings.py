"""`relight configure --show`: the values in effect on this machine, with their sources."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from relight.base.env import Environment
from relight.base.errors import RelightError
from relight.cli.jobs.common import aligned
from relight.flags import site as sites
from relight.flags.arguments import parse
from relight.flags.site import CONF, PER_JOB, Site
from relight.flags.spec import FLAGS
from relight.flags.usage import shown_default
from relight.runner import options, settings, site_locks
from relight.schedulers import registry

Files = Mapping[str, Mapping[str, Mapping[str, str]]]
"""The sections of each settings file, keyed by path. The first file takes precedence."""
_DEFAULT = "default"


class Setting(NamedTuple):
    """A setting's effective value, formatted as a user would type it, and the value's source."""

    name: str
    value: str
    origin: str
    locked: bool = False


def lines(env: Environment, schedulers: Sequence[str], *, every: bool) -> list[str]:
    """Return the values in effect as lines of text.

    Args:
        env: the environment.
        schedulers: the schedulers to show, or empty to show all.
        every: whether to include defaults.

    Raises:
        RelightError: if a value is invalid, or a scheduler is unknown.
    """
    site, files = sites.load(env), settings.layers(env)
    groups = {"run": _run_settings(env, site)}
    for name in schedulers or registry.names():
        try:
            groups[name] = _scheduler_settings(name, files, site)
        except RelightError:
            if schedulers:
                raise  # a broken plug-in must not hide the others
    names = dict.fromkeys(name for each in (*files.values(), site.sections) for name in each)
    for name in names:
        if name not in groups:
            groups[name] = _section_settings(name, files, site)
    found = []
    for group, values in groups.items():
        shown = [each for each in values if every or each.locked or each.origin != _DEFAULT]
        found += _table(group, shown)
    known = registry.names()
    unknown = [*site.ignored, *(f"schedulers.{x}" for x in site.schedulers if x not in known)]
    found += [f"ignored in {site.path}: {', '.join(unknown)}"] if unknown else []
    found += [f"{site.path}: {what}; {hint}" for what, hint in site_locks.unknown(site)]
    return found or ["no values are set; all options have their defaults"]


def _run_settings(env: Environment, site: Site) -> list[Setting]:
    values = parse([], env, FLAGS, site).values  # rejects invalid or locked values
    found = []
    for flag in FLAGS:
        variable = flag.source
        text = env.variables.get(variable)
        locked = site.locks(flag.name)
        if flag.name == CONF:
            found += _conf_settings(values[flag.field], site, variable)
        elif text is not None:
            found.append(Setting(flag.name, text, variable, locked))
        elif flag.name in site.run:
            found.append(Setting(flag.name, site.run[flag.name], site.path, locked))
        elif flag.name not in PER_JOB:
            found.append(Setting(flag.name, shown_default(flag), _DEFAULT, locked))
    return found


def _conf_settings(given: Sequence[tuple[str, str]], site: Site, variable: str) -> list[Setting]:
    pairs = {key: (value, site.path) for key, value in site.conf}
    pairs |= {key: (value, variable) for key, value in given}
    return [
        Setting(f"{CONF} {key}", value, origin, site.locks_conf(key))
        for key, (value, origin) in pairs.items()
    ]


def _scheduler_settings(name: str, files: Files, site: Site) -> list[Setting]:
    """Return a scheduler's options. Like in `Runner`, an alias takes precedence over the
    scheduler's own name.
    """
    scheduler = registry.find(name)
    known = [option._replace(required=False) for option in scheduler.options]
    of_site = options.site_options(site, scheduler.name, name)
    layers = [
        (path, sections.get(each, {}))
        for each in dict.fromkeys((name, scheduler.name))
        for path, sections in files.items()
    ]
    for path, section in layers:
        options.resolve(name, known, {}, section, path, of_site)  # rejects invalid values
    layers.append((site.path, of_site.values))
    found = []
    for option in known:
        values = [(options.named(option, section), path) for path, section in layers]
        default = "" if option.default is None else option.default, _DEFAULT
        value, origin = next((each for each in values if each[0] is not None), default)
        locked = options.named(option, dict.fromkeys(of_site.locked, True)) is not None
        found.append(Setting(option.name, str(value), origin, locked))
    return found


def _section_settings(name: str, files: Files, site: Site) -> list[Setting]:
    layers = [(site.path, site.sections), *reversed(list(files.items()))]
    found: dict[str, Setting] = {}
    for path, sections in layers:
        for key, value in sections.get(name, {}).items():
            found[key] = Setting(key, value, path)
    return list(found.values())


def _table(title: str, rows: Sequence[Setting]) -> list[str]:
    lines = aligned([(row.name, row.value, row.origin + " (locked)" * row.locked) for row in rows])
    return [title, *(f"  {line}" for line in lines)] if rows else []
