"""Output from workers in earlier generations, while the console accepts nothing."""

import os
import re
from pathlib import Path

import pytest
from screens import FastLoop, Screen, loop, screen, small_screen  # noqa: F401  # fixtures

from relight.agent.prepare import log_settings
from relight.base.env import Environment
from relight.flags.arguments import parse, to_spec
from relight.output.console import Consoles
from relight.output.worker_logs import Logs, UnshownOutput

LINE = b"generation %02d line %04d\n"
LINES = 2000
GENERATIONS = 14


def run_generations(loop: FastLoop, unshown: UnshownOutput, consoles: Consoles, flags: list[str],
                    path: Path) -> bytes:  # fmt: skip
    """Let a worker in each generation print, and return all output."""
    spec, text = to_spec(parse([*flags, "train.py"], Environment({}))), b""
    settings = log_settings(spec)
    for number in range(GENERATIONS):
        logs = Logs(loop, consoles, settings, str(path / f"attempt_{number}") if flags else "")
        stdout, _ = logs.open(0, 0, b"")
        printed = b"".join(LINE % (number, line) for line in range(LINES))
        assert os.write(stdout, printed) == len(printed)
        logs.passed_on()
        unshown.add(logs, number)
        loop.settle()
        text += printed
    return text


@pytest.mark.parametrize("flags", [[], ["-t1"]], ids=["raw", "tee'd"])
def test_output_from_earlier_generations_is_shown_or_counted(
    loop: FastLoop, small_screen: Screen, screen: Screen, tmp_path: Path, flags: list[str]
) -> None:
    """Generations continue. A line states how much output couldn't be kept for the console, and
    the rest is shown in whole lines and in order.
    """
    consoles = Consoles(small_screen.console, screen.console)
    unshown = UnshownOutput(loop, consoles, [])
    text = run_generations(loop, unshown, consoles, flags, tmp_path)
    said = re.findall(rb"relight: (\d+) bytes of .*output.* were not shown", screen.read())
    assert said
    left = len(text) - sum(map(int, said))
    shown = small_screen.read_until(lambda seen: len(seen) >= left, 4096)
    loop.settle()
    assert len(small_screen.read()) == left
    lines = shown.splitlines(keepends=True)
    assert lines == sorted(lines)
    assert set(lines) <= set(text.splitlines(keepends=True))
    unshown.show()
    assert screen.read().count(b"\n") == len(said)


def test_second_signal_ends_the_wait_for_a_blocked_console(
    loop: FastLoop, small_screen: Screen, screen: Screen, tmp_path: Path
) -> None:
    """A line states how much isn't shown."""
    consoles = Consoles(small_screen.console, screen.console)
    unshown = UnshownOutput(loop, consoles, [15, 15])
    text = run_generations(loop, unshown, consoles, [], tmp_path)
    unshown.show()
    said = re.findall(rb"relight: (\d+) bytes of worker output.* were not shown", screen.read())
    assert sum(map(int, said)) + len(small_screen.read()) == len(text)
