"""Survey which packages can be preloaded, and how warm workers differ: `make packages`.

For each package, a two-rank job is started warm on a terminal, with `--preload` for that package
only. Then one job preloads torch and all packages, and another imports the same cold. The workers
report all numbers and strings held by their modules (`tests/warm/draws.py`). The table is written
to PAGE.

    python -m tests.packages.survey [--only tqdm,timm] [--page docs/packages.md] [--kept FILE]

With `--kept`, each successful run is saved in a file and not repeated.
"""

import argparse
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "packages.md"
BEGIN, END = "<!-- survey -->", "<!-- end of survey -->"
LIMIT_S = 3600
PACKAGES = {
    "tqdm": "tqdm", "transformers": "transformers", "accelerate": "accelerate",
    "datasets": "datasets", "peft": "peft", "lightning": "lightning", "deepspeed": "deepspeed",
    "timm": "timm", "torchvision": "torchvision", "torchmetrics": "torchmetrics", "wandb": "wandb",
    "mlflow": "mlflow", "tensorboard": "torch.utils.tensorboard", "hydra-core": "hydra",
    "omegaconf": "omegaconf", "pandas": "pandas", "scikit-learn": "sklearn", "scipy": "scipy",
    "matplotlib": "matplotlib.pyplot", "opencv-python-headless": "cv2", "pyarrow": "pyarrow",
    "einops": "einops", "safetensors": "safetensors", "sentencepiece": "sentencepiece",
    "fsspec": "fsspec", "s3fs": "s3fs", "boto3": "boto3", "aiohttp": "aiohttp",
    "requests": "requests", "pydantic": "pydantic", "rich": "rich.progress", "click": "click",
    "jsonargparse": "jsonargparse", "fire": "fire", "numba": "numba", "h5py": "h5py",
    "zarr": "zarr", "ray": "ray", "sympy": "sympy", "networkx": "networkx",
}  # fmt: skip
"""Each package's name, and the module that training code imports from it."""
FIRST_WARM = (
    sys.executable, "-c",
    "from relight.warm import preloading as warm\n"
    "warm._waits = lambda *_: True\nwarm._PATIENCE_S = 3600\n"
    "from relight.cli.main import entry; entry()",
)  # fmt: skip
MAX_NAMED = 4
"""Variables for one package each."""
TOLD = ("time ", "address ", "pid ")
"""Harmless differences found by `draws.look`: warm workers all have the same (decision 11)."""


class Run(NamedTuple):
    """A finished two-rank job, as reported by its workers and the event log."""

    ranks: list[dict[str, Any]]
    events: list[dict[str, Any]]
    output: str

    def reasons(self) -> dict[str, str]:
        """Return why modules were left out or, under "", why the workers started cold."""
        found = {e["module"]: e["reason"] for e in self.events if e["event"] == "PreloadWithout"}
        starts = [e for e in self.events if e["event"] == "WorkersForked"]
        if not self.ranks:
            found[""] = f"the job failed: {self.output[-500:]}"
        elif not starts or not starts[-1]["warm"]:
            found[""] = starts[-1]["reason"] if starts else "preload is off"
        return found


def run(modules: list[str], preload: str, *, values: bool = False) -> Run:
    """Run a job on a terminal, with workers that import these modules."""
    folder = Path(tempfile.gettempdir()) / f"survey-{os.getpid()}"  # the same for all runs
    folder.mkdir()
    ours = ("RELIGHT_", "TORCHELASTIC_", "PET_")
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(ours)},
        "SURVEY_MODULES": ",".join(modules),
        "SURVEY_RESULT": str(folder / "rank"),
        # Sets have the same order in all processes, so any remaining difference is random.
        "PYTHONHASHSEED": "0",
        "TERM": "xterm",
        **({"SURVEY_VALUES": str(HERE.parent / "warm")} if values else {}),
    }
    command = [
        *FIRST_WARM, "run", f"--preload={preload}", "--nproc-per-node=2",
        f"--log-dir={folder / 'logs'}", "-v", "--rdzv-id=survey",
        str(HERE / "worker.py"),
    ]  # fmt: skip
    reading, writing = pty.openpty()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=writing, stderr=writing, env=environment,
        cwd=folder, start_new_session=True,
    )  # fmt: skip
    os.close(writing)
    printed: list[bytes] = []
    reader = threading.Thread(target=drain, args=(reading, printed), daemon=True)
    reader.start()
    try:
        process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()
    reader.join(5)
    events = [
        json.loads(line)
        for path in folder.rglob("events.jsonl")
        for line in path.read_text().splitlines()
    ]
    ranks = [json.loads(path.read_text()) for path in sorted(folder.glob("rank*"))]
    shutil.rmtree(folder)
    output = b"".join(printed).decode(errors="replace")
    return Run(ranks if len(ranks) == 2 else [], events, output)


def drain(fd: int, printed: list[bytes]) -> None:
    """Read from a terminal until no process writes to it any more."""
    try:
        while data := os.read(fd, 65536):
            printed.append(data)
    except OSError:
        pass
    os.close(fd)


def differences(cold: Run, warm: Run) -> list[tuple[str, str]]:
    """Return what differs in warm workers, by path, and how.

    Either the two warm workers agree and the two cold ones don't, or the two cold ones agree and a
    warm one differs.
    """
    (a, b), (c, d) = ([rank["values"] for rank in job.ranks] for job in (cold, warm))
    found = []
    for path in sorted(a.keys() & b.keys() & c.keys() & d.keys()):
        values = a[path], b[path], c[path], d[path]
        if any(value.startswith(TOLD) or '  File "' in value for value in values):
            continue  # a time, an address, a traceback
        if a[path] != b[path] and c[path] == d[path]:
            found.append((path, "the same in all warm workers"))
        elif a[path] == b[path] and {c[path], d[path]} != {a[path]}:
            is_path = os.sep in a[path] + c[path]
            how = "another path" if is_path else f"cold {a[path][:60]}, warm {c[path][:60]}"
            found.append((path, how))
    before, after = cold.ranks[0]["process"], warm.ranks[0]["process"]
    found += [(f"process: {name}", f"cold {before[name]}, warm {after[name]}")
              for name in before if before[name] != after[name]]  # fmt: skip
    return sorted(found)


def by_owner(found: list[tuple[str, str]]) -> dict[str, list[str]]:
    """Return a line for each module variable, by package. Nested objects count as one."""
    lines: dict[str, dict[str, list[str]]] = {}
    for path, how in found:
        variable = re.match(r"[^\[]*(\['?\w*'?\])?", path)
        assert variable is not None
        name = re.sub(r"\['(\w+)'\]", r".\1", variable[0])
        lines.setdefault(name.partition(".")[0], {}).setdefault(name, []).append(how)
    return {
        owner: [
            *(
                f"`{name}`: {hows[0]}" + (f" (and {len(hows) - 1} more values)" if hows[1:] else "")
                for name, hows in [*names.items()][:MAX_NAMED]
            ),
            *(
                [f"and {len(names) - MAX_NAMED} more variables of {owner}"]
                if len(names) > MAX_NAMED
                else []
            ),
        ]
        for owner, names in lines.items()
    }


def table(names: list[str], alone: dict[str, Run], together: Run, cold: Run) -> list[str]:
    """Return the page's table."""
    in_list = set(together.ranks[0]["preloaded"]) if together.ranks else set()
    reasons = together.reasons()
    seen = by_owner(differences(cold, together) if cold.ranks and together.ranks else [])
    lines = ["| package | module | alone | with torch and all others | "
             "reason for leaving it out; differences |",
             "|---|---|---|---|---|"]  # fmt: skip
    count = {"alone": 0, "together": 0}
    for name in names:
        module = PACKAGES[name]
        warm = bool(alone[name].ranks) and module in alone[name].ranks[0]["preloaded"]
        states = [warm and "" not in alone[name].reasons(),
                  module in in_list and "" not in reasons]  # fmt: skip
        count["alone"] += states[0]
        count["together"] += states[1]
        whys = [*alone[name].reasons().values()][:1] if not states[0] else []
        if not states[1] and not whys:
            whys = [reasons.get(module, reasons.get("", "it needs one that is left out"))]
        owner = "tensorboard" if name == "tensorboard" else module.partition(".")[0]
        whys += seen.pop(owner, [])
        words = ["warm" if state else "left out" for state in states]
        cells = [f"{name} {version(name)}", f"`{module}`", *words, "; ".join(whys)]
        row = " | ".join(cell.replace("|", "\\|") for cell in cells)
        lines.append(f"| {row} |")
    rest = [f"- {line}" for owner in sorted(seen) for line in seen[owner]]
    ready = next((e for e in reversed(together.events) if e["event"] == "PreloadReady"), {})
    return [
        f"`make packages`, {datetime.now(UTC).date()}, {os.cpu_count()} processors, Python"
        f" {sys.version.split()[0]}. "
        f"{count['alone']} of {len(names)} packages are warm when preloaded alone, and"
        f" {count['together']} when preloaded together with torch {version('torch')}, which is"
        f" {'warm as well' if 'torch' in in_list else 'not warm'} "
        f"({ready.get('modules', 0)} modules, {ready.get('mib', 0):.0f} MiB).", "",
        *lines, "",
        "Other differences in the job with all packages, in torch and in dependencies of the "
        "packages:",
        "", *(rest or ["- nothing"]),
    ]  # fmt: skip


def main() -> None:
    """Run the survey and write the table."""
    parser = argparse.ArgumentParser(description="Survey packages for --preload.")
    parser.add_argument("--only", default=",".join(PACKAGES), help="packages, separated by commas")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--kept", type=Path, default=Path(os.devnull))
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    kept: dict[str, list[Any]] = {}
    if arguments.kept.is_file():
        kept = json.loads(arguments.kept.read_text())

    def once(key: str, modules: list[str], *, preload: bool = True, values: bool = False) -> Run:
        if key not in kept:
            made = run(modules, ",".join(modules) if preload else "off", values=values)
            print(key, *made.reasons().values() or ["warm"], flush=True)
            if not made.ranks:
                return made
            kept[key] = list(made)
            if arguments.kept != Path(os.devnull):
                arguments.kept.write_text(json.dumps(kept))
        return Run(*kept[key])

    modules = ["torch", *(PACKAGES[name] for name in names)]
    together = once("together", modules, values=True)
    cold = once("cold", modules, preload=False, values=True)
    alone = {name: once(name, [PACKAGES[name]]) for name in names}
    lines = table(names, alone, together, cold)
    before, _, rest = arguments.page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    arguments.page.write_text("\n".join([before + BEGIN, *lines, END]) + after)


if __name__ == "__main__":
    main()
