"""Checks relight on a machine with one NVIDIA GPU: `make gpu`, or `python -m benchmarks.gpu`.

It takes three to four minutes, or six at most, and uses the torch that is installed for this
interpreter. It prints a table; `--out FILE` also writes it to a file, and `--logs DIR` writes a
single log file with all commands and their output. `--device cpu` tests the script itself without a
GPU.

Exit code: 0 if all checks passed, 1 if a check failed, 2 if a prerequisite is missing.
"""

import argparse
import ctypes.util
import io
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from benchmarks import results
from benchmarks.gpu import card, run
from benchmarks.gpu.card import Card, NoCard
from benchmarks.gpu.checks import CHECKS
from benchmarks.gpu.run import Bench, Row

LIMIT_S = 360.0
_TORCH_LIMIT_S = 150.0
"""The time limit for the first import of torch and a CUDA context, possibly from a slow disk."""
_LAST_S = 12.0
"""The time reserved for the last check."""
_TORCH = """
import json
try:
    import torch
except ImportError as error:
    print("facts", json.dumps({"error": f"torch can't be imported: {error}"}))
else:
    found = {"torch": torch.__version__, "cuda": torch.version.cuda, "count": 0, "error": ""}
    if found["cuda"]:
        try:
            torch.ones(1, device="cuda").item()
            found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
            found["count"] = torch.cuda.device_count()
            found["name"] = torch.cuda.get_device_name()
        except Exception as error:
            found["error"] = f"torch can't use a GPU: {str(error).strip().splitlines()[0]}"
    print("facts", json.dumps(found))
"""


def main() -> int:
    """Run the checks, and print and write the table."""
    names = [check.name for check in CHECKS]
    parser = argparse.ArgumentParser(description="Check relight on a machine with one NVIDIA GPU.")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for all; default 360")
    parser.add_argument("--out", help="file for the table")
    parser.add_argument("--logs", help="directory for gpu.log: all commands and their output")
    options = parser.parse_args()
    begin = time.monotonic()
    facts = torch_facts()
    found, problems = find_card(options.device, facts)
    if found is None:
        for problem in problems:
            print(f"make gpu: {problem}", file=sys.stderr)
        print("make gpu: the checks were not run; PYTHON=/path/to/python3 names an interpreter "
              "whose torch can use the GPU", file=sys.stderr)  # fmt: skip
        return 2
    if options.logs:
        os.makedirs(options.logs, exist_ok=True)
    log: TextIO = open(Path(options.logs, "gpu.log"), "w") if options.logs else io.StringIO()
    rows: list[Row] = []
    heads = machine(found, facts)
    bench = Bench(options.device, found, log)
    bench.shared["before_mib"] = found.used_mib()
    heads.append(f"{bench.shared['before_mib']:.0f} MiB of GPU memory in use before")
    for line in heads:
        print(line, flush=True)
        log.write(f"{line}\n")
    print(flush=True)
    try:
        for check in CHECKS:
            if check.name not in options.only:
                continue
            left_s = options.limit - (time.monotonic() - begin)
            row = run.run_check(bench, check, left_s - (_LAST_S if check != CHECKS[-1] else 0))
            rows.append(row)
            print(f"| {row.as_text()} | {row.seconds:.1f} s", flush=True)
            if options.out:  # written now, so that it survives whatever happens next
                Path(options.out).write_text(as_text(heads, rows, time.monotonic() - begin))
    finally:
        bench.clean()
        run.remove(bench)
        text = as_text(heads, rows, time.monotonic() - begin)
        print(f"\n{text}", flush=True)
        log.write(f"\n{text}")
        log.close()
    return 1 if any(row.result == "FAILED" for row in rows) else 0


def torch_facts() -> dict[str, Any]:
    """Return torch's version and whether it can use a GPU, determined in a new process."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TORCH], stdin=subprocess.DEVNULL, capture_output=True,
            check=False, text=True, errors="replace", timeout=_TORCH_LIMIT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": f"torch made no tensor on the GPU within {_TORCH_LIMIT_S:.0f} s"}
    begin = done.stdout.find("facts {")
    if begin < 0:
        said = (done.stdout + done.stderr).strip().splitlines()
        return {"error": f"torch ends with {done.returncode}: {' '.join(said[-1:])}"}
    found: dict[str, Any] = json.loads(done.stdout[begin:].removeprefix("facts ").splitlines()[0])
    return found


def find_card(device: str, facts: dict[str, Any]) -> tuple[Card | None, list[str]]:
    """Return the card, or None and the list of missing prerequisites."""
    problems = []
    if facts.get("error"):
        problems.append(f"{facts['error']} (in {sys.executable})")
    elif not facts.get("cuda") and device == "cuda":
        problems.append(f"torch {facts['torch']} of {sys.executable} is built without CUDA")
    if device == "cpu":
        return (None, problems) if "torch" not in facts else (NoCard(), [])
    try:
        found = card.find()
    except OSError as error:
        library = "" if ctypes.util.find_library("nvidia-ml") else ", and no libnvidia-ml.so.1"
        return None, [*problems, f"no NVIDIA GPU: {error}{library}"]
    return (None, problems) if problems else (found, [])


def machine(found: Card, facts: dict[str, Any]) -> list[str]:
    """Return the lines that describe the machine."""
    nccl = f", NCCL {facts['nccl']}" if facts.get("nccl") else ""
    cuda = f", CUDA {facts['cuda']}" if facts.get("cuda") else ""
    driver = f", driver {found.driver}" if found.driver else ""
    count = f" (first of {facts['count']})" if facts.get("count", 0) > 1 else ""
    return [
        f"{found.name}{count}{driver}, torch {facts['torch']}{cuda}{nccl}",
        f"{os.cpu_count()} processors, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}",
    ]


def as_text(heads: list[str], rows: list[Row], seconds: float) -> str:
    """Return the table in Markdown, preceded by the description of the machine."""
    table = results.table("check | result | details", (row.as_text() for row in rows))
    lines = [*(f"{line}." for line in heads), f"{seconds:.0f} s in all.", "", *table]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
