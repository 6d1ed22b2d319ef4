"""Derives a component's command line from its signature and docstring.

Each parameter is a flag `--name`, with underscores or dashes; one-letter names also get `-x`.
`Annotated[str, "-cn"]` adds another name. `*args` receives the arguments after the flags, or after
`--`, unchanged.
"""

import inspect
import textwrap
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from relight.base.errors import RelightError, UsageError
from relight.base.text import closest_match
from relight.job.app import NOTHING
from relight.job.components import decoding
from relight.job.components.decoding import ParameterKind
from relight.job.components.source import source_location

_SWITCHES_OF_SUBMIT = ("--dryrun", "--wait", "--log", "--tee_logs", "--tee-logs", "--stdin",
                       "--json")  # fmt: skip
_OF_SUBMIT = (*_SWITCHES_OF_SUBMIT, "-s", "--scheduler", "-cfg", "--cfg", "--scheduler_args",
              "--scheduler-args", "--workspace", "--parent_run_id", "--parent-run-id",
              "--launcher")  # fmt: skip
_BASES = (str, int, float, bool)
_SUPPORTED = "str, int, float, bool, list[…], dict[…, …], tuple[…, …], and Optional of these"


class Parameter(NamedTuple):
    """One flag. `names` lists all its spellings, including the dashes. It is empty if the type has
    no textual form; such a parameter keeps its default, unless JSON or Python provides a value.
    """

    name: str
    kind: ParameterKind
    required: bool
    default: Any
    help: str
    names: tuple[str, ...]


class Signature(NamedTuple):
    """The flags of a component, in order. `rest` is the name of its `*args`, if it has one, and
    `before` is the number of parameters in front of it.
    """

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    rest: str
    rest_kind: ParameterKind
    rest_help: str
    before: int = 0


class HelpAskedError(RelightError):
    """Raised if a component is run with `--help`. The error message is the help text."""

    exit_code = 0


def read_signature(name: str, function: Callable[..., Any]) -> Signature:
    """Return the parameters of a component.

    Raises:
        UsageError: if a parameter has no type, or one without a command-line form; the message
            names file and line.
    """
    target = function.__init__ if inspect.isclass(function) else function
    if inspect.iscoroutinefunction(target):
        raise _invalid(target, "", f"{name} is async; a component must be a plain function")
    signature = inspect.signature(target)
    hints = _hints(target, signature)
    description, helps = _docstring(function)
    parameters: list[Parameter] = []
    rest, rest_kind, rest_help, before = "", ParameterKind(str), "", 0
    for number, (each, parameter) in enumerate(signature.parameters.items()):
        if number == 0 and inspect.isclass(function):
            continue
        if parameter.annotation is parameter.empty:
            text = f"the parameter {each} of {name} has no type annotation"
            raise _invalid(target, each, text, hint=f"types: {_SUPPORTED}")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            text = f"the parameter {each} of {name} is positional-only; components need named ones"
            raise _invalid(target, each, text)
        if parameter.kind is parameter.VAR_KEYWORD:
            raise _invalid(target, each, f"**{each} of {name} has no command-line form")
        try:
            kind, flags = _kind(hints[each])
        except ValueError as error:
            if parameter.default is parameter.empty:
                raise _invalid(target, each, f"the parameter {each} of {name}: {error}") from None
            parameters.append(Parameter(each, ParameterKind(str), False, parameter.default, "", ()))
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            rest, rest_kind, rest_help = each, kind, helps.get(each, "")
            before = len(parameters)
            continue
        short = (f"-{each}",) if len(each) == 1 else ()
        parameters.append(
            Parameter(
                name=each,
                kind=kind,
                required=parameter.default is parameter.empty,
                default=parameter.default,
                help=helps.get(each, ""),
                names=(*short, *flags, f"--{each}"),
            )
        )
    return Signature(name, description, tuple(parameters), rest, rest_kind, rest_help, before)


def bind(
    signature: Signature,
    words: Sequence[str],
    settings: Mapping[str, str],
    given: Mapping[str, Any] = NOTHING,
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments to call a component with.

    Args:
        signature: the signature of the component.
        words: its command line, which takes precedence.
        settings: strings from a settings file.
        given: values from JSON or Python, which take precedence over the settings.

    Raises:
        UsageError: if a flag is unknown, ambiguous or given twice, a value is invalid, or a
            required one is missing.
        HelpAskedError: if the command line contains `--help`.
    """
    flags, rest = _parse(words, signature)
    values: dict[str, Any] = {}
    by_name = {parameter.name: parameter for parameter in signature.parameters}
    for source, what in ((settings, "of the settings"), (given, "of the arguments")):
        for name, value in source.items():
            key = name.replace("-", "_")
            if key == signature.rest:
                continue
            if key not in by_name or (source is settings and not by_name[key].names):
                raise _unknown(name, signature, f" ({what})")
            if not by_name[key].names:
                values[key] = value
                continue
            try:
                values[key] = decoding.from_value(value, by_name[key].kind)
            except ValueError as error:
                raise UsageError(f"{name} {what}: {error}") from None
    values |= flags
    for parameter in signature.parameters:
        if parameter.required and parameter.name not in values:
            raise UsageError(
                f"{signature.name} needs --{parameter.name}",
                hint=parameter.help or f"relight submit {signature.name} --help",
            )
    # Parameters before `*args` can't be passed by name if `*args` receives any values.
    first = [
        values.pop(parameter.name, parameter.default)
        for parameter in signature.parameters[: signature.before]
    ]
    if not rest and signature.rest:
        value = given.get(signature.rest, settings.get(signature.rest, ()))
        rest = value.split() if isinstance(value, str) else list(value)
    try:
        return [*first, *(decoding.from_value(x, signature.rest_kind) for x in rest)], values
    except ValueError as error:
        raise UsageError(f"{signature.rest}: {error}") from None


def _parse(words: Sequence[str], signature: Signature) -> tuple[dict[str, Any], Sequence[Any]]:
    """Return the values of the flags in a command line, and the arguments after them."""
    values: dict[str, Any] = {}
    left = list(words)
    while left and _is_flag(left[0]):
        word = left.pop(0)
        if word == "--help":
            raise HelpAskedError(usage(signature, "relight submit [flags]"))
        parameter, text = _flag(word, signature)
        shown = next(n for n in parameter.names if n.startswith("--"))
        if text is None:
            if not left or left[0] == "--" or _is_flag(left[0]):
                value = "true" if parameter.kind.base is bool else "VALUE"
                raise UsageError(f"{shown} needs a value", hint=f"{shown}={value}")
            text = left.pop(0)
        if parameter.name in values:
            raise UsageError(f"{shown} is given twice", hint=_after_dashes(signature))
        try:
            values[parameter.name] = decoding.decode(text, parameter.kind)
        except ValueError as error:
            raise UsageError(f"{shown}={text}: {error}", hint=parameter.help) from None
    rest = left[1:] if left[:1] == ["--"] else left
    if rest and not signature.rest:
        raise UsageError(
            f"{signature.name} takes flags only, not {rest[0]!r}", hint=_names(signature)
        )
    return values, rest


def usage(signature: Signature, command: str) -> str:
    """Return a component's help text."""
    rest = f" [--] [{signature.rest} …]" if signature.rest else ""
    lines = [f"usage: {command} {signature.name} [flags]{rest}", ""]
    if signature.description:
        lines += [signature.description, ""]
    for parameter in signature.parameters:
        if not parameter.names:
            continue
        left = f"  {', '.join(parameter.names)} {str(parameter.kind).upper()}"
        note = "required" if parameter.required else _default(parameter)
        text = f"{parameter.help} ({note})" if note else parameter.help
        lines += _entry(left, text.strip())
    if signature.rest:
        lines += _entry(
            f"  {signature.rest} …", signature.rest_help or "the arguments after the flags"
        )
    return "\n".join(lines)


def _entry(left: str, text: str) -> list[str]:
    width = 30
    wrapped = textwrap.wrap(text, 98 - width) or [""]
    if len(left) > width - 2:
        return [left, *(" " * width + line for line in wrapped)]
    first = left.ljust(width) + wrapped[0]
    return [first.rstrip(), *(" " * width + line for line in wrapped[1:])]


def _default(parameter: Parameter) -> str:
    if parameter.default is None or parameter.default == "":
        return ""
    return f"default {parameter.default}"


def _is_flag(word: str) -> bool:
    if not word.startswith("-") or word in ("-", "--") or (" " in word and "=" not in word):
        return False
    try:
        float(word)
    except ValueError:
        return True
    return False


def _flag(word: str, signature: Signature) -> tuple[Parameter, str | None]:
    """Return a flag's parameter, and its value if it is part of the same argument."""
    name, equals, value = word.partition("=")
    text = value if equals else None
    spelled = {each: parameter for parameter in signature.parameters for each in parameter.names}
    if name in spelled:
        return spelled[name], text
    if name.startswith("--"):
        wanted = name.replace("-", "_")
        matches = {p.name: p for n, p in spelled.items() if n.replace("-", "_") == wanted}
        if not matches:
            matches = {
                p.name: p for n, p in spelled.items() if n.replace("-", "_").startswith(wanted)
            }
        if len(matches) == 1:
            return next(iter(matches.values())), text
        if matches:
            known = ", ".join("--" + each for each in matches)
            raise UsageError(f"{name} is ambiguous: {known}")
    elif name[:2] in spelled:
        return spelled[name[:2]], word[2:]
    raise _unknown(name, signature, "", text)


def _unknown(name: str, signature: Signature, where: str, value: str | None = None) -> UsageError:
    known = [parameter.name for parameter in signature.parameters if parameter.names]
    if name in _OF_SUBMIT:
        hint = f"as a flag of relight submit, it must come before {signature.name}"
        if value is not None and name in _SWITCHES_OF_SUBMIT:
            hint += f" and takes no value: {name}"
        return UsageError(f"{signature.name} has no parameter {name}{where}", hint=hint)
    names, after = _names(signature), _after_dashes(signature)
    hint = f"{names}; {after}".removesuffix("; ")
    if meant := closest_match(name.lstrip("-").replace("-", "_"), known):
        hint = f"did you mean --{meant}? {after}".strip()
    return UsageError(f"{signature.name} has no parameter {name}{where}", hint=hint)


def _after_dashes(signature: Signature) -> str:
    return f"put {signature.rest} after --" if signature.rest else ""


def _names(signature: Signature) -> str:
    names = ", ".join("--" + each.name for each in signature.parameters if each.names)
    return f"its parameters: {names}" if names else "it has no parameters"


def _hints(target: Callable[..., Any], signature: inspect.Signature) -> Mapping[str, Any]:
    annotations = {name: p.annotation for name, p in signature.parameters.items()}
    if not any(isinstance(each, str) for each in annotations.values()):
        return annotations
    try:
        return get_type_hints(target, include_extras=True)
    except NameError as error:
        raise _invalid(target, "", f"a type of {target.__qualname__}: {error}") from None


def _kind(annotation: Any) -> tuple[ParameterKind, tuple[str, ...]]:
    flags: tuple[str, ...] = ()
    if get_origin(annotation) is Annotated:
        annotation, *extra = get_args(annotation)
        flags = tuple(each for each in extra if isinstance(each, str) and each.startswith("-"))
    optional = False
    if get_origin(annotation) in (Union, types.UnionType):
        inner = [each for each in get_args(annotation) if each is not type(None)]
        optional = len(inner) < len(get_args(annotation))
        if len(inner) == 1:
            annotation = inner[0]
    origin = get_origin(annotation) or annotation
    if origin in _BASES:
        return ParameterKind(origin, (), optional), flags
    if origin in (list, dict):
        count = 1 if origin is list else 2
        items = get_args(annotation) or (str,) * count
        if len(items) == count and all(item in _BASES for item in items):
            return ParameterKind(origin, items, optional), flags
    if origin is tuple:
        items = get_args(annotation) or (str, ...)
        if all(item in _BASES for item in items if item is not ...):
            return ParameterKind(tuple, items, optional), flags
    shown = getattr(annotation, "__name__", str(annotation)) if origin is annotation else annotation
    raise ValueError(f"its type {shown} has no command-line form; types are {_SUPPORTED}")


def _invalid(target: Callable[..., Any], parameter: str, text: str, hint: str = "") -> UsageError:
    return UsageError(f"{source_location(target, parameter)}: {text}", hint=hint)


def _docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return a docstring's first paragraph, and its `Args:` descriptions by name."""
    lines = (inspect.getdoc(function) or "").splitlines()
    description: list[str] = []
    helps: dict[str, str] = {}
    section, indent, name, first = "", 0, "", True
    for line in lines:
        word = line.strip()
        if word.endswith(":") and not line.startswith(" ") and word[:-1].isalpha():
            section, indent, name = word[:-1], 0, ""
        elif section in ("Args", "Arguments", "Parameters") and word:
            depth = len(line) - len(line.lstrip())
            indent = indent or depth
            key, colon, text = word.partition(":")
            key = key.partition(" (")[0].lstrip("*")
            if depth == indent and colon and key.isidentifier():
                name = key
                helps[name] = text.strip()
            elif name:
                helps[name] = f"{helps[name]} {word}".strip()
        elif not section:
            first = first and (bool(word) or not description)
            if first and word:
                description.append(word)
    return " ".join(description), helps
