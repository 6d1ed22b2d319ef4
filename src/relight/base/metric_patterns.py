"""Compiles the --watch-metric regular expressions, and finds the numbers that they match in the
workers' output.
"""

import re
import warnings
from collections.abc import Iterator, Sequence
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

_MAX_NAME = 24
"""The same limit as for names in `relight.worker.report`."""
_MAX_LINE = 500
"""The number of characters of each line that are searched."""


class MetricFinder:
    """Finds the latest numbers in a worker's output.

    Args:
        patterns: regular expressions. Each expression has either one named group per number, or a
            single unnamed group. An unnamed group takes its name from the word before it, such as
            `loss` in `loss: ([0-9.]+)`.

    Raises:
        ValueError: if an expression can't be used.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [_compiled(pattern) for pattern in patterns]
        self.names = {name for _, groups in self._patterns for name in groups}

    def find(self, output: str) -> dict[str, float]:
        """Return the last number for each name. A number at the very end of the output is ignored,
        because it may be incomplete.
        """
        found: dict[str, float] = {}
        for line in reversed(output.splitlines(keepends=True)):
            found = dict(self._match_line(line)) | found
            if len(found) == len(self.names):
                break
        return found

    def _match_line(self, line: str) -> Iterator[tuple[str, float]]:
        text = line.rstrip("\r\n")
        is_whole = text != line
        for pattern, groups in self._patterns:
            for match in pattern.finditer(text[:_MAX_LINE]):
                for name, group in groups.items():
                    if is_whole or match.end(group) < len(text):
                        yield from _number(name, match[group])


def _number(name: str, text: str | None) -> Iterator[tuple[str, float]]:
    try:
        yield name, float((text or "").rstrip(".,;"))
    except ValueError:
        return  # the group did not match a number in this line


def _compiled(text: str) -> tuple[re.Pattern[str], dict[str, int | str]]:
    """Return a compiled pattern and a mapping from the names of its numbers to its groups.

    Raises:
        ValueError: if the pattern can't be used.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            pattern, is_slow = re.compile(text), _repeats_repeats(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error}") from None
    if is_slow:
        raise ValueError("nested repetition, as in (a+)+, may take forever to match")
    groups: dict[str, int | str] = {name: name for name in pattern.groupindex}
    if not groups and pattern.groups == 1:
        groups = {_word_before_group(text): 1}
    if not groups:
        raise ValueError(
            "expected a group around the number, as in 'loss: ([0-9.]+)', or named groups, as in "
            "'(?P<loss>[0-9.]+)'"
        )
    if long := [name for name in groups if len(name) > _MAX_NAME]:
        raise ValueError(f"the name {long[0]} is longer than {_MAX_NAME} characters")
    return pattern, groups


def _word_before_group(text: str) -> str:
    """Return the last literal word before the pattern's only group."""
    plain = re.sub(r"\\.|\[[^\]]*\]|\{[\d,]*\}", " ", text)
    words = re.findall(r"[^\W\d](?:[\w/-]*\w)?", plain[: re.search(r"\((?!\?)", plain).start()])  # type: ignore[union-attr]
    if not words:
        raise ValueError(
            "the group has no word before it to use as a name; name the group, as in "
            "'(?P<loss>[0-9.]+)'"
        )
    return str(words[-1])


def _repeats_repeats(text: str) -> bool:
    """Return whether an unlimited repeat contains another unlimited repeat. With such a pattern, a
    failed match may take time that is exponential in the length of the line, and block the agent.
    """
    repeats = (_constants.MAX_REPEAT, _constants.MIN_REPEAT)

    def nested(parsed: Any, inside: bool) -> bool:
        for code, argument in parsed:
            is_repeat = code in repeats and argument[1] == _constants.MAXREPEAT
            if is_repeat and inside:
                return True
            if any(nested(each, inside or is_repeat) for each in parts_of(argument)):
                return True
        return False

    def parts_of(argument: Any) -> Iterator[Any]:
        for each in argument if isinstance(argument, tuple | list) else (argument,):
            if isinstance(each, _parser.SubPattern):
                yield each
            elif isinstance(each, list):  # the branches of |
                yield from parts_of(each)

    return nested(_parser.parse(text), False)
