"""Event handlers from another package: two that work, and several that don't."""

import logging
import os
import subprocess
import time
from typing import Any

PATH = os.environ.get("EVENTS_FILE", os.devnull)


def write(event: dict[str, Any]) -> None:
    """Append the name of each event to a file."""
    with open(PATH, "a") as file:
        file.write(event["event"] + "\n")


class FileHandler(logging.FileHandler):
    """Writes each line to a file."""

    def __init__(self) -> None:
        super().__init__(PATH)


def fail(event: dict[str, Any]) -> None:
    """Fail on each event."""
    raise ValueError(f"no {event['event']} here")


def fail_in_colour(event: dict[str, Any]) -> None:
    """Fail with a message that would clear the screen and set a terminal's title."""
    del event
    raise ValueError("\x1b[2Jno \x1b]0;title\x07 here")


def block(event: dict[str, Any]) -> None:
    """Block for too long on each event."""
    del event
    time.sleep(600)


def leave(event: dict[str, Any]) -> None:
    """End the process."""
    del event
    os._exit(3)


def start(event: dict[str, Any]) -> None:
    """Start a program, and wait until it exits."""
    del event
    subprocess.run([os.environ["HANDLER_PROGRAM"]], check=False)
