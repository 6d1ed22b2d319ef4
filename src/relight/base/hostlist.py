"""Parses one-line host lists in the formats used by Slurm and Open MPI.

Slurm        node[1-3,07],login,rack[1-2]n[1-2]      slurm.conf(5), "host list expression"
Open MPI 4   login,node[1:1-3,7]@0(5)                orte_node_regex, which orted gets; the
                                                     number before the colon counts digits
"""

import re
from collections.abc import Callable, Sequence
from itertools import product
from math import prod

MAX_HOSTS = 65536
_MAX_DIGITS = 32
_RANGE = re.compile(r"([0-9]{1,32})(?:-([0-9]{1,32}))?")
_PARTS = re.compile(r"\[([^][]*)\]|([^][,]+)")
_TASKS = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")


def expand(text: str) -> list[str]:
    """Return the hosts in a Slurm host list, in the order of the list.

    Raises:
        ValueError: if the text isn't such a list, or has more than `MAX_HOSTS` hosts.
    """
    return _expand(text, _numbers)


def expand_orte(text: str) -> list[str]:
    """Return the hosts in an `orte_node_regex`. The first is the host on which mpirun runs, and the
    others are the hosts on which its daemons run.

    Raises:
        ValueError: if the text is not such a list.
    """
    return _expand(re.sub(r"@[0-9,()*-]*$", "", text), _numbers_with_digits)


def expand_tasks(text: str) -> list[int]:
    """Return the number of tasks on each node. For example, `2(x3),1` is expanded to `[2, 2, 2,
    1]`.

    Raises:
        ValueError: if the text is not such a list.
    """
    tasks: list[int] = []
    for part in text.split(","):
        match = _TASKS.fullmatch(part)
        times = int(match[2] or 1) if match else 0
        if match is None or not times or len(tasks) + times > MAX_HOSTS:
            raise ValueError(f"{part[:60]!r} is not a number of tasks")
        tasks += [int(match[1])] * times
    return tasks


def _expand(text: str, numbers_of: Callable[[str], list[str]]) -> list[str]:
    """Return the hosts in a host list, using `numbers_of` to expand each pair of brackets."""
    hosts: list[str] = []
    for word in _split(text):
        parts = [(match[1] or "", match[2]) for match in _PARTS.finditer(word)]
        choices = [[plain] if plain else numbers_of(brackets) for brackets, plain in parts]
        _check(len(hosts), choices)
        hosts += map("".join, product(*choices))
    return hosts


def _split(text: str) -> list[str]:
    """Split the text at commas that are outside brackets."""
    words = re.findall(r"(?:\[[^][]*\]|[^][,\s])+", text)
    if not words or ",".join(words) != text:
        raise ValueError(f"{text[:60]!r} is not a list of hosts")
    return words


def _numbers(text: str) -> list[str]:
    """Return the numbers in a bracketed list such as `1-3,07`. Each number is zero-padded like the
    lower end of its range.
    """
    numbers: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{part[:60]!r} is not a range of numbers")
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low:
            raise ValueError(f"{part!r} is not a range of numbers")
        _check(len(numbers), [range(low, high + 1)])
        numbers += [str(number).zfill(len(match[1])) for number in range(low, high + 1)]
    return numbers


def _numbers_with_digits(text: str) -> list[str]:
    """Return the numbers in a bracketed list such as `3:1-3,7`, where 3 is the number of digits."""
    digits, colon, ranges = text.partition(":")
    if not (colon and re.fullmatch("[0-9]{1,2}", digits)):
        raise ValueError(f"{text[:60]!r} does not give the number of digits")
    if int(digits) > _MAX_DIGITS:
        raise ValueError(f"{digits} digits are too many")
    return [str(int(number)).zfill(int(digits)) for number in _numbers(ranges)]


def _check(known: int, choices: Sequence[Sequence[object]]) -> None:
    if known + prod(map(len, choices)) > MAX_HOSTS:
        raise ValueError(f"more than {MAX_HOSTS} hosts")
