"""The worker in every comparison. It records its environment, then ends according to PROBE_END.

Its own variables:
    PROBE_DIR    where `<restart>.<rank>.json` is written
    PROBE_WRITE  bytes to write to stdout, as latin-1 text
    PROBE_READ   if set, read stdin to its end
    PROBE_STAY   how many seconds `stay` lasts
    PROBE_END    `RESTART.RANK=HOW,…`; HOW is an exit code, `raise`, `kill N`, `wait` (for a
                 signal, and record it), `stay` (despite signals), `timer` (one that
                 expires) or `released` (one that does not). A worker that fails waits
                 until all others in its restart have written their records.
"""

import json
import os
import resource
import signal
import stat
import sys
import time

DEADLINE_S = 180
STOPPING = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
STATUS = {
    *("Uid", "Gid", "Groups", "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt", "NoNewPrivs"),
    *("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "Seccomp", "Cpus_allowed_list"),
}


def sees() -> dict[str, object]:
    """Return everything about a worker that a launcher may determine."""
    return {
        "pid": os.getpid(),
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "name": __name__,
        "file": __file__,
        "sys.path[0]": sys.path[0],
        "executable": sys.executable,
        "unbuffered": sys.stdout.write_through,
        "torch is imported": "torch" in sys.modules,
        "environment": dict(os.environ),
        "cwd": os.getcwd(),
        "fd": {str(fd): describe(fd) for fd in range(3)},
        "other fds": INHERITED_FDS,
        "stdin": sys.stdin.buffer.read().decode("latin-1") if "PROBE_READ" in os.environ else "",
        "umask": umask(),
        "session leader": os.getsid(0) == os.getpid(),
        "group leader": os.getpgid(0) == os.getpid(),
        "controlling terminal": os.path.exists("/dev/tty") and can_open("/dev/tty"),
        "status": status(),
        "limits": {
            name: resource.getrlimit(getattr(resource, name))
            for name in dir(resource)
            if name.startswith("RLIMIT_")
        },
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "scheduler": os.sched_getscheduler(0),
        "oom_score_adj": read("/proc/self/oom_score_adj"),
        "coredump_filter": read("/proc/self/coredump_filter"),
        "parent death signal": death_signal(),
    }


def describe(fd: int) -> "tuple[str, list[int], bool] | None":
    """Return a descriptor's kind, identity, and whether it is a terminal; None if closed."""
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    kinds = {stat.S_IFIFO: "pipe", stat.S_IFREG: "file", stat.S_IFCHR: "device"}
    kind = kinds.get(stat.S_IFMT(found.st_mode), "other")
    if kind == "device" and (os.major(found.st_rdev), os.minor(found.st_rdev)) == (1, 3):
        kind = "null"
    return kind, [found.st_dev, found.st_ino], os.isatty(fd)


def open_fds() -> set[int]:
    fds = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            os.fstat(int(name))
        except OSError:
            continue  # the descriptor used for the listing itself
        fds.add(int(name))
    return fds


INHERITED_FDS = sorted(open_fds() - {0, 1, 2})
"""Listed before the script opens its own: gloo opens and closes descriptors while connecting."""


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def status() -> dict[str, str]:
    fields = {}
    for line in read("/proc/self/status").splitlines():
        key, _, value = line.partition(":")
        if key in STATUS:
            fields[key] = " ".join(value.split())
    return fields


def death_signal() -> int:
    import ctypes

    number = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(number))
    return number.value


def can_open(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def read(path: str) -> str:
    with open(path) as file:
        return file.read().strip()


def write(name: str, record: object) -> None:
    path = os.path.join(os.environ["PROBE_DIR"], name)
    with open(path + ".part", "w") as file:
        json.dump(record, file)
    os.replace(path + ".part", path)


def wait_for_all(restart: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    wanted = [f"{restart}.{rank}.json" for rank in range(int(os.environ["WORLD_SIZE"]))]
    while not all(os.path.exists(os.path.join(os.environ["PROBE_DIR"], w)) for w in wanted):
        if time.monotonic() > deadline:
            sys.exit("the other workers wrote nothing")
        time.sleep(0.01)


def end(how: str, restart: str, rank: str, got: "set[int]") -> None:
    if how == "wait":
        write(f"{restart}.{rank}.signal", [signal.Signals(signal.sigwait(got)).name])
        return
    if how == "stay":
        time.sleep(float(os.environ.get("PROBE_STAY", DEADLINE_S)))
    wait_for_all(restart)
    if how == "raise":
        raise RuntimeError("told to fail")
    if how in ("timer", "released"):
        request = {"version": 1, "pid": os.getpid(), "scope_id": "step", "signal": 9}
        times = [time.time() - 1] if how == "timer" else [time.time() + 0.3, -1]
        with open(os.environ["TORCHELASTIC_TIMER_FILE"], "w") as fifo:
            lines = (json.dumps({**request, "expiration_time": each}) + "\n" for each in times)
            fifo.writelines(lines)
        time.sleep(DEADLINE_S if how == "timer" else 1)
        sys.exit()
    if how.startswith("kill "):
        os.kill(os.getpid(), int(how[5:]))
    sys.exit(int(how))


def main() -> None:
    restart, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
    record = sees()
    ends = dict(e.split("=") for e in os.environ.get("PROBE_END", "").split(",") if e)
    how = ends.get(f"{restart}.{rank}", "")
    waited = {getattr(signal, name) for name in STOPPING}
    if how in ("wait", "stay"):
        signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    os.write(1, f"probe out {restart}.{rank}\n".encode())
    os.write(2, f"probe err {restart}.{rank}\n".encode())
    os.write(1, os.environ.get("PROBE_WRITE", "").encode("latin-1"))
    write(f"{restart}.{rank}.json", record)
    if how:
        end(how, restart, rank, waited)


if __name__ == "__main__":
    main()
