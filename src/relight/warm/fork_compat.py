"""Compares the process attributes that a process inherits from its parent. A worker that is forked
from a warm process must have the same attributes as a worker that its own job starts
(`preload/warm_process.py`).

    facts       the working directory, limits, umask, affinity, cgroup, namespaces, login session,
                credentials, ignored signals, priority, and interpreter
    variables   those that the imports have read, or that compiled code reads when it is loaded.
                Hashes are compared, so that no process knows another job's values
"""

import hashlib
import os
import resource
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from relight.base.errors import signal_name
from relight.host import descriptors, linux
from relight.host.devices import content, entries

_STATUS = (
    "Umask", "Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb",
    "NoNewPrivs", "Seccomp", "Seccomp_filters", "Speculation_Store_Bypass", "THP_enabled",
    "Mems_allowed_list",
)  # fmt: skip
"""Lines in /proc/self/status (proc(5))."""
_OF_THREADS = 0b11 << 31
"""The bits for signals 32 and 33, which the C library sets when a process creates its first thread
(nptl(7)).
"""
_FILES = (
    "cgroup", "sessionid", "loginuid", "oom_score_adj", "personality", "timerslack_ns",
    "coredump_filter", "attr/current",
)  # fmt: skip
"""Files in /proc/self that contain the control group, the login session (audit), and inherited
attributes.
"""
_SIGNALS = {"SigBlk": "blocked signals", "SigIgn": "ignored signals"}
_PR_GET_SECUREBITS = 27
_CALLS = {
    "x86_64": {"ioprio_get": 252, "keyctl": 250},
    "aarch64": {"ioprio_get": 31, "keyctl": 219},
}
"""The numbers of system calls without a wrapper in the C library."""
NATIVE = (
    "LD_", "GLIBC_", "MALLOC_", "GCONV_", "LOCPATH", "NLSPATH", "TZ", "LANG", "LC_", "PYTHON",
    "LSAN_", "ASAN_", "UBSAN_", "TSAN_", "JE_MALLOC_", "MALLOCNG_", "TCMALLOC_", "HOME",
)  # fmt: skip
"""Prefixes of variables that the C library, the linker and the interpreter read when they start.
Variables that compiled modules read when they are loaded are listed in `preload/lazy_modules.py`.
"""


class Variables(NamedTuple):
    """The environment variables that imports depend on.

    This class contains the hash of each variable's value, or an empty string for a variable that is
    not set. It also contains the name prefixes of variables that always matter, and of those that
    never do.
    """

    hashes: dict[str, str]
    prefixes: tuple[str, ...]
    but: tuple[str, ...]
    salt: str


NOTHING = Variables({}, (), (), "")


def collect() -> dict[str, str]:
    """Return this process's attributes."""
    directory = os.stat(".")
    facts = {
        "host name": os.uname().nodename,
        "working directory": f"{_link('cwd')} ({directory.st_dev}:{directory.st_ino})",
        "root directory": _link("root"),
        "processors": _unless_refused(lambda: ",".join(map(str, sorted(os.sched_getaffinity(0))))),
        "nice value": str(os.getpriority(os.PRIO_PROCESS, 0)),
        "scheduling policy": _unless_refused(lambda: str(os.sched_getscheduler(0))),
        "memory policy": _memory_policy(),
        "secure bits": str(linux.get_control(_PR_GET_SECUREBITS)),
    }
    calls = _CALLS.get(os.uname().machine, {})
    if calls:
        facts["I/O priority"] = str(linux.system_call(calls["ioprio_get"], 1, 0))
        facts["session keyring"] = str(linux.system_call(calls["keyctl"], 0, -3, 0))
    for line in content("/proc/self/status").splitlines():
        name, _, value = line.partition(":")
        if name in _SIGNALS:
            facts[_SIGNALS[name]] = _signals(int(value, 16) & ~_OF_THREADS)
        elif name in _STATUS:
            facts[name] = value.strip()
    facts.update({name: " ".join(content(f"/proc/self/{name}").split()) for name in _FILES})
    for name in entries("/proc/self/ns"):
        facts[f"namespace {name}"] = _link(f"ns/{name}")
    return facts | _limits()


def _unless_refused(ask: Callable[[], str]) -> str:
    """Return an attribute, or an empty string if the system doesn't report it. For example, musl
    doesn't report the CPU scheduler.
    """
    try:
        return ask()
    except (AttributeError, OSError):
        return ""


def difference(made: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Describe the first attribute that differs, or return an empty string if all of them are
    equal.
    """
    for name in sorted(made.keys() | now.keys()):
        if made.get(name) != now.get(name):
            return f"{name} is {now.get(name) or 'none'}, but was {made.get(name) or 'none'}"
    return ""


def import_variables(
    variables: Mapping[str, str],
    reads: Collection[str],
    prefixes: Collection[str],
    but: Collection[str],
) -> Variables:
    """Determine which environment variables imports depend on.

    Args:
        variables: the modules' environment during the import.
        reads: the names of the variables that the imports have read.
        prefixes: name prefixes of further variables that count.
        but: name prefixes of variables that do not count unless they were read.
    """
    salt = os.urandom(16).hex()
    made = Variables({}, tuple(sorted(prefixes)), tuple(but), salt)
    return made._replace(hashes=_hashed(variables, {*reads, *_native(variables, made)}, salt))


def variable_difference(made: Variables, variables: Mapping[str, str], own: Collection[str]) -> str:
    """Describe the first variable that differs, or return an empty string if all of them are equal.

    Args:
        made: the variables that the existing imports depend on.
        variables: the environment of the workers in the job.
        own: the names of variables to ignore. These are the variables that differ between workers,
            which no import has read, and the variables that the script sets.
    """
    names = {*made.hashes, *_native(variables, made)}.difference(own)
    now = _hashed(variables, names, made.salt)
    for name in sorted(names):
        was, is_now = made.hashes.get(name, ""), now[name]
        if was != is_now:
            if not is_now:
                return f"{name} is no longer set"
            return f"{name} changed" if was else f"{name} is now set"
    return ""


def _native(variables: Mapping[str, str], made: Variables) -> list[str]:
    return [x for x in variables if x.startswith(made.prefixes) and not x.startswith(made.but)]


def _hashed(variables: Mapping[str, str], names: Collection[str], salt: str) -> dict[str, str]:
    return {name: _hash(salt, name, variables[name]) if name in variables else "" for name in names}


def _hash(salt: str, name: str, value: str) -> str:
    text = "\0".join((salt, name, value)).encode(errors="surrogateescape")
    return hashlib.sha256(text).hexdigest()


def _signals(mask: int) -> str:
    """Return the names of the signals in a mask that /proc shows."""
    numbers = [number for number in range(1, mask.bit_length() + 1) if mask >> number - 1 & 1]
    return " ".join(map(signal_name, numbers))


def _memory_policy() -> str:
    """Return this process's memory policy. It is taken from the process's first mapping, to which
    the policy applies (numa_maps, proc(5)).
    """
    try:
        with open("/proc/self/numa_maps", buffering=1) as file:
            return file.readline().split()[1]
    except (OSError, IndexError):
        return ""


def _limits() -> dict[str, str]:
    """Return the limits that a worker has. They may differ from this process's own, because an
    agent may raise its open-file limit.
    """
    found = {}
    for name in dir(resource):
        if name.startswith("RLIMIT_"):
            number = getattr(resource, name)
            limits = resource.getrlimit(number)
            if number == resource.RLIMIT_NOFILE:
                limits = descriptors.worker_limits(limits)
            found[f"limit {name[len('RLIMIT_') :]}"] = "{}:{}".format(*limits)
    return found


def _link(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/{name}")
    except OSError:
        return ""
