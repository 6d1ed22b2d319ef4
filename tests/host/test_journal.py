"""An agent's event log, and the listeners for its events."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from relight.base.env import Environment
from relight.events import event_types
from relight.events.event_types import LoggedEvent
from relight.output.console import Consoles
from relight.output.journal import EventLog, Journal


def journal(said: list[str]) -> Journal:
    stderr = SimpleNamespace(say=said.append, fd=2, loop=SimpleNamespace(stimulus="a:1:7"))
    consoles = cast(Consoles, SimpleNamespace(stderr=stderr))
    return Journal(consoles, "", Environment({}), verbose=False, on_console=False)


@pytest.mark.mistakes
def test_failing_event_listener_does_not_take_down_the_job() -> None:
    """A listener that raises is dropped and reported as a bug. The others receive all events."""
    said: list[str] = []
    heard: list[LoggedEvent] = []

    def raises(recorded: LoggedEvent) -> None:
        raise KeyError(recorded.number)

    found = journal(said)
    found.listeners += [raises, heard.append]
    for number in range(3):
        found.record(event_types.GroupStopped(number, "why"))
    kinds = [type(each.event).__name__ for each in heard]
    assert sorted(kinds) == ["GroupStopped", "GroupStopped", "GroupStopped", "InternalErrorEvent"]
    assert found.listeners == [heard.append]
    (line,) = said
    assert "an event is shown: KeyError: 1" in line


@pytest.mark.mistakes
def test_internal_error_is_reported_without_importing_modules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Imports may no longer work, for example after an upgrade."""
    said: list[str] = []
    found = journal(said)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "meta_path", [])
    for name in [name for name in sys.modules if name.startswith("relight.")]:
        monkeypatch.delitem(sys.modules, name)
    found.record_internal_error(
        "a question about the job", ModuleNotFoundError("No module named 'x'")
    )
    (line,) = said
    assert "a question about the job: ModuleNotFoundError: No module named 'x'" in line


def test_event_has_a_number_and_both_timestamps() -> None:
    found = journal([])
    first, second = (
        found.events.write(event_types.WorkersFrozen(frozen)) for frozen in (True, False)
    )
    assert (first.number, second.number) == (1, 2)
    assert found.events.began <= first.t <= second.t
    assert first.time <= second.time
    assert found.events.after(1) == [second]


def test_event_log_resumes_once_disk_is_no_longer_full(tmp_path: Path) -> None:
    """A partially written line doesn't spoil the next one."""
    said: list[str] = []
    log = EventLog(str(tmp_path), said.append)
    path = tmp_path / "events.jsonl"
    log.write(event_types.WorkersFrozen(True))
    path.rename(tmp_path / "kept")
    path.mkdir()  # makes writing fail
    log.write(event_types.WorkersFrozen(False))
    log.write(event_types.WorkersFrozen(False))
    assert said == [f"events are missing in {path}: Is a directory"]
    path.rmdir()
    (tmp_path / "kept").rename(path)
    with path.open("a") as file:
        file.write('{"v": 1, "n": 2, "ev')
    log.write(event_types.WorkersFrozen(True))
    lines = path.read_text().splitlines()
    assert [json.loads(lines[at])["n"] for at in (0, -1)] == [1, 4]
