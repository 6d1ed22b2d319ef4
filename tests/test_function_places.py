"""Where a function sent to workers failed: the user's own line, in any kind of source."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import LIMIT_S, clean_environment

pytest.importorskip("cloudpickle")

FUNCTIONS = """\
def load(n):
    return 1 / n

def train():
    return load(0)
"""
CELL = f"""\
import linecache, sys, types
import relight
shell = types.SimpleNamespace(compile=types.SimpleNamespace(_filename_map={{FILE: 3}}))
sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: shell)
text = {FUNCTIONS!r}
linecache.cache[FILE] = len(text), None, text.splitlines(True), FILE  # as IPython does
exec(compile(text, FILE, "exec"))
relight.launch(train)
"""
LAUNCH = """
import relight
if __name__ == "__main__":
    relight.launch(train)
"""
FRAMES = """\
  File "{place}", line 5, in train
    return load(0)
           ^^^^^^^
  File "{place}", line 2, in load
    return 1 / n
           ~~^~~
ZeroDivisionError: division by zero
"""


def run(
    tmp_path: Path, *words: str | Path, stdin: str = "", **variables: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *words], cwd=tmp_path, input=stdin, capture_output=True, text=True,
        env=clean_environment(OMP_NUM_THREADS="1", **variables), timeout=LIMIT_S, check=False,
    )  # fmt: skip


def headline(stderr: str) -> list[str]:
    return re.split(r"^relight: ", stderr, flags=re.MULTILINE)[1].splitlines()[:3]


@pytest.mark.parametrize("file", ["/tmp/ipykernel_7/12.py", "<ipython-input-3-0a1b2c>"])
def test_failure_report_names_notebook_cell(tmp_path: Path, file: str) -> None:
    (tmp_path / "caller.py").write_text(CELL.replace("FILE", repr(file)))
    found = run(tmp_path, "caller.py")
    assert headline(found.stderr) == [
        "rank 0 raised ZeroDivisionError: division by zero",
        "  Cell In[3]:2 in load",
        "    return 1 / n",
    ]
    # On the console, in the report, and in the exception that is raised.
    assert found.stderr.count(FRAMES.format(place="Cell In[3]")) == 3
    assert "/worker/call.py" not in found.stderr


def test_failure_report_names_line_in_script(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(FUNCTIONS + LAUNCH)
    found = run(tmp_path, path)
    assert headline(found.stderr)[1:] == [f"  {path}:2 in load", "    return 1 / n"]
    assert found.stderr.count(FRAMES.format(place=path)) == 3


def test_failure_report_names_line_in_interactive_session(tmp_path: Path) -> None:
    lines = FUNCTIONS.replace("\n\n", "\n\n\n") + "\nimport relight\nrelight.launch(train)\n"
    found = run(tmp_path, "-i", stdin=lines, TERM="dumb")
    place = headline(found.stderr)[1]
    assert re.fullmatch(r"  <(stdin|python-input-\d+)>:2 in load", place)
    assert "dynamic-code" not in found.stderr
    assert "/worker/call.py" not in found.stderr


def test_user_defined_excepthook_is_kept(tmp_path: Path) -> None:
    hook = "import sys\ndef train():\n    sys.excepthook = lambda *_: print('mine')\n    1 / 0\n"
    (tmp_path / "train.py").write_text(hook + LAUNCH)
    assert run(tmp_path, "train.py").stdout == "mine\n"


def test_source_code_is_not_sent_if_its_file_exists(tmp_path: Path) -> None:
    from relight.worker import cells

    names: dict[str, object] = {}
    exec(compile(FUNCTIONS, __file__, "exec"), names)
    assert os.path.exists(__file__)
    names["__name__"] = "__main__"
    data, sources = cells.dumps(names["train"])
    assert data
    assert sources == {}
