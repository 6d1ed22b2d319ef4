"""Random failures of ranks whose peers keep running: `python -m tests.survivor_plays --seeds 200`.

Each seed is a job without torch. Its steps are file-based barriers. A rank fails at random points,
with SIGKILL, an exception, or an exit code, alone or together with others, and possibly before the
first step of a recovery. The job must end with exit code 0, each rank must have taken each step in
order, the ranks in an attempt must agree on their store and their world, and no process may be
left.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT_S = 120.0
STEPS = 8
SCRIPT = r"""
import json, os, pathlib, signal, sys, time
from relight.worker import progress, recoverable

here = pathlib.Path(os.environ["PLAY"])
plan = json.loads((here / "plan.json").read_text())
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
done = 0

def fail(how):
    (here / f"broken-{os.environ['MASTER_PORT']}").touch()
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        sys.exit(3)
    raise ValueError("bad batch")

def barrier(name):
    port = os.environ["MASTER_PORT"]
    (here / f"{port}-{name}-{rank}").touch()
    while not all((here / f"{port}-{name}-{each}").exists() for each in range(size)):
        if (here / f"broken-{port}").exists():
            raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer")
        time.sleep(0.001)

def fails_at(attempt, place):
    how = plan["failures"].get(f"{attempt} {place} {rank}")
    if how:
        fail(how)

@recoverable
def train(generation):
    global done
    attempt = generation.restart
    with open(here / "log", "a") as log:
        log.write(f"{attempt} {rank} {os.getpid()} {os.environ['MASTER_PORT']} "
                  f"{generation.rank} {generation.world_size}\n")
    fails_at(attempt, "begin")
    barrier("begin")
    steps = [int((here / f"done-{each}").read_text() or 0)
             for each in range(size) if (here / f"done-{each}").exists()]
    done = max(steps, default=0)
    generation.restored()
    while done < plan["steps"]:
        fails_at(attempt, done)
        barrier(f"step-{done}")
        done += 1
        temporary = here / f".done-{rank}"
        temporary.write_text(str(done))
        temporary.rename(here / f"done-{rank}")
        progress(done)
    barrier("end")

train()
"""


def play(seed: int, place: Path) -> str:
    """Run a seed's job; return the error, or an empty string."""
    draw = random.Random(seed)
    size, restarts = draw.randint(2, 5), 0
    failures: dict[str, str] = {}
    for attempt in range(draw.randint(1, 4)):
        where = draw.choice(["begin", *range(STEPS)])
        how_many = draw.choice([1, 1, 1, 2, size])
        for rank in draw.sample(range(size), min(how_many, size)):
            failures[f"{attempt} {where} {rank}"] = draw.choice(["kill", "raise", "exit"])
        restarts = attempt + 1
    (place / "plan.json").write_text(json.dumps({"failures": failures, "steps": STEPS}))
    (place / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "relight", "run", f"--nproc-per-node={size}",
               f"--max-restarts={restarts}", "--preload=off", "--shutdown-timeout=5",
               str(place / "train.py")]  # fmt: skip
    others = ("PET_", "TORCHELASTIC_", "RELIGHT_PRE", "RANK", "WORLD_SIZE", "LOCAL_RANK")
    variables = {name: text for name, text in os.environ.items() if not name.startswith(others)}
    variables["PLAY"] = str(place)
    found = subprocess.run(
        command, env=variables, cwd=place, capture_output=True, text=True, timeout=LIMIT_S,
        check=False,
    )  # fmt: skip
    what = f"{size} ranks, {failures}\n{found.stderr}"
    if found.returncode:
        return f"exit code {found.returncode}: {what}"
    lines = [line.split() for line in (place / "log").read_text().splitlines()]
    for attempt in {line[0] for line in lines}:
        of_attempt = [line for line in lines if line[0] == attempt]
        ports = {line[3] for line in of_attempt}
        ranks = [line[1] for line in of_attempt]
        if len(ports) > 1 or len(ranks) != len({*ranks}):
            return f"split brain in attempt {attempt}: {of_attempt}; {what}"
        if any(line[4:] != [line[1], str(size)] for line in of_attempt):
            return f"wrong places in attempt {attempt}: {of_attempt}; {what}"
    if {(place / f"done-{rank}").read_text() for rank in range(size)} != {str(STEPS)}:
        return f"steps are missing: {what}"
    left = [pid for _, _, pid, *_ in lines if Path("/proc", pid).exists()]
    return f"processes are left: {left}; {what}" if left else ""


def recoveries(place: Path) -> int:
    """Return how many times a process ran in more than one attempt."""
    pids = re.findall(r"(?m)^\d+ \d+ (\d+)", (place / "log").read_text())
    return len(pids) - len({*pids})


def main() -> int:
    """Run the seeds given on the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.survivor_plays")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    wrong = stayed = 0
    for seed in range(options.first, options.first + options.seeds):
        with tempfile.TemporaryDirectory(prefix="play-") as folder:
            found = play(seed, Path(folder))
            stayed += recoveries(Path(folder))
        if found:
            wrong += 1
            print(f"seed {seed}: {found}", flush=True)
    print(f"{options.seeds} seeds, {wrong} wrong; processes stayed {stayed} times")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
