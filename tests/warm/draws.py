"""Values that modules draw during import must be drawn again in each warm worker.

    python tests/warm/draws.py MODULE …

runs two cold and two warm workers that import the modules. It prints values that are equal in both
warm workers but differ between the cold ones: the state of random generators, and numbers, text,
and bytes that modules hold. Times, pids, and addresses are listed separately, because they are the
same in all warm workers (see `docs/decisions/0011-warm.md`). The exit code is 1 if anything else is
found, and 2 if workers did not start warm.
"""

import hashlib
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import types
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FIRST_WARM = (
    sys.executable, "-c",
    "from relight.warm import preloading; preloading._waits = lambda *_: True\n"
    "from relight.cli.main import entry; entry()",
)  # fmt: skip
DEPTH = 6
UNITS = (1, 1e3, 1e6, 1e9)
MAX = 2_000_000
ATOMS = (int, float, str, bytes, complex, uuid.UUID)
STATES = ("getstate", "get_state", "bit_generator", "initial_seed")
"""The attributes of random generators, with the names that their libraries use."""
PLAIN = (dict, list, tuple, types.SimpleNamespace)


def look(names: list[str]) -> dict[str, str]:
    """Return all values that can be reached from the modules, by path."""
    for name in names:
        importlib.import_module(name)
    begin = time.time()
    addresses = _addresses()
    seen: set[int] = set()
    found: dict[str, str] = {}
    left_out = {"__main__", "builtins", "sys", "os", "posix", "gc", "time"}

    def is_address(value: int) -> bool:
        place = bisect_right(addresses, (value, value)) - 1
        return addresses[place][0] <= value < addresses[place][1]

    def kind(value: object) -> str:
        if isinstance(value, float):
            for clock in (time.time, time.monotonic, time.process_time):
                if abs(value - clock()) < 600:
                    return "time "
        if type(value) is int:
            if is_address(value):
                return "address "
            if value in (os.getpid(), os.getppid()):
                return "pid "
            if 1e9 < value < 1e19 and any(abs(value / unit - begin) < 600 for unit in UNITS):
                return "time "
        if isinstance(value, str):
            numbers = (int(number) for number in re.findall("[0-9]{12,15}", value))
            if " at 0x" in value or any(map(is_address, numbers)):  # pydantic has such numbers
                return "address "
        return ""

    def walk(value: object, path: str, depth: int) -> None:
        if isinstance(value, ATOMS):
            if not isinstance(value, bool) and len(found) < MAX:
                found[path] = kind(value) + repr(value)[:200]
            return
        if depth > DEPTH or id(value) in seen:
            return
        seen.add(id(value))
        for name, item in children(value):
            walk(item, f"{path}{name}", depth + 1)

    for name, module in sorted(sys.modules.copy().items()):
        if name.partition(".")[0] not in left_out and isinstance(module, types.ModuleType):
            walk(dict(vars(module)), name, 0)
    for name, draw in DRAWS.items():
        if name.partition(" ")[0] in sys.modules:
            found[f"drawn {name}"] = repr(draw(sys.modules[name.partition(" ")[0]]))
    return found


def children(value: object) -> Iterator[tuple[str, object]]:
    """Return the content of an object, or the state of a random generator."""
    if isinstance(value, dict):
        for key, item in list(dict.items(value)):
            if isinstance(key, (str, int, bytes)):
                yield f"[{key!r}]", item
        return
    if isinstance(value, (list, tuple)):
        yield from ((f"[{number}]", item) for number, item in enumerate(list(value)[:10000]))
        return
    if isinstance(value, (type, types.FunctionType)):
        if isinstance(value, types.FunctionType):
            for number, cell in enumerate(value.__closure__ or ()):
                try:
                    yield f"<{number}>", cell.cell_contents
                except ValueError:
                    pass  # empty
        yield from ((f".{n}", v) for n, v in list(vars(value).items()) if n != "__dict__")
        return
    kind = type(value)
    for name in STATES:
        if name in dir(kind) and not isinstance(value, types.ModuleType):
            try:
                state = getattr(value, name)
                yield f".{name}", _digest(state.state if name == "bit_generator" else state())
            except Exception:
                pass  # an object that merely resembles one
    if kind.__module__ != "builtins":
        try:
            yield from (
                (f".{n}", v) for n, v in list(object.__getattribute__(value, "__dict__").items())
            )
        except Exception:
            pass  # it has none


def _digest(state: object) -> str:
    data = bytes(state) if type(state).__name__ == "Tensor" and not _is_wide(state) else repr(state)
    return hashlib.sha256(data if isinstance(data, bytes) else data.encode()).hexdigest()[:16]


def _is_wide(state: object) -> bool:
    return bool(getattr(state, "itemsize", 1) != 1)


def _addresses() -> list[tuple[int, int]]:
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, _, high = line.split()[0].partition("-")
        found.append((int(low, 16), int(high, 16)))
    return sorted(found)


def _key(process: Any) -> str:
    return bytes(process.current_process().authkey).hex()


DRAWS: dict[str, Callable[[Any], object]] = {
    "random": lambda m: m.random(),
    "uuid": lambda m: m.uuid1().clock_seq,
    "uuid 4": lambda m: m.uuid4(),
    "tempfile": lambda m: m.mktemp(),
    "secrets": lambda m: m.token_hex(),
    "multiprocessing.process": _key,
    "numpy": lambda m: m.random.random(),
    "numpy generator": lambda m: m.random.default_rng().random(),
    "torch initial seed": lambda m: m.initial_seed(),
    "torch": lambda m: m.rand(()).item(),
    "torch dropout": lambda m: m.nn.functional.dropout(m.ones(64)).tolist(),
    "torch permutation": lambda m: m.randperm(1000).tolist(),
    "torch generator": lambda m: m.Generator().seed(),
}


def compare(modules: list[str], names: str = "") -> tuple[list[str], list[str]]:
    """Return the values that are equal only in warm workers: drawn ones; and times, pids,
    addresses.

    Raises:
        RuntimeError: If a job failed, or workers did not start warm.
    """
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for preload in ("off", names or ",".join(modules)):
            result = subprocess.run(
                [*FIRST_WARM, "run", f"--preload={preload}", "-v",
                 "--nproc-per-node=2", f"--log-dir={folder}", __file__, *modules],
                env={**os.environ, "RESULT": f"{folder}/{preload}", "PYTHONHASHSEED": "0"},
                capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            if result.returncode:
                raise RuntimeError(f"the job failed\n{result.stderr}")
            if preload != "off" and "workers start with preloaded modules" not in result.stderr:
                raise RuntimeError(f"workers did not start warm\n{result.stderr}")
            found[preload == "off"] = [
                json.loads(Path(f"{folder}/{preload}{rank}").read_text()) for rank in range(2)
            ]
    (cold, other), (warm, same) = found[True], found[False]
    drawn, others = [], []
    for path in cold.keys() & other.keys() & warm.keys() & same.keys():
        if warm[path] == same[path] and cold[path] != other[path]:
            kinds = {x.partition(" ")[0] for x in (cold[path], other[path], warm[path])}
            (others if kinds & {"time", "pid", "address"} else drawn).append(
                f"{path}: cold {cold[path]} and {other[path]}, warm {warm[path]} in both"
            )
    return sorted(drawn), sorted(others)


def main() -> None:
    """Act as a worker, or compare workers."""
    if "RESULT" in os.environ:
        values = look(sys.argv[1:])
        Path(os.environ["RESULT"] + os.environ["RANK"]).write_text(json.dumps(values))
        os._exit(0)  # finalizing torch takes as long as importing it
    try:
        drawn, others = compare(sys.argv[1:])
    except RuntimeError as error:
        print(error)
        sys.exit(2)
    print(*(f"the same in all warm workers: {line}" for line in others), sep="\n")
    print(*(f"DRAWN ONCE {line}" for line in drawn), sep="\n")
    sys.exit(bool(drawn))


if __name__ == "__main__":
    main()
