"""`torchx` command lines to which relight responds differently, with TorchX's responses.

They were recorded with torchx-nightly 2026.10.26, installed in a virtual environment:

    python tests/job/differences_torchx.py torchx > tests/job/torchx-differences.jsonl
"""

import json
import os
import subprocess
import sys
import tempfile
from typing import NamedTuple

COMPONENTS = """
import torchx.specs as specs
from typing import Optional, Tuple

class Size:
    pass

def app(*args):
    role = specs.Role(name="r", image="i", entrypoint="echo", args=[str(arg) for arg in args],
                      resource=specs.Resource(cpu=1, gpu=0, memMB=1))
    return specs.AppDef(name="a", roles=[role])

def b(b: bool) -> specs.AppDef:
    return app("b is", b)

def number(n: Optional[int] = None) -> specs.AppDef:
    return app(type(n).__name__)

def pair(pair: Tuple[str, int]) -> specs.AppDef:
    return app("pair is", pair)

def items(items: list[str] = []) -> specs.AppDef:
    return app("items are", items)

def pairs(pairs: dict[str, str] = {}) -> specs.AppDef:
    return app("pairs are", pairs)

def size(size: Size = Size()) -> specs.AppDef:
    return app("any size")
"""
DRY = ("run", "--dryrun", "--json", "-s", "local_cwd")
SH = ("utils.sh", "sh", "-c")
SETTINGS = "the command's own file of settings"


class Case(NamedTuple):
    """A `torchx` command line, with TorchX's and relight's responses in `theirs` and `ours`."""

    name: str
    argv: tuple[str, ...]
    theirs: str
    ours: str
    files: tuple[tuple[str, str], ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    stdin: str = ""


CASES = (
    Case("bool-words", (*DRY, "comp.py:b", "--b", "yes"), '"b is", "False"',
         "rc 2: relight: error: --b=yes: expected true or false"),
    Case("optional-numbers", (*DRY, "comp.py:number", "--n", "7"), '["str"]', '["int"]'),
    Case("tuples", (*DRY, "comp.py:pair", "--pair", "a,1"), "rc 1: ValueError: unsupported",
         "('a', 1)"),
    Case("empty-list", (*DRY, "comp.py:items", "--items", ""), '"items are", "None"',
         '"items are", "[]"'),
    Case("key-twice", (*DRY, "comp.py:pairs", "--pairs", "A=1,A=2"), "{'A': '2'}",
         "rc 2: relight: error: --pairs=A=1,A=2: A is given twice"),
    Case("class-types", (*DRY, "comp.py:size", "--size", "1"), "rc 1: ValueError",
         "rc 2: relight: error: comp.py:size has no parameter --size"),
    Case("repeated-flags", (*DRY, "dist.ddp", "--script", "a.py", "--", "--x", "1", "--x", "2"),
         "rc 2: torchx run: error: Repeated Command Line Arguments", "a.py --x 1 --x 2"),
    Case("launcher", (*DRY, "dist.ddp", "--script", "a.py"), '"torchrun --rdzv_backend',
         '"relight run --rdzv_backend'),
    Case("least-above-most", (*DRY, "dist.ddp", "--script", "a.py", "-j", "4:2x1"), "--nnodes 4:2",
         "the minimum, 4, is above the maximum, 2"),
    Case("zero-resources", (*DRY, "dist.ddp", "--script", "a.py", "--cpu", "0"), '"cpu": 2',
         '"cpu": 0'),
    Case("dollars", (*DRY, *SH, "echo $$"), "request <echo $>", "request <echo $$>"),
    Case("read-only", (*DRY, "dist.ddp", "--script", "a.py", "--mounts",
                       "type=bind,src=/a,dst=/b,readonly=false"), '"read_only": true',
         '"read_only": false'),
    Case("json-types", ("run", "--stdin", "--json"), "rc 1: TypeError",
         "rc 2: relight: error: msg of the arguments: expected str, not 5",
         stdin=json.dumps({"component_name": "utils.echo", "scheduler": "local_cwd",
                           "scheduler_args": {}, "dryrun": True, "component_args": {"msg": 5}})),
    Case("wrong-usage", (*DRY, "dist.ddp"), "rc 1: ValueError", "rc 2: relight: error: "),
    Case("exit-code", ("run", "-s", "local_cwd", *SH, "exit 7"), "rc 1: ", "rc 7: "),
    Case("handle", ("run", "-s", "local_cwd", *SH, "true"), "local_cwd://torchx/sh-",
         "local_cwd://relight/sh-"),
    Case("project-before-home", (*DRY, "dist.ddp", "--script", "a.py"), "--nproc_per_node 3",
         "--nproc_per_node 5", files=(("home/.torchxconfig", "[component:dist.ddp]\nj = 1x3\n"),
                                      (".torchxconfig", "[component:dist.ddp]\nj = 1x5\n"))),
    Case("percent-sign", (*DRY, "utils.echo"), "rc 1: configparser", '"50%"',
         files=((".torchxconfig", "[component:utils.echo]\nmsg = 50%\n"),)),
    Case("variables-of-schedulers", (*DRY, "utils.echo"), "rc 1: TypeError", '"entrypoint": "echo"',
         variables=(("TORCHX_SESSION_NAME", "x"),)),
    Case("local-retries", ("run", "-s", "local_cwd", "utils.sh", "--max_retries", "1", "sh", "-c",
                           "[ -e tried ] || { touch tried; exit 1; }"), "rc 1: ", "rc 0: "),
    Case("unknown-scheduler-options", ("runopts", "nosuch"), "rc 0: ",
         "rc 2: relight: error: unknown scheduler: nosuch"),
    Case("kubernetes", ("runopts", "kubernetes"), "queue=QUEUE,[namespace=NAMESPACE]",
         "queue              str            Kueue queue"),
    Case("no-hydra", ("run", "--dryrun", "-s", "local_cwd", "utils.hydra", "--help"),
         "config_name", "rc 2: relight: error: unknown component: utils.hydra"),
    Case("no-tracker-configured", ("tracker", "list", "jobs"), "rc 1: ",
         "rc 2: relight: error: "),
    Case("configure-keeps", ("configure", "-s", "local_cwd"), "file: [local_cwd]",
         "file: [mine]", files=((SETTINGS, "[mine]\n"),)),
)  # fmt: skip


def prepare(case: Case, folder: str, module: str) -> None:
    """Write a case's files into the working directory."""
    for path, text in (("comp.py", COMPONENTS.replace("torchx.specs", module)), *case.files):
        own = ".torchxconfig" if module.startswith("torchx") else ".relightconfig"
        full = os.path.join(folder, own if path == SETTINGS else path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w") as file:
            file.write(text)


def answer(folder: str, code: int, out: str, err: str) -> str:
    """Return a command's response as one text.

    It has the exit code, the error line on stderr, stdout (the role, for a dry run), the last word
    of the first replica, and the settings file.
    """
    said = [line for line in err.splitlines() if line.strip()] or [""]
    wrong = [line for line in said if "error: " in line or "Error" in line.split(":")[0]]
    lines = [f"rc {code}: {wrong[-1].strip() if wrong else ''}"]
    try:
        dry = json.loads(out)
        (role,), replicas = dry["app"]["roles"], next(iter(dry["request"]["role_params"].values()))
        lines.append(json.dumps({key: value for key, value in role.items() if key != "env"}))
        word = replicas[0]["args"][-1].partition("-c ")[2].strip("'")
        lines.append(f"request <{word}>")
    except (ValueError, KeyError, TypeError):
        lines.append(out.strip())
    for name in (".relightconfig", ".torchxconfig"):
        path = os.path.join(folder, name)
        if os.path.exists(path):
            with open(path) as file:
                lines.append(f"file: {file.read()}")
    return "\n".join(lines)


def record(torchx: str) -> None:
    """Print TorchX's responses, one JSON line per case, reduced to the case's subject."""
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            prepare(case, folder, "torchx.specs")
            os.makedirs(os.path.join(folder, "home"), exist_ok=True)
            found = subprocess.run(
                [torchx, *case.argv],
                cwd=folder,
                env={"PATH": os.environ["PATH"], "HOME": f"{folder}/home", **dict(case.variables)},
                input=case.stdin,
                capture_output=True,
                text=True,
                check=False,
            )
            text = answer(folder, found.returncode, found.stdout, found.stderr)
            lines = text.replace(folder, "<cwd>").splitlines()
            said = [line for line in lines if case.theirs in line or line.startswith("rc ")]
            if not any(case.theirs in line for line in said):
                sys.stderr.write(f"{case.name} is not answered like this any more\n")
            print(json.dumps({"name": case.name, "answer": "\n".join(said)}))


if __name__ == "__main__":
    record(sys.argv[1])
