"""Turns argv and PET_ variables into a LaunchSpec.

This module implements torchrun's command-line syntax, which argparse can't parse exactly
(docs/decisions/0002). Each flag has two spellings (`--max-restarts`, `--max_restarts`), and any
unique prefix of a flag is accepted. Values are written as `--flag=value` or `--flag value`.
Everything after the script is passed to the script. The only exception is that a `--` directly
after the script is dropped unless another `--` precedes the script.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from relight.base.env import Environment
from relight.base.errors import UsageError
from relight.base.values import is_number
from relight.flags.site import CONF, NO_SITE, Site
from relight.flags.spec import FLAG_BY_NAME, FLAGS, Flag, LaunchSpec

FALSE, TRUE = ("0", "false", "no", "off"), ("1", "true", "yes", "on")


class ParsedFlags(NamedTuple):
    """The values of all flags, the names of the flags that the user gave, and the script with its
    arguments.
    """

    values: Mapping[str, Any]
    given: set[str]
    command: tuple[str, ...]


def parse(
    argv: list[str], env: Environment, flags: Iterable[Flag] = FLAGS, site: Site = NO_SITE
) -> ParsedFlags:
    """Read flags from `argv` up to the script. Flags that were not given get their values from PET_
    variables, the site configuration or the defaults. Flags that are set only by the site's
    configuration don't count as given.

    Raises:
        UsageError: if a flag is unknown or ambiguous, a value is invalid, or the site locks the
            flag.
    """
    table = {flag.name: flag for flag in flags}
    texts, command = split(argv, table)
    values: dict[str, Any] = {}
    given = set(texts)
    for flag in table.values():
        text = texts.get(flag.name)
        source = flag.source
        variable = env.variables.get(source)
        of_site = site.run.get(flag.name) if FLAG_BY_NAME.get(flag.name) is flag else None
        default = flag.default
        if of_site is not None:
            default = _value(flag, of_site, f"{site.path}: {flag.name} = {of_site}")
        if text is not None:
            source, value = f"--{flag.name}", _value(flag, text, f"--{flag.name}={text}")
        elif variable is not None:
            value = _value(flag, variable, f"{source}={variable}")
            given.add(flag.name)
        else:
            value = default
        if flag.name == CONF:
            values["conf_defaults"] = site.conf
            _check_conf(value, source, site)
        elif value != default and site.locks(flag.name):
            shown = of_site if of_site is not None else "its default"
            typed = text if text is not None else variable
            raise _locked(f"{source}={typed}", shown, site)
        values[flag.field] = value
    return ParsedFlags(values, given, tuple(command))


def _check_conf(pairs: Any, source: str, site: Site) -> None:
    allowed = dict(site.conf)
    for key, value in pairs:
        if site.locks_conf(key) and value != allowed.get(key):
            raise _locked(f"{source}: {key}={value}", allowed.get(key, "its default"), site)


def _locked(what: str, allowed: str, site: Site) -> UsageError:
    return UsageError(
        f"{what}: locked to {allowed} by {site.path}",
        hint="leave it out, or ask your cluster administrator",
    )


def to_spec(parsed: ParsedFlags) -> LaunchSpec:
    """Convert a parsed command line into a LaunchSpec.

    Raises:
        UsageError: if the script is missing, or its name is blank.
    """
    if not parsed.command:
        hint = "relight run [flags] SCRIPT [arguments of the script]; relight run --help"
        for name in parsed.given:
            if ".py" in str(parsed.values[name.replace("-", "_")]):
                hint = f"--{name} takes a value, and the script was taken as that value"
        raise UsageError("no training script given", hint=hint)
    script, *script_args = parsed.command
    if not script.strip():
        from relight.flags import suggestions

        raise suggestions.blank("the script", script)
    fields = {name: parsed.values[name] for name in LaunchSpec._fields if name in parsed.values}
    return LaunchSpec(**fields, script=script, script_args=tuple(script_args))


def split(argv: list[str], table: Mapping[str, Flag]) -> tuple[dict[str, str], list[str]]:
    """Return the value of each given flag as text, and the rest of the command line, starting with
    the script. If a flag is given several times, the last value wins. For flags with `repeats`, all
    values are kept, one per line.

    As in argparse from Python 3.10 to 3.14, the first `--`, before the script or directly after it,
    ends the flags and is dropped. Any other `--` is an argument of the script.
    """
    texts: dict[str, str] = {}

    def put(flag: Flag, text: str) -> None:
        before = texts.get(flag.name) if flag.repeats else None
        texts[flag.name] = text if before is None else f"{before}\n{text}"

    shorts = {flag.short: flag for flag in table.values() if flag.short}
    rest, typed = list(argv), ""
    while rest:
        word = rest[0]
        if word == "--":
            return texts, rest[1:]
        if not word.startswith("-") or word == "-":
            break
        rest.pop(0)
        if word.startswith("--"):
            name, equals, text = word[2:].partition("=")
            flag = _find(name, table)
        else:
            short_flag = shorts.get(word[1])
            if short_flag is None:
                raise _unknown(typed or word, table)
            flag, text = short_flag, word[2:]
            equals, text = ("=", text.removeprefix("=")) if text else ("", "")
            if flag.parse is None and equals:  # -mr3: a switch followed by more short flags
                rest.insert(0, "-" + text)
                equals, text, typed = "", "", typed or word
            else:
                typed = ""
        if flag.parse is None:
            if equals:
                hint = "leave it out" if text.lower() in FALSE else f"type --{flag.name}"
                raise UsageError(f"--{flag.name} does not take a value: {word}", hint=hint)
            put(flag, "1")
        elif equals:
            put(flag, text)
        elif flag.implied:
            put(flag, flag.implied)
        elif rest[:1] == ["="]:
            raise UsageError(
                f"spaces around = in --{flag.name}",
                hint=f"type --{flag.name}={''.join(rest[1:2])}",
            )
        elif rest and (not rest[0].startswith("-") or is_number(rest[0])):
            put(flag, rest.pop(0))
        else:
            raise UsageError(
                f"--{flag.name} needs a value: {flag.metavar}",
                hint="perhaps from an unset variable" if rest else "",
            )
    return texts, rest[:1] + rest[2:] if rest[1:2] == ["--"] else rest


def _find(name: str, table: Mapping[str, Flag]) -> Flag:
    wanted = name.replace("_", "-")
    if wanted in table:
        return table[wanted]
    matches = [known for known in table if known.startswith(wanted)] if wanted else []
    of_torchrun = [known for known in matches if table[known].from_env]
    if len(matches) == 1 or len(of_torchrun) == 1:  # a new flag must not break an old abbreviation
        return table[(of_torchrun or matches)[0]]
    if matches:
        raise UsageError(f"--{name} is ambiguous: {', '.join('--' + m for m in matches)}")
    raise _unknown("--" + name, table)


def _unknown(word: str, table: Mapping[str, Flag]) -> UsageError:
    from relight.flags import suggestions

    return suggestions.unknown_flag(word, table)


def _value(flag: Flag, text: str, source: str) -> object:
    if flag.parse is None:
        if text.lower() not in FALSE + TRUE:
            raise UsageError(f"{source}: expected 1 or 0")
        return text.lower() in TRUE
    try:
        return flag.parse(text)
    except ValueError as error:
        from relight.flags import suggestions

        hint = suggestions.bad_value(flag, source, error)
        raise UsageError(f"{source}: {error}", hint=hint) from None
