"""TorchX (nightly 2026-10) command lines: relight produces the same app, or a one-line error."""

import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from relight.cli.main import main

HERE = Path(__file__).parent
CASES = [json.loads(line) for line in (HERE / "torchx-golden.jsonl").read_text().splitlines()]
RUNS = [case for case in CASES if case["argv"][:1] == ["run"]]

# Relight's response where TorchX's is a defect.
REFUSED = {
    "-j 4:2x1": "the minimum, 4, is above the maximum, 2",
    "comp.py:types --b 1": "--b=1: expected true or false",
}
ACCEPTED = ("-- --x 1 --x 2", "-s local_docker")
ELSEWHERE = ("-s kubernetes", "utils.sh sh -c exit 7")


def words(case: dict[str, Any]) -> str:
    return " ".join(case["argv"][1:])


def has(case: dict[str, Any], parts: Any) -> bool:
    return any(part in words(case) for part in parts)


def submit(
    case: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    shutil.copy(HERE / "comp.py", "comp.py")
    stdin = case.get("stdin") or ""
    monkeypatch.setattr(
        sys, "stdin", io.StringIO(stdin if isinstance(stdin, str) else json.dumps(stdin))
    )
    code = main(["submit", "--launcher=torchrun", *case["argv"][1:]])
    found = capsys.readouterr()
    return code, found.out, found.err


def without_ours(app: dict[str, Any]) -> dict[str, Any]:
    for role in app["roles"]:
        session = role["env"].get("TORCHX_INTERNAL_SESSION_ID")
        assert session, "no session id"
        role["env"] = {k: v for k, v in role["env"].items() if not k.startswith("RELIGHT_")}
        role["env"]["TORCHX_INTERNAL_SESSION_ID"] = "<UUID>"
    return app


GOOD = [c for c in RUNS if c["rc"] == 0 and not has(c, REFUSED) and not has(c, ELSEWHERE)]
BAD = [c for c in RUNS if c["rc"] != 0 and not has(c, ACCEPTED) and not has(c, ELSEWHERE)]


@pytest.mark.parametrize(
    "case",
    [
        # A Slurm job requests a resource that Slurm supports.
        pytest.param(c, marks=pytest.mark.processes if "slurm" in words(c) else (), id=words(c))
        for c in GOOD
    ],
)
def test_torchx_command_line_produces_the_same_app(
    case: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = submit(case, monkeypatch, capsys)
    assert code == 0, err
    found = json.loads(out)
    assert set(found) == {"scheduler", "cfg", "app", "request"}
    assert found["scheduler"] == case["stdout_json"]["scheduler"]
    assert without_ours(found["app"]) == case["stdout_json"]["app"]


@pytest.mark.parametrize("case", BAD, ids=words)
def test_command_line_rejected_by_torchx_is_reported_on_one_line(
    case: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 2. TorchX mostly prints a traceback."""
    code, out, err = submit(case, monkeypatch, capsys)
    lines = err.splitlines()
    assert (code, out) == (2, "")
    assert lines[0].startswith("relight: error: ")
    assert len(lines) == 1 or (len(lines) == 2 and lines[1].startswith("hint: "))


@pytest.mark.parametrize("case", [c for c in RUNS if has(c, REFUSED)], ids=words)
def test_values_that_do_not_describe_a_valid_job_are_rejected(
    case: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """TorchX accepts them silently."""
    code, _, err = submit(case, monkeypatch, capsys)
    assert code == 2
    assert next(text for part, text in REFUSED.items() if part in words(case)) in err


@pytest.mark.parametrize("case", [c for c in RUNS if has(c, ACCEPTED)], ids=words)
def test_some_inputs_that_fail_in_torchx_are_accepted(
    case: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """These are repeated script flags, and a dry run with GPUs and mounts."""
    code, out, err = submit(case, monkeypatch, capsys)
    assert code == 0, err
    (role,) = json.loads(out)["app"]["roles"]
    if "--x" in words(case):
        assert role["args"][1].endswith(" a.py --x 1 --x 2")
    else:
        assert len(role["mounts"]) == 2


def test_optional_int_argument_is_passed_as_int(capsys: pytest.CaptureFixture[str]) -> None:
    """TorchX passes a string for Optional[int]."""
    shutil.copy(HERE / "comp.py", "comp.py")
    assert main(["submit", "--dryrun", "--json", "comp.py:types", "--b", "FALSE", "--oi", "7"]) == 0
    assert json.loads(capsys.readouterr().out)["app"]["roles"][0]["args"][3] == "7"


def test_every_recorded_torchx_run_is_compared() -> None:
    """The only runs left out are for schedulers that relight doesn't support."""
    looked = len(GOOD) + len(BAD) + sum(has(c, (*REFUSED, *ACCEPTED)) for c in RUNS)
    assert len(RUNS) - looked == sum(has(c, ELSEWHERE) for c in RUNS) == 2
