"""How accurate the failure reports are: `python -m tests.diagnosis [NAME…]`; see also `--help`.

Run every fault in the corpora with relight, and with `--torchrun` also with torchrun, and compare
the report with the truth given in the script:

    # truth: rank=1 line=9 kind=exception says=ValueError: bad record
    # also: a regular expression that matches in the first three lines of a good report
    # never: one that does not match anywhere in it, because that would be false
    # run: {L} --nproc-per-node=2 {C}/script.py

`first` has faults that were once reported wrongly; `second` and `third` were written without any
knowledge of the code or the other faults. `--write` writes docs/diagnosis.md.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PAGE = ROOT / "docs" / "diagnosis.md"
CORPORA = ("first", "second", "third")
_LIMIT_S = 120
_TRUTH = re.compile(r"rank=(\S+) line=(\d+) kind=(\S+) says=(.*)")
_HEADER = re.compile(r"^(?:#|//) (truth|also|never|run): ?(.*)$", re.MULTILINE)
_RANKS = re.compile(r"\branks? ([\d, -]+\d|\d)")
_TORCHRUN_RANK = re.compile(r"^\s*rank\s*: (\d+)", re.MULTILINE)


class Fault(NamedTuple):
    """A script, its command, and the contents of a good report about it.

    `rank` is a number, `all`, or `none`; `line` is 0 if the line does not matter.
    """

    path: Path
    rank: str
    line: int
    kind: str
    says: str
    also: tuple[str, ...]
    never: tuple[str, ...]
    run: str

    @property
    def name(self) -> str:
        """The corpus and the script."""
        return f"{self.path.parent.name}/{self.path.stem}"


class Score(NamedTuple):
    """Which parts of a report are right. `agrees` means that the JSON report and `relight list`,
    which shows the same as `relight status`, agree with the console.
    """

    rank: bool
    line: bool
    reason: bool
    true: bool
    agrees: bool

    @property
    def is_right(self) -> bool:
        """Whether all parts are right."""
        return all(self)


def faults(names: Sequence[str] = (), corpora: Sequence[str] = CORPORA) -> list[Fault]:
    """Return the faults in these corpora, or only those whose names start with one of `names`."""
    found = []
    for corpus in corpora:
        for path in sorted((HERE / corpus).iterdir()):
            wanted = not names or any(path.name.startswith(name) for name in names)
            if path.suffix in (".py", ".sh", ".c") and wanted:
                found.append(_fault(path))
    return found


def _fault(path: Path) -> Fault:
    headers: dict[str, list[str]] = {"truth": [], "also": [], "never": [], "run": []}
    for key, text in _HEADER.findall(path.read_text()):
        headers[key].append(text)
    truth = _TRUTH.fullmatch(headers["truth"][0].strip())
    assert truth is not None, path
    rank, line, kind, says = truth.groups()
    run = headers["run"] or [f"{{L}} --nproc-per-node=2 {{C}}/{path.name}"]
    also, never = tuple(headers["also"]), tuple(headers["never"])
    return Fault(path, rank, int(line), kind, says.strip(), also, never, run[0])


def run(fault: Fault, launcher: str) -> tuple[str, dict[str, object]]:
    """Return the stderr of a fault's launcher and its JSON report or None. In the report, `listed`
    is the failure reason from `relight list`. Short jobs may be missing there.
    """
    place = Path(tempfile.mkdtemp(prefix="diagnosis-", dir="/tmp"))
    try:
        report = place / "report.json"
        command = fault.run
        if "relight" in launcher:
            command = command.replace("{L}", f"{launcher} --failure-report={report}", 1)
        else:
            command = re.sub(r"--hang-timeout=\S+ ", "", command)
            if "--nnodes" not in command:  # several runs would share torchrun's default port
                command = command.replace("{L}", f"{launcher} --standalone", 1)
        command = command.replace("{L}", launcher).replace("{C}", str(fault.path.parent))
        path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        own = ("RELIGHT_", "TORCHELASTIC_", "PYTHONFAULTHANDLER")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        mine = {"PATH": path, "TMPDIR": str(place), "XDG_RUNTIME_DIR": str(place)}
        mine["RELIGHT_STATE_DIR"] = str(place)  # or `relight list` shows the user's submitted jobs
        environment = {**inherited, **mine}
        done = subprocess.run(
            ["timeout", "--kill-after=10", str(_LIMIT_S), "bash", "-c", command],
            cwd=place, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, errors="replace", check=False,
        )  # fmt: skip
        found = json.loads(report.read_text()) if report.exists() else {}
        if found:
            listed = subprocess.run(
                [sys.executable, "-m", "relight", "list", "--json"],
                env=environment, capture_output=True, text=True, check=True,
            )  # fmt: skip
            found["listed"] = [each.get("message") for each in json.loads(listed.stdout)]
        return done.stderr, found
    finally:
        shutil.rmtree(place, ignore_errors=True)


def report_of(stderr: str) -> list[str]:
    """Return the lines of relight's last report."""
    end = stderr.rfind("\nexit code ")
    begins = [m.start() for m in re.finditer(r"^relight: ", stderr[: max(end, 0)], re.MULTILINE)]
    if not begins:
        return stderr.strip("\n").split("\n")
    text = stderr[begins[-1] :].removeprefix("relight: ")
    last = text.find("\n", text.find("\nexit code ") + 1)
    return text[: last if last > 0 else len(text)].split("\n")


def score(fault: Fault, lines: Sequence[str], found: dict[str, object]) -> Score:
    """Compare a relight report with the truth."""
    if fault.kind == "success":
        return Score(*[not found] * 5)
    first, head, text = lines[0], "\n".join(lines[:3]), "\n".join(lines)
    blamed = found.get("ranks")
    ranks = [str(rank) for rank in blamed] if isinstance(blamed, list) else _ranks(first)
    if fault.rank == "none":
        rank = found.get("certainty") == "not known" or first.startswith(("the ranks", "ranks "))
    elif fault.rank == "all":
        rank = bool(ranks)  # all of them have to be right
    else:
        rank = fault.rank in ranks
    place = "\n".join(lines[:5])
    shown, listed = str(found.get("headline", "")).strip(), found.get("listed")
    return Score(
        rank=rank,
        line=not fault.line
        or any(f"{fault.path.name}{sep}{fault.line}" in place for sep in (":", ": line ")),
        reason=fault.says in head and all(re.search(each, head) for each in fault.also),
        true=not any(re.search(each, text) for each in fault.never),
        agrees=shown.startswith(first.removesuffix("."))  # a place may follow
        and found.get("text") == list(lines)
        and isinstance(listed, list)
        and all(each == shown for each in listed),
    )


def _ranks(line: str) -> list[str]:
    """Return the ranks that a headline names first."""
    match = _RANKS.search(line)
    ranks: list[str] = []
    for part in match[1].split(",") if match else ():
        low, _, high = part.strip().partition("-")
        ranks += map(str, range(int(low), int(high or low) + 1))
    return ranks


def score_torchrun(fault: Fault, stderr: str) -> Score:
    """Compare torchrun's output with the truth; all of it counts, not only its first lines."""
    root = stderr.rpartition("Root Cause")[2]
    ranks = _TORCHRUN_RANK.findall(root)
    return Score(
        rank=fault.rank in ("all", "none") or fault.rank in ranks[:1],
        line=not fault.line or f'{fault.path.name}", line {fault.line}' in stderr,
        reason=fault.says in stderr,
        true=True,
        agrees=True,
    )


def _table(title: str, scores: dict[Fault, Score]) -> list[str]:
    count = len(scores)
    cells = [f"{sum(getattr(s, f) for s in scores.values())}" for f in ("rank", "line", "reason")]
    false = sum(not s.true for s in scores.values())
    return [f"| {title} | {count} | {' | '.join(cells)} | {false} |"]


def main() -> int:
    """Run the faults; return 1 if one of relight's reports is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.diagnosis")
    parser.add_argument("names", nargs="*", help="beginnings of names of scripts")
    parser.add_argument("--torchrun", action="store_true", help="run them with torchrun as well")
    parser.add_argument("--jobs", type=int, default=1, help="how many faults run at a time")
    parser.add_argument("--write", action="store_true", help="write docs/diagnosis.md")
    options = parser.parse_args()
    relight = shlex.join([sys.executable, "-m", "relight", "run"])
    torchrun = shlex.join([sys.executable, "-m", "torch.distributed.run"])
    found = faults(options.names)

    def tried(fault: Fault) -> tuple[Sequence[str], Score, Score | None]:
        stderr, report = run(fault, relight)
        lines = report_of(stderr)
        of_torchrun = None
        if options.torchrun and fault.kind != "hang" and "--hang-timeout" not in fault.run:
            of_torchrun = score_torchrun(fault, run(fault, torchrun)[0])
        return lines, score(fault, lines, report), of_torchrun

    ours: dict[Fault, Score] = {}
    theirs: dict[Fault, Score] = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        for fault, (lines, own, other) in zip(found, pool.map(tried, found), strict=True):
            ours[fault] = own
            theirs.update({fault: other} if other else {})
            wrong = [name for name, right in own._asdict().items() if not right]
            print(f"{fault.name}: {'WRONG: ' + ', '.join(wrong) if wrong else 'right'}", flush=True)
            if wrong:
                print(f"    rank={fault.rank} line={fault.line} says={fault.says}")
                print("".join(f"    | {line}\n" for line in lines[:12]), flush=True)
    right = sum(each.is_right for each in ours.values())
    print(f"{right} of {len(ours)} reports are right")
    rows = ["| | faults | rank | line | reason | false |", "|---|---|---|---|---|---|"]
    for corpus in CORPORA:
        part = {f: s for f, s in ours.items() if f.path.parent.name == corpus}
        rows += _table(f"relight, {corpus} corpus", part)
        part = {f: s for f, s in theirs.items() if f.path.parent.name == corpus}
        rows += _table(f"torchrun, {corpus} corpus, without hangs", part) if part else []
    print("\n".join(rows))
    if options.write:
        text = PAGE.read_text()
        head, _, rest = text.partition("<!-- table -->\n")
        PAGE.write_text(
            f"{head}<!-- table -->\n" + "\n".join(rows) + "\n" + rest[rest.find("\n\n") :]
        )
    return 0 if right == len(ours) else 1


if __name__ == "__main__":
    sys.exit(main())
