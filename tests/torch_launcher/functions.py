"""Functions that the launchers call in their workers."""

import os
import signal
import sys
import time
from typing import NoReturn

RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
         "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "TORCHELASTIC_RUN_ID",
         "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RESTART_COUNT")  # fmt: skip


def rank() -> int:
    return int(os.environ["RANK"])


def tell(*args: object) -> list[object]:
    return [*args, *(os.environ[name] for name in RANKS)]


def fail(*args: object) -> NoReturn:
    if rank() == 1:
        raise ValueError("bad", *args)
    time.sleep(600)
    sys.exit()


def die() -> None:
    if rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def leave(code: int) -> None:
    if rank() == 0:
        sys.exit(code)
    time.sleep(0 if code == 0 else 600)


def succeed_later() -> str:
    count = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if count == "0":
        raise ValueError(count)
    return count
