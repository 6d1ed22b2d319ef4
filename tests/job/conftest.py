"""A separate working directory, home directory and job state for each test."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory. Nothing from the user's environment is read, and nothing is
    left behind.
    """
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RELIGHT_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))  # hides other tests' jobs
    for name in ("LOGLEVEL", "TORCHXCONFIG", "RELIGHTCONFIG", "TORCHX_PARENT_RUN_ID",
                 "RELIGHT_PARENT_RUN_ID", "TORCHX_INTERNAL_SESSION_ID", "RELIGHT_NAMED_RESOURCES",
                 "TORCHX_CUSTOM_NAMED_RESOURCES", "XDG_STATE_HOME"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    return folder
