"""Facts about a node are correct, cheap to collect, and never get in the way."""

import importlib.metadata
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import relight
from relight.host.env_fingerprint import collect


def environment_with(path: Path, *names: str, version: str = "3.11") -> str:
    """Create a skeleton virtual environment, and return its interpreter."""
    (path / "bin").mkdir(parents=True, exist_ok=True)
    for name in names:
        (path / "lib" / f"python{version}" / "site-packages" / name).mkdir(parents=True)
    return str(path / "bin" / "python")


@pytest.mark.needs_torch
def test_node_facts_describe_interpreter_and_script(tmp_path: Path) -> None:
    """They consist of versions, the script's checksum and its arguments."""
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    facts = collect(script=str(script), arguments=["--lr", "0.1"], is_file=True)
    version = importlib.metadata.version("torch")
    assert facts == {
        "relight": relight.__version__,
        "Python": ".".join(map(str, sys.version_info[:3])),
        "torch": version,
        "script": f"{zlib.crc32(b'print(1)' + bytes([10])):08x}",
        "arguments": "--lr 0.1",
    }


@pytest.mark.processes
def test_collecting_node_facts_imports_no_heavy_modules(tmp_path: Path) -> None:
    """Not even hashlib is loaded, since it loads OpenSSL."""
    code = (
        "import sys, relight.host.env_fingerprint as f; "
        "f.collect(script=sys.argv[1], arguments=[], is_file=True); "
        "print(*sorted({m.split('.')[0] for m in sys.modules}))"
    )
    script = tmp_path / "train.py"
    script.write_text("")
    result = subprocess.run(
        [sys.executable, "-I", "-c", code, script], capture_output=True, text=True, check=True
    )
    loaded = set(result.stdout.split())
    assert "relight" in loaded
    assert not loaded & {
        "torch",
        "importlib_metadata",
        "email",
        "zipfile",
        "json",
        "subprocess",
        "hashlib",
    }


@pytest.mark.parametrize(
    ("names", "version"),
    [
        (("torch", "torch-2.12.0+cu126.dist-info", "torchvision-1.0.dist-info"), "2.12.0+cu126"),
        (("torch",), None),
        (("torch-2.12.0.dist-info",), None),
        (("torch", "torch-2.12.0.dist-info", "torch-2.13.0.dist-info"), None),
        ((), None),
    ],
)
def test_torch_version_comes_from_the_worker_interpreter(
    tmp_path: Path, names: tuple[str, ...], version: str | None
) -> None:
    """It is omitted if it is ambiguous."""
    python = environment_with(tmp_path / "venv", *names)
    facts = collect(script="x", arguments=[], is_file=False, python=python)
    assert facts.get("torch") == version
    assert "Python" not in facts


def test_torch_version_is_omitted_if_package_directories_disagree(tmp_path: Path) -> None:
    environment_with(tmp_path, "torch", "torch-2.12.0.dist-info")
    python = environment_with(tmp_path, "torch", "torch-2.13.0.dist-info", version="3.12")
    assert "torch" not in collect(script="x", arguments=[], is_file=False, python=python)


def test_symlinked_venv_has_this_python_version_and_its_own_torch(tmp_path: Path) -> None:
    python = environment_with(tmp_path, "torch", "torch-1.0.dist-info")
    Path(python).symlink_to(os.path.realpath(sys.executable))
    facts = collect(script="x", arguments=[], is_file=False, python=python)
    assert facts["Python"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["torch"] == "1.0"


def test_reported_torch_is_the_first_on_sys_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the one that an import would find."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch-9.9.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert collect(script="x", arguments=[], is_file=False)["torch"] == "9.9"


def test_script_that_is_not_a_regular_file_is_not_hashed(tmp_path: Path) -> None:
    """The script is a FIFO, a directory, a missing file or a module. Looking at it has no side
    effects.
    """
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", ".", "missing", "nul\0byte"):
        facts = collect(script=str(tmp_path / name), arguments=[], is_file=True)
        assert "script" not in facts
    (tmp_path / "package").write_text("x")
    assert "script" not in collect(script=str(tmp_path / "package"), arguments=[], is_file=False)


def test_different_argument_lists_have_different_text() -> None:
    """Arguments with arbitrary bytes can be sent as text."""
    lists = [["a b"], ["a", "b"], ["'a", "b'"], ["a", "", "b"], ["a\nb"], ["'a b'"], ["\udcff"], [r"\udcff"]]  # fmt: skip  # noqa: E501
    texts = [collect(script="x", arguments=a, is_file=False)["arguments"] for a in lists]
    assert len(set(texts)) == len(lists)
    assert all(text.isprintable() for text in texts)
    assert json.loads(json.dumps(texts).encode()) == texts


def test_arguments_longer_than_200_characters_are_hashed() -> None:
    just = collect(script="x", arguments=["y" * 200], is_file=False)["arguments"]
    assert just == "y" * 200
    long = collect(script="x", arguments=["y" * 201], is_file=False)["arguments"]
    assert long == f"{zlib.crc32(b'y' * 201):08x}"
