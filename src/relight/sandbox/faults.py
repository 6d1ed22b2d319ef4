"""Parses a faults file for a sandbox, and determines which faults are due.

    # # one fault per line: WHEN WHAT
    at 5s            kill host 2
    when "step 10"   cut host 1
    after 3s         heal
    at 1m            delay 50ms host 2

`at` counts from the start of the job. `when` waits for the first line of output from any host that
contains the quoted text. `after` counts from the fault on the previous line.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from relight.base.errors import UsageError
from relight.base.text import closest_match, did_you_mean

HOST, RANK, ALL = "host", "rank", "all"


class Moment(NamedTuple):
    """The time or line of output that triggers a fault. The `word` field is one of `at`, `after`,
    `when`.
    """

    word: str
    seconds: float = 0.0
    text: str = ""


class Fault(NamedTuple):
    """A line in a faults file.

    Attributes:
        line: the line number in the file, starting at 1.
        moment: when the fault is triggered.
        action: a key of `ACTIONS`.
        kind: HOST, RANK, or ALL for every host.
        number: the host's number, starting at 1, or the rank, starting at 0.
        value: the delay in seconds, or the fraction of packets to drop, from 0 to 1.
    """

    line: int
    moment: Moment
    action: str
    kind: str = ALL
    number: int = 0
    value: float = 0.0

    def __str__(self) -> str:
        words = [self.action]
        if self.action == "delay":
            words.append(f"{self.value * 1000:g}ms")
        elif self.action == "loss":
            words.append(f"{self.value * 100:g}%")
        if self.kind != ALL:
            words += [self.kind, str(self.number)]
        return " ".join(words)


class _Action(NamedTuple):
    """An action, with an example, its valid targets, and a description of its value."""

    example: str
    kinds: tuple[str, ...]
    value: str = ""


ACTIONS = {
    "kill": _Action("kill host 2", (HOST, RANK)),
    "start": _Action("start host 2", (HOST,)),
    "freeze": _Action("freeze host 2", (HOST, RANK)),
    "continue": _Action("continue host 2", (HOST, RANK)),
    "cut": _Action("cut host 2", (HOST,)),
    "heal": _Action("heal host 2", (HOST, ALL)),
    "delay": _Action("delay 50ms host 2", (HOST, ALL), "a time such as 50ms or 1s"),
    "loss": _Action("loss 10% host 2", (HOST, ALL), "a percentage such as 10%"),
}
_WHENS = {"at": "at 5s", "after": "after 3s", "when": 'when "step 10"'}
_MEANT = {
    "stop": "freeze", "suspend": "freeze", "pause": "freeze", "resume": "continue",
    "thaw": "continue", "unfreeze": "continue", "partition": "cut", "disconnect": "cut",
    "mend": "heal", "connect": "heal", "latency": "delay", "lag": "delay", "drop": "loss",
    "lose": "loss", "crash": "kill", "restart": "start",
}  # fmt: skip
"""Synonyms for the names of actions."""
_WORD = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|(\S+))""")
_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)%")
_LONGEST_DELAY_S = 60.0


def read(text: str, name: str, hosts: int, ranks: int = 0) -> list[Fault]:
    """Parse a faults file.

    Args:
        text: the file's content.
        name: the file's name, for messages.
        hosts: the number of hosts.
        ranks: the maximum number of ranks in the job, or 0 if unknown.

    Raises:
        UsageError: if a line is invalid.
    """
    faults: list[Fault] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = _split(line, f"{name}:{number}")
        if words:
            fault = _Line(words, f"{name}:{number}: {line.strip()}", hosts, ranks).read(number)
            if fault.moment.word == "after" and not faults:
                raise UsageError(
                    f"{name}:{number}: {line.strip()}: `after` on the first line",
                    hint=(
                        "`after` is relative to the previous fault; use `at` for times since the "
                        "start"
                    ),
                )
            faults.append(fault)
    return faults


class _Line:
    """The words on one line, consumed from left to right."""

    def __init__(self, words: Sequence[str], place: str, hosts: int, ranks: int) -> None:
        self._left = list(words)
        self._place = place
        self._hosts, self._ranks = hosts, ranks

    def read(self, number: int) -> Fault:
        moment = self._moment()
        action = self._one_of(ACTIONS, "action", _MEANT)
        shape = ACTIONS[action]
        value = self._value(action) if shape.value else 0.0
        kind, target = self._target(shape)
        if self._left:
            raise self._invalid(f"unexpected {self._left[0]!r}", f"for example: {shape.example}")
        return Fault(number, moment, action, kind, target, value)

    def _moment(self) -> Moment:
        word = self._one_of(_WHENS, "moment", {"then": "after", "once": "when", "in": "at"})
        text = self._next_word(f"for example: {_WHENS[word]}", f"nothing follows {word}")
        if word == "when":
            if not text:
                raise self._invalid("the text is empty", f"for example: {_WHENS[word]}")
            return Moment(word, text=text)
        return Moment(word, seconds=self._time(text))

    def _value(self, action: str) -> float:
        shape = ACTIONS[action]
        text = self._next_word(f"for example: {shape.example}", f"{action} needs {shape.value}")
        if action == "delay":
            seconds = self._time(text)
            if seconds > _LONGEST_DELAY_S:
                raise self._invalid(f"{text} is too long", f"at most {_LONGEST_DELAY_S:g}s")
            return seconds
        match = _PERCENT.fullmatch(text)
        if match is None or float(match[1]) > 100:
            raise self._invalid(f"{text!r} is not {shape.value}", "from 0% to 100%")
        return float(match[1]) / 100

    def _target(self, shape: _Action) -> tuple[str, int]:
        example = f"for example: {shape.example}"
        if not self._left and ALL in shape.kinds:
            return ALL, 0
        kinds = [kind for kind in shape.kinds if kind != ALL]
        kind = self._next_word(example, f"the {' or '.join(kinds)} is missing")
        joined = re.fullmatch(r"([a-z]+)(\d+)", kind)
        if joined is not None:  # a host's name, such as host2
            kind, number = joined.groups()
            self._left.insert(0, number)
        if kind not in kinds:
            raise self._invalid(
                f"expected {' or '.join(kinds)}, not {kind!r}", did_you_mean(kind, kinds, example)
            )
        text = self._next_word(example, f"the number of the {kind} is missing")
        if not text.isdecimal() or len(text) > 6:
            raise self._invalid(f"{text!r} is not a number", example)
        number_of = int(text)
        if kind == HOST and not 1 <= number_of <= self._hosts:
            raise self._invalid(f"no host {number_of}", f"hosts are 1 to {self._hosts}")
        if kind == RANK and self._ranks and number_of >= self._ranks:
            raise self._invalid(f"no rank {number_of}", f"ranks are 0 to {self._ranks - 1}")
        return kind, number_of

    def _time(self, text: str) -> float:
        match = _TIME.fullmatch(text)
        if match is None:
            hint = "a number with its unit: 50ms, 5s, 1.5m, 1h, as in `after 5s kill host 2`"
            raise self._invalid(f"{text!r} is not a time", hint)
        return float(match[1]) * _UNITS[match[2]]

    def _one_of(self, known: Iterable[str], what: str, meant: dict[str, str]) -> str:
        names = list(known)
        word = self._next_word(f"{what}s: {', '.join(names)}", f"the {what} is missing")
        if word in names:
            return word
        near = meant.get(word) or closest_match(word, names)
        hint = f"did you mean {near}?" if near else f"{what}s: {', '.join(names)}"
        raise self._invalid(f"unknown {what}: {word!r}", hint)

    def _next_word(self, hint: str, missing: str) -> str:
        if not self._left:
            raise self._invalid(missing, hint)
        return self._left.pop(0)

    def _invalid(self, what: str, hint: str) -> UsageError:
        return UsageError(f"{self._place}: {what}", hint=hint)


def _split(line: str, place: str) -> list[str]:
    """Split a line into words. Quoted words may contain spaces, and `#` begins a comment."""
    words: list[str] = []
    at, line = 0, line.rstrip()
    while match := _WORD.match(line, at):
        double, single, plain = match.groups()
        at = match.end()
        if plain is not None and plain.startswith("#"):
            break
        if plain is not None and plain[0] in "\"'":
            raise UsageError(f"{place}: {line.strip()}: unclosed quote", hint="")
        quoted = double if double is not None else single
        words.append(plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
    return words


class Plan:
    """Determines when each fault is due. Times are in seconds since the start of the job.

    Args:
        faults: the faults, in the file's order.
    """

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._faults = list(faults)
        self._due: dict[int, float | None] = {
            number: fault.moment.seconds if fault.moment.word == "at" else None
            for number, fault in enumerate(faults)
        }
        """The time of each fault that has not been triggered yet, if known, by its index."""

    def left(self) -> list[Fault]:
        """Return the faults that have not been triggered yet."""
        return [self._faults[number] for number in self._due]

    @property
    def watches(self) -> bool:
        """Whether a fault is waiting for a line of output."""
        return any(fault.moment.word == "when" for fault in self.left())

    def deadline(self) -> float | None:
        """Return the time when the next fault is due, or None if the times of all remaining faults
        are still unknown.
        """
        return min((due for due in self._due.values() if due is not None), default=None)

    def printed(self, line: str, now: float) -> list[Fault]:
        """Return the faults that are triggered by this line of output."""
        for number in self._due:
            moment = self._faults[number].moment
            if moment.word == "when" and moment.text in line:
                self._due[number] = now
        return self.due(now)

    def due(self, now: float) -> list[Fault]:
        """Return the faults that are due, sorted by time."""
        found = []
        while (deadline := self.deadline()) is not None and deadline <= now:
            number = next(each for each, due in self._due.items() if due == deadline)
            del self._due[number]
            found.append(self._faults[number])
            following = number + 1
            if following in self._due and self._faults[following].moment.word == "after":
                self._due[following] = deadline + self._faults[following].moment.seconds
        return found
