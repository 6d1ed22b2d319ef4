"""A host in a pool: takes jobs' replicas and runs them until SIGTERM.

python -m relight_pool.host DIRECTORY NAME ADDRESS [SLOTS]
"""

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any, NamedTuple

from relight.base.errors import EXIT_PREEMPTED
from relight_pool.scheduler import RANK0_ENV, REPLICA

_POLL_S = 0.05
_GRACE_S = 40
"""Time between SIGTERM and SIGKILL, longer than agents give their workers."""


class Running(NamedTuple):
    """A replica running on this host."""

    process: subprocess.Popen[bytes]
    place: str
    role: dict[str, Any]
    number: int
    starts: int


class Host:
    """Runs at most as many parallel replicas as it has slots."""

    def __init__(self, pool: str, name: str, address: str, slots: int) -> None:
        self._pool, self._name, self._address, self._slots = pool, name, address, slots
        self._running: list[Running] = []
        self._stopped: dict[int, float] = {}
        """The time at which each stopping replica is killed, by pid."""
        self.is_over = False

    def run(self) -> None:
        """Take and run replicas."""
        while not self.is_over or self._running:
            for each in list(self._running):
                self._look_at(each)
            if not self.is_over and len(self._running) < self._slots:
                self._take_one()
            time.sleep(_POLL_S)

    def _take_one(self) -> None:
        jobs = []
        for name in os.listdir(self._pool):
            place = os.path.join(self._pool, name)
            if not name.startswith(".") and not _marked(place):
                with open(os.path.join(place, "job.json")) as file:
                    jobs.append((-json.load(file)["priority"], os.stat(place).st_ctime, place))
        for _, _, place in sorted(jobs):
            with open(os.path.join(place, "job.json")) as file:
                job = json.load(file)
            for role in job["roles"]:
                for number in range(role["replicas"]):
                    if self._take(place, job, role, number):
                        return

    def _take(self, place: str, job: dict[str, Any], role: dict[str, Any], number: int) -> bool:
        is_first = (role["name"], number) == (job["roles"][0]["name"], 0)
        rank0 = os.path.join(place, "rank0")
        if not is_first and not os.path.exists(rank0):
            return False
        path = os.path.join(place, f"{role['name']}.{number}")
        try:
            os.rename(f"{path}.todo", f"{path}.taken")
        except FileNotFoundError:
            return False
        with open(f"{path}.taken") as file:
            starts = int(file.read())
        _write(f"{path}.taken", self._name)
        if is_first:
            _write(rank0, self._address)
        with open(rank0) as file:
            first = file.read()
        self._start(place, job, role, number, starts, first)
        return True

    def _start(
        self, place: str, job: dict[str, Any], role: dict[str, Any], number: int, starts: int,
        first: str,
    ) -> None:  # fmt: skip
        env = {name: value.replace(REPLICA, str(number)) for name, value in role["env"].items()}
        env = {
            **os.environ,
            "RELIGHT_TOKEN": job["token"],
            RANK0_ENV: first,
            "TORCHX_RANK0_HOST": first,
            "RELIGHT_REQUEUES": str(starts),
            "PET_LOG_DIR": os.path.join(place, "torchelastic"),
            **env,
        }
        argv = [word.replace(REPLICA, str(number)) for word in role["argv"]]
        with open(os.path.join(place, f"{role['name']}.{number}.log"), "ab") as log:
            try:
                process = subprocess.Popen(
                    argv, env=env, cwd=os.path.expanduser(job["cwd"]), stdin=subprocess.DEVNULL,
                    stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                log.write(f"{argv[0]} does not start here: {error.strerror}\n".encode())
                _end(place, role, number, f"{self._name} 127")
                _write(os.path.join(place, "failed"), "")
                return
        self._running.append(Running(process, place, role, number, starts))

    def _look_at(self, each: Running) -> None:
        code = each.process.poll()
        is_stopped = each.process.pid in self._stopped
        if code is None:
            if self.is_over or _marked(each.place):
                self._stop(each)
            return
        self._running.remove(each)
        self._stopped.pop(each.process.pid, None)
        path = os.path.join(each.place, f"{each.role['name']}.{each.number}")
        again = code == EXIT_PREEMPTED or (code and each.starts < each.role["retries"])
        if is_stopped:
            _end(each.place, each.role, each.number, f"{self._name} stopped")
        elif again:
            _write(f"{path}.taken", str(each.starts + 1))
            os.rename(f"{path}.taken", f"{path}.todo")
        else:
            _end(each.place, each.role, each.number, f"{self._name} {code}")
            if code and each.role["least"] == each.role["replicas"]:
                _write(os.path.join(each.place, "failed"), "")

    def _stop(self, each: Running) -> None:
        pid, now = each.process.pid, time.monotonic()
        with open(os.path.join(each.place, "job.json")) as file:
            asks = json.load(file)["stop"] == "ask"
        if pid not in self._stopped:
            self._stopped[pid] = now + (_GRACE_S if asks else 0)
            os.killpg(pid, signal.SIGTERM)
        elif now >= self._stopped[pid]:
            os.killpg(pid, signal.SIGKILL)


def _marked(place: str) -> bool:
    return any(os.path.exists(os.path.join(place, mark)) for mark in ("cancelled", "failed"))


def _end(place: str, role: dict[str, Any], number: int, how: str) -> None:
    path = os.path.join(place, f"{role['name']}.{number}")
    _write(f"{path}.done", how)
    os.remove(f"{path}.taken")


def _write(path: str, text: str) -> None:
    with open(f"{path}.new", "w") as file:
        file.write(text)
    os.rename(f"{path}.new", path)


def main() -> None:
    """Run a host."""
    pool, name, address, *slots = sys.argv[1:]
    host = Host(os.path.abspath(pool), name, address, int(*slots) if slots else 1)

    def end(*_: object) -> None:
        host.is_over = True

    signal.signal(signal.SIGTERM, end)
    host.run()


if __name__ == "__main__":
    main()
