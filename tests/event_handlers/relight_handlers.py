"""Event handlers of another package: two that work, and some that do not."""

import logging
import os
import subprocess
import time
from typing import Any

PATH = os.environ.get("EVENTS_FILE", os.devnull)


def write(event: dict[str, Any]) -> None:
    """Write the name of each event."""
    with open(PATH, "a") as file:
        file.write(event["event"] + "\n")


class FileHandler(logging.FileHandler):
    """Writes each line."""

    def __init__(self) -> None:
        super().__init__(PATH)


def fail(event: dict[str, Any]) -> None:
    """Fail for each event."""
    raise ValueError(f"no {event['event']} here")


def fail_in_colour(event: dict[str, Any]) -> None:
    """Fail with a message that would clear the screen and set the title of a terminal."""
    del event
    raise ValueError("\x1b[2Jno \x1b]0;title\x07 here")


def block(event: dict[str, Any]) -> None:
    """Take too long for an event."""
    del event
    time.sleep(600)


def leave(event: dict[str, Any]) -> None:
    """End the process."""
    del event
    os._exit(3)


def start(event: dict[str, Any]) -> None:
    """Start a program, and wait until it ends."""
    del event
    subprocess.run([os.environ["HANDLER_PROGRAM"]], check=False)
