"""Lets the user inject faults into a sandbox by pressing keys: a letter, followed by a host number.
Pressing the same keys again undoes the fault.
"""

from relight.sandbox.faults import HOST, Fault, Moment
from relight.sandbox.sandbox_job import SandboxJob

DELAY_S, LOSS = 0.1, 0.1
_NAMES = {"k": "kill", "f": "freeze", "c": "cut", "d": "delay", "l": "loss"}
_NOW = Moment("at")


class KeyReader:
    """Converts key presses to faults.

    Args:
        hosts: the number of hosts. If there are more than nine hosts, the user has to press Enter
            after the number.
        job: tracks which hosts are running, cut off, or frozen.
    """

    def __init__(self, hosts: int, job: SandboxJob) -> None:
        self._hosts = hosts
        self._job = job
        self._letter = ""
        self._digits = ""
        self._worse: set[tuple[str, int]] = set()
        """The delays and packet losses that are in effect."""

    @property
    def legend(self) -> str:
        """The line that shows the user which keys are available."""
        end = "" if self._hosts <= 9 else " and Enter"
        return (
            "keys, each followed by a host number" + end + ", pressed again to undo: k kill, f "
            f"freeze, c cut, d delay {DELAY_S * 1000:g}ms, l loss {LOSS * 100:g}%; "
            "Ctrl-C ends the job"
        )

    def press(self, key: str) -> Fault | str:
        """Handle a key press. Return a fault, an error message, or an empty string."""
        if key in _NAMES:
            self._letter, self._digits = key, ""
            return ""
        if not self._letter:
            return "" if key.isspace() else self.legend
        if key.isdecimal() and key.isascii():
            self._digits += key
            if self._hosts > 9 and len(self._digits) < len(str(self._hosts)):
                return ""
        elif key not in "\r\n" or not self._digits:
            self._letter = self._digits = ""
            return self.legend
        letter, host = self._letter, int(self._digits)
        self._letter = self._digits = ""
        if not 1 <= host <= self._hosts:
            return f"no host {host}; hosts are 1 to {self._hosts}"
        return self._fault(letter, host)

    def _fault(self, letter: str, host: int) -> Fault:
        job, action, value = self._job, _NAMES[letter], 0.0
        if letter in "dl":
            value = DELAY_S if letter == "d" else LOSS
            on = (letter, host)
            self._worse ^= {on}
            value = value if on in self._worse else 0.0
        elif letter == "k" and host not in job.running:
            action = "start"
        elif letter == "f" and host in job.frozen:
            action = "continue"
        elif letter == "c" and host in job.cut:
            action = "heal"
        return Fault(0, _NOW, action, HOST, host, value)
