"""Resolves the values of a scheduler's run options from the command line, Python and settings
files.
"""

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from relight.base.errors import UsageError
from relight.base.text import did_you_mean
from relight.flags.site import Site
from relight.job.components import decoding
from relight.schedulers import registry
from relight.schedulers.api import Locks, Option

_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
FIXME = "#FIXME"
_EXPECTED = {
    int: "a whole number", float: "a number", bool: "true or false", str: "a string",
    list: "a;b", dict: "k:v;k2:v2",
}  # fmt: skip


class SiteOptions(NamedTuple):
    """A scheduler's options from the site's file (flags/site), and the names of those that are
    locked.
    """

    values: Mapping[str, Any] = {}
    locked: Collection[str] = ()
    path: str = ""


def site_options(site: Site, own: str, name: str) -> SiteOptions:
    """Return a scheduler's options from the site's file, under any of its names.

    Args:
        site: the site's configuration.
        own: the scheduler's own name.
        name: the name that the user chose, which may be an alias. It takes precedence.
    """
    names = dict.fromkeys((own, *registry.aliases(name), name))
    return SiteOptions(
        {k: v for each in names for k, v in site.schedulers.get(each, {}).items()},
        frozenset().union(*(site.locked_options(each) for each in names)),
        site.path,
    )


_FORM = "-cfg name=value,name2=a;b, and -cfg 'name=\"--a=1;--b=2\"' for values with ="


def parse(text: str) -> dict[str, str]:
    """Parse `k=v,k2=a;b` into a dict of strings.

    Raises:
        UsageError: if the string does not have this form.
    """
    try:
        return decoding.pairs(text)
    except ValueError as error:
        raise UsageError(f"-cfg {text}: {error}", hint=_FORM) from None


def resolve(
    scheduler: str,
    options: Sequence[Option],
    given: Mapping[str, Any],
    settings: Mapping[str, Any] | None = None,
    where: str = "",
    site: SiteOptions = SiteOptions(),  # noqa: B008  # immutable
) -> tuple[dict[str, Any], list[str]]:
    """Return a value for each option, and a note for each setting that doesn't match any option.

    Args:
        scheduler: the scheduler's name, for messages.
        options: the scheduler's options.
        given: the options for this job. Names may be written like_this, like-this or likeThis.
        settings: options from a settings file. Unknown options produce a note, not an error.
        where: how messages should refer to the settings.
        site: the site's values and locks. All other sources take precedence over the site's values.

    Raises:
        UsageError: if an option is unknown, locked or missing, or has an invalid value.
    """
    known = {_plain(option.name): option for option in options}
    values = {option.name: option.default for option in options}
    notes: list[str] = []
    locked = {known[_plain(name)].name for name in site.locked if _plain(name) in known}
    sources = ((site.values, site.path), (settings or {}, where or "the settings"), (given, ""))
    for source, place in sources:
        here: dict[str, str] = {}
        for name, value in source.items():
            option = known.get(_plain(name))
            if option is None:
                error = _unknown(scheduler, name, known.values())
                if not place:
                    raise error
                if source is not site.values:  # the file may be for a different version
                    notes.append(f"in the settings: {error.message}")
                continue
            if option.name in here:
                raise UsageError(f"{here[option.name]} and {name} are the same option")
            here[option.name] = name
            if isinstance(value, str) and value.startswith(FIXME):
                continue  # a `relight configure` placeholder that has not been filled in
            try:
                found = _value(option, value, is_toml=source is site.values)
            except UsageError as wrong:
                if not place:
                    raise
                raise UsageError(f"in {place}: {wrong.message}", hint=wrong.hint) from None
            is_changed = source is not site.values and found != values[option.name]
            if is_changed and option.name in locked:
                where_set = f"in {place}: " if place else ""
                raise UsageError(
                    f"{where_set}{scheduler}'s option {option.name}={value}: locked to "
                    f"{values[option.name]} by {site.path}",
                    hint="leave it out, or ask your cluster administrator",
                )
            values[option.name] = found
    for option in options:
        if option.required and values[option.name] is None:
            raise UsageError(
                f"{scheduler} needs the option {option.name}: {option.help}",
                hint=f"-cfg {option.name}=…",
            )
    return values, notes


def locks(scheduler: str, options: Sequence[Option], site: SiteOptions) -> Locks:
    """Return the site's locks, with the names and types of the scheduler's options."""
    known = [option._replace(required=False) for option in options]
    values = resolve(scheduler, known, {}, site=site)[0]
    names = {_plain(name) for name in site.locked}
    return Locks(
        [option.name for option in known if _plain(option.name) in names],
        {x.name: values[x.name] for x in known if named(x, site.values) is not None},
    )


def named(option: Option, section: Mapping[str, Any]) -> Any:
    """Return an option's value in a settings section, or None."""
    for name, value in section.items():
        is_set = not (isinstance(value, str) and value.startswith(FIXME))
        if _plain(name) == _plain(option.name) and is_set:
            return value
    return None


def _typed(value: Any) -> Any:
    """Convert a TOML value to the text that `-cfg` would contain. Lists and tables are kept,
    but the values in them are converted.

    Raises:
        ValueError: if a list or table contains another one.
    """
    if isinstance(value, dict):
        return {name: _typed_item(each) for name, each in value.items()}
    return [_typed_item(each) for each in value] if isinstance(value, list) else _typed_item(value)


def _typed_item(value: Any) -> str:
    if not isinstance(value, (list, dict)):
        return ("false", "true")[value] if isinstance(value, bool) else str(value)
    raise ValueError


def _value(option: Option, value: Any, *, is_toml: bool) -> Any:
    if value is None or (isinstance(value, str) and value == "None"):
        return None
    try:
        value = _typed(value) if is_toml else value
        found = _decode(value, option.kind) if isinstance(value, str) else _check(value, option)
    except ValueError:
        raise UsageError(
            f"{option.name}={value}: expected {_EXPECTED[option.kind]}", hint=option.help
        ) from None
    if isinstance(found, str) and found.startswith("~/") and not option.is_remote:
        found = os.path.expanduser(found)  # the shell does not expand `~` inside an argument
    if option.choices and found not in option.choices:
        raise UsageError(
            f"{option.name}={value}: expected one of {', '.join(option.choices)}",
            hint=did_you_mean(str(found), option.choices),
        )
    return found


def _decode(text: str, kind: type) -> Any:
    if kind is bool:
        if text.lower() not in _TRUE + _FALSE:
            raise ValueError
        return text.lower() in _TRUE
    if kind is list:
        return [part.strip() for part in re.split("[,;]", text) if part.strip()]
    if kind is dict:
        found = {}
        for part in re.split("[,;](?=[^,;:]+:)", text) if text else []:
            name, colon, value = part.partition(":")
            if not colon or not name.strip():
                raise ValueError
            found[name.strip()] = value
        return found
    return kind(text)


def _check(value: Any, option: Option) -> Any:
    if option.kind is float and type(value) is int:
        return float(value)
    if option.kind is list and isinstance(value, tuple):
        return list(value)
    if type(value) is not option.kind:
        raise ValueError
    return value


def _plain(name: str) -> str:
    """Convert a name to the form like_this for comparison."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).replace("-", "_").lower()


def _unknown(scheduler: str, name: str, known: Iterable[Option]) -> UsageError:
    names = [option.name for option in known]
    hint = did_you_mean(name, names, f"options: {', '.join(names) or 'none'}")
    return UsageError(f"{scheduler} has no option {name}", hint=hint)
