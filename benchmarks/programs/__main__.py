"""Real programs under torchrun and relight: `python -m benchmarks.programs [NAME …]`.

    start     from running the command to the first step of both ranks
    restart   from SIGKILL of one rank to the next step of both; relight's rank is killed a minute
              after its first step, and torchrun's at once
    own work  the same restart without a launcher, in processes that already have all modules which
              the program has at its first step: from when they begin to the first step of both
    files     how many module files a restarted rank loaded itself

Both launchers get `--max-restarts=3` and no other flag (except `-v`). They and the restart without
a launcher (`own_work.py`) alternate. With `--keep-warm`, relight is started two more times with
RELIGHT_KEEP_WARM=on, and the table shows the second of these starts.

First `pip install` the packages in `requirements.txt` next to torch. The programs are fetched into
`--folder` with git, with one copy for each launcher, and data that they would download is replaced
with small synthetic data (`data.py`). Each step is followed by a pause of 0.2 s (`marker.py`), as
if an accelerator were doing the work.

The parameters and random states after steps 1 and 3 are compared with those of the preceding cold
start. If even two starts under torchrun differ, because the program sets no seed, then the states
of different ranks and restarts are required to differ from each other.
"""

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import results
from benchmarks.programs import data, marker, own_work
from benchmarks.programs.table import PROGRAMS, Program

Mark = dict[str, Any]
RANKS = 2
START_S = 600.0
RESTART_S = 300.0
_HERE = Path(__file__).parent
_FLAGS = [f"--nproc-per-node={RANKS}", "--max-restarts=3"]
LAUNCHERS = {
    "torchrun": ["-m", "torch.distributed.run", "--standalone", *_FLAGS],
    "relight": ["-m", "relight", "run", "-v", *_FLAGS],
    "own-work": [own_work.__file__, str(RANKS)],
}
NAMES = ("torchrun", "relight", "relight, second start", "own-work")


class ProgramError(Exception):
    """A program failed, or did not reach the expected steps."""


class Sample(NamedTuple):
    """One run of a program.

    Attributes:
        start_s: from running the command to the first step of both ranks.
        restart_s: from the kill (without a launcher, from the beginning) to the next step of both
            ranks; None if none was killed.
        cpu_s: the CPU time that the restarted ranks used until then.
        loaded: how many module files the restarted rank 0 loaded; `marks.jsonl` in the folder's
            `venv` contains their names for the last run.
        digests: digests of the parameters and random states, by name, attempt, rank and step.
        said: relight's messages about preloading.
    """

    start_s: float
    restart_s: float | None
    cpu_s: float
    loaded: int
    digests: dict[str, dict[str, str]]
    said: list[str]


class Bench:
    """A folder that contains the programs, and the interpreter that runs them.

    Args:
        folder: the path of the directory.
        wait_s: how long after the first step of both ranks one of them is killed.
        is_ready: whether to wait longer, until relight has reported that everything is preloaded.

    Attributes:
        runtime: the directory for the sockets of warm processes.
    """

    def __init__(self, folder: Path, wait_s: float, *, is_ready: bool) -> None:
        self._folder = folder
        self._wait_s = wait_s
        self._is_ready = is_ready
        self._venv = folder / "venv"
        self._marks = self._venv / "marks.jsonl"
        self._python = str(self._venv / "bin" / "python")
        self._make_venv()
        self.runtime = folder / "run"  # sockets of warm processes need a short path
        self.runtime.mkdir(exist_ok=True)

    def _make_venv(self) -> None:
        """Create an interpreter with this one's packages and the marker."""
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self._venv], check=True)
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        packages = self._venv / "lib" / version / "site-packages"
        shutil.copy(marker.__file__, packages / "step_marker.py")
        found = [path for path in sys.path if path.endswith("-packages")]
        relight = str(_HERE.parents[1] / "src")
        lines = [relight, *(f"import site; site.addsitedir({path!r})" for path in found)]
        (packages / "a_packages.pth").write_text("\n".join(lines) + "\n")
        (packages / "step_marker.pth").write_text("import step_marker\n")

    def missing(self, program: Program) -> str:
        """Return a package that the program needs but the interpreter lacks."""
        for name in program.packages.split():
            done = subprocess.run(
                [self._python, "-c", f"import importlib.util as u; u.find_spec({name!r}) or 1 / 0"],
                capture_output=True, check=False,
            )  # fmt: skip
            if done.returncode:
                return name
        return ""

    def place(self, program: Program, launcher: str) -> Path:
        """Create a fresh copy of a program, and return its working directory."""
        slug = "".join(letter if letter.isalnum() else "-" for letter in program.name)
        place = self._folder / slug / launcher
        shutil.rmtree(place, ignore_errors=True)
        url, _, commit = program.source.partition(" ")
        if commit:
            place.mkdir(parents=True)
            patterns = [f"/{program.below}/", *([f"!{program.unused}"] if program.unused else [])]
            for words in (
                ["init", "-q"],
                ["remote", "add", "origin", url],
                ["fetch", "-q", "--depth=1", "--filter=blob:none", "origin", commit],
                *([["sparse-checkout", "set", "--no-cone", *patterns]] if program.below else []),
                ["checkout", "-q", "FETCH_HEAD"],
            ):
                subprocess.run(["git", "-C", place, *words], check=True)
        else:
            shutil.copytree(url, place, ignore=shutil.ignore_patterns("__pycache__"))
        below = place / program.below
        for edit in program.edits:
            path = below / edit.file
            text = path.read_text()
            if edit.old not in text:
                raise ProgramError(f"{path} has no {edit.old!r}")
            path.write_text(text.replace(edit.old, edit.new))
        if program.data is not None:
            kind, where = program.data
            subprocess.run([self._python, data.__file__, kind, below / where], check=True)
        return below

    def run(
        self, program: Program, launcher: str, below: Path, *, kills: bool, **variables: str
    ) -> Sample:
        """Run a program until it has been restarted and completed another three steps. If it is not
        killed, run it until relight has preloaded everything.
        """
        self._marks.write_text("")
        log = below / "log.txt"
        environment = {
            **os.environ, **dict(program.variables), **variables,
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "PYTHONDONTWRITEBYTECODE": "0",
            "XDG_CACHE_HOME": str(below / "cache"),
        }  # fmt: skip
        command = [self._python, *LAUNCHERS[launcher], *shlex.split(program.command)]
        began = time.time()
        with open(log, "wb") as file, _running(command, below, environment, file) as agent:
            first = self._wait(agent, log, lambda m: _steps(m, 0, 1), START_S)
            if kills and launcher == "relight":  # the others have nothing to prepare
                time.sleep(self._wait_s)
            if launcher == "relight" and (self._is_ready or not kills):
                self._await_preload(agent, log)
            killed, again = time.time(), list[Mark]()
            if launcher == "own-work":
                killed = self._wait(agent, log, lambda m: _steps(m, 1, 0), START_S)[0]["time"]
            elif kills:
                os.kill(next(m["worker"] for m in first if m["rank"] == 1), signal.SIGKILL)
            if kills:
                again = self._wait(agent, log, lambda m: _steps(m, 1, 1), RESTART_S)
                self._wait(agent, log, lambda m: _steps(m, 1, 3), RESTART_S)
        digests: dict[str, dict[str, str]] = {}
        for each in self._read():
            for name, digest in each.get("digests", {}).items():
                key = f"attempt {each['attempt']} rank {each['rank']} step {each['step']}"
                digests.setdefault(name, {}).setdefault(key, digest)
        lines = log.read_text(errors="replace").splitlines()
        words = ("preload", "warm", "restart took", "the start took")
        return Sample(
            max(each["time"] for each in first) - began,
            max(each["time"] for each in again) - killed if again else None,
            sum(each["cpu_s"] for each in again),
            next((len(each["loaded"]) for each in again if each["rank"] == 0), 0),
            digests,
            [x for x in lines if x.startswith("relight: ") and any(word in x for word in words)],
        )

    def _await_preload(self, agent: "subprocess.Popen[bytes]", log: Path) -> None:
        end = time.monotonic() + START_S
        while b" is ready after " not in log.read_bytes():
            if agent.poll() is not None or time.monotonic() > end:
                raise ProgramError(f"nothing was preloaded: see {log}")
            time.sleep(0.2)

    def _read(self) -> list[Mark]:
        lines = self._marks.read_text().split("\n")[:-1]  # the last line may be incomplete
        return [json.loads(line) for line in lines]

    def _wait(
        self, agent: "subprocess.Popen[bytes]", log: Path,
        find: Callable[[list[Mark]], list[Mark]], limit_s: float,
    ) -> list[Mark]:  # fmt: skip
        """Wait until `find` finds a mark for each rank, and return these marks."""
        end = time.monotonic() + limit_s
        while len(found := find(self._read())) < RANKS:
            if agent.poll() is not None or time.monotonic() > end:
                raise ProgramError(f"no step came: see {log}")
            time.sleep(0.05)
        return found


def _steps(marks: list[Mark], attempt: int, step: int) -> list[Mark]:
    """Return each rank's first mark for a step."""
    found: dict[int, Mark] = {}
    for each in marks:
        if each["attempt"] == attempt and each["step"] == step:
            found.setdefault(each["rank"], each)
    return list(found.values())


@contextlib.contextmanager
def _running(
    command: list[str], below: Path, variables: dict[str, str], log: Any
) -> Iterator["subprocess.Popen[bytes]"]:
    agent = subprocess.Popen(
        command, cwd=below, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield agent
    finally:
        agent.terminate()
        try:
            agent.wait(60)
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait()


def verdict(ours: Sample, cold: Sample | None) -> str:
    """Describe how a restart differs from the preceding cold start.

    Args:
        ours: the run that includes the restart.
        cold: a run under torchrun, which shows what differs between any two starts; None if
            missing.
    """
    differs, shared = [], []
    for name, digests in ours.digests.items():
        if _repeats(digests):
            continue
        if cold is None or _repeats(cold.digests[name]):
            differs.append(name)
        first = [digest for key, digest in digests.items() if key.endswith("step 1")]
        if name != "parameters" and len(set(first)) < len(first):
            shared.append(name)
    return "; ".join(
        (
            f"differ: {', '.join(differs)}" if differs else "equal",
            *([f"shared: {', '.join(shared)}"] if shared else []),
        )
    )


def _repeats(digests: dict[str, str]) -> bool:
    """Return whether both attempts have the same digests for each rank and step."""
    return all(
        digest == digests[key.replace("attempt 1", "attempt 0")]
        for key, digest in digests.items()
        if key.startswith("attempt 1")
    )


Samples = dict[str, dict[str, list[Sample]]]


def _as_text(samples: Samples, wait_s: float) -> list[str]:
    rows = []
    for program, by in samples.items():
        theirs, ours, second, own = (by.get(name, []) for name in NAMES)
        cold = theirs[0] if theirs else None
        rows.append(" | ".join((
            program, *_compare(_restarts(theirs), _restarts(ours)),
            *_own(_restarts(own), _restarts(ours)),
            f"{statistics.median(each.loaded for each in ours):.0f}" if ours else "",
            " / ".join(sorted({verdict(each, cold) for each in ours})),
            *_compare([x.start_s for x in theirs], [x.start_s for x in ours]),
            *_compare([x.start_s for x in theirs], [x.start_s for x in second])[1:],
        )))  # fmt: skip
    runs = {len(x) for by in samples.values() for x in by.values() if x}
    counts = " or ".join(map(str, sorted(runs)))
    return [
        f"{RANKS} ranks; SIGKILL of one after the first step of both, under relight "
        f"{wait_s:.0f} s after it, and with --ready not before relight has preloaded all; "
        f"medians of {counts} runs, alternating. "
        f"{results.machine()}",
        "",
        *results.table(
            "program | restart, torchrun | relight | factor | own work | more than own work | "
            "files | steps 1 and 3 | start, torchrun | relight | factor | second start | factor",
            rows,
        ),
    ]


def _restarts(samples: list[Sample]) -> list[float]:
    return [each.restart_s for each in samples if each.restart_s is not None]


def _compare(theirs: list[float], ours: list[float]) -> tuple[str, str, str]:
    """Return both medians, and the ratio of theirs to ours."""
    medians = [f"{statistics.median(x):.2f} s" if x else "" for x in (theirs, ours)]
    factor = f"{statistics.median(theirs) / statistics.median(ours):.1f}" if theirs and ours else ""
    return medians[0], medians[1], factor


def _own(own: list[float], ours: list[float]) -> tuple[str, str]:
    """Return the median of a program's own work, and how much longer our median is."""
    if not own or not ours:
        return "", ""
    median = statistics.median(own)
    return f"{median:.2f} s", f"{statistics.median(ours) - median:.2f} s"


def main() -> None:
    """Run the programs, print the table, and write the results."""
    parser = results.arguments("Real programs under torchrun and relight.")
    names = [each.name for each in PROGRAMS]
    parser.add_argument("programs", nargs="*", metavar="NAME", help="; ".join(names))
    parser.add_argument("--folder", default=".build/programs", help="for the programs")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--wait", type=float, default=60.0, help="seconds before relight's kill")
    parser.add_argument("--ready", action="store_true", help="kill when the preloading is done")
    parser.add_argument("--launchers", nargs="+", choices=LAUNCHERS, default=list(LAUNCHERS))
    parser.add_argument("--keep-warm", action="store_true", help="measure a second start, too")
    options = parser.parse_args()
    if unknown := set(options.programs) - set(names):
        parser.error(f"unknown programs: {', '.join(sorted(unknown))}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # exits once the program has been stopped
    bench = Bench(Path(options.folder).resolve(), options.wait, is_ready=options.ready)
    samples: Samples = {}
    for program in PROGRAMS:
        if options.programs and program.name not in options.programs:
            continue
        if package := bench.missing(program):
            print(f"{program.name}: left out, {package} is not installed", flush=True)
            continue
        try:
            by = _measure(bench, program, options)
        except (ProgramError, subprocess.CalledProcessError) as error:
            print(f"{program.name}: {error}", flush=True)
            continue
        samples[program.name] = by
        content = {name: {x: [s._asdict() for s in taken] for x, taken in by.items()}
                   for name, by in samples.items()}  # fmt: skip
        text = results.write(options.out, "programs", content, _as_text(samples, options.wait))
        print(f"\n{text}", flush=True)


def _measure(
    bench: Bench, program: Program, options: argparse.Namespace
) -> dict[str, list[Sample]]:
    by: dict[str, list[Sample]] = {}
    variables = {"XDG_RUNTIME_DIR": str(bench.runtime)}
    for turn in range(options.rounds):
        for launcher in sorted(options.launchers, reverse=not turn % 2):
            below = bench.place(program, launcher)
            taken = [bench.run(program, launcher, below, kills=True, **variables)]
            if options.keep_warm and launcher == "relight":
                kept = {**variables, "RELIGHT_KEEP_WARM": "on"}
                taken += [bench.run(program, launcher, below, kills=False, **kept) for _ in "12"]
                del taken[1]  # the first start is cold
                stop = [sys.executable, "-m", "relight", "warm", "stop"]
                subprocess.run(stop, env={**os.environ, **variables}, check=False)
            for name, sample in zip((launcher, NAMES[2]), taken, strict=False):
                by.setdefault(name, []).append(sample)
                print(f"{program.name}, {name}: start {sample.start_s:.2f} s, restart "
                      f"{sample.restart_s or 0:.2f} s, CPU {sample.cpu_s:.2f} s, "
                      f"{sample.loaded} files", *sample.said, sep="\n    ",
                      flush=True)  # fmt: skip
    return by


if __name__ == "__main__":
    main()
