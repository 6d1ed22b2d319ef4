"""A site's event handler is notified of what users do to jobs."""

import getpass
import json
from pathlib import Path

import pytest
from conftest import Launch

from relight.base.env import Environment
from relight.flags.site import NO_SITE, Site
from relight.runner import audit

PLUGIN = str(Path(__file__).parent.parent / "event_handlers")


def told(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_commands_report_their_actions_to_the_event_handler(launch: Launch, tmp_path: Path) -> None:
    log = tmp_path / "audit"
    variables = {"PYTHONPATH": PLUGIN, "EVENTS_FILE": str(log), "HOME": str(tmp_path),
                 "PET_EVENT_LOG_HANDLER": "logs"}  # fmt: skip
    submit = ("submit", "-s", "local", "utils.echo", "--msg", "hi")
    assert launch(*submit[:3], "--dryrun", *submit[3:], **variables).returncode == 0
    done = launch(*submit, **variables)
    assert (done.returncode, done.stderr.count("audit")) == (0, 0), done.stderr
    handle = done.stdout.strip().splitlines()[0]
    assert launch("cancel", handle, **variables).returncode == 0  # it had already ended
    assert launch("delete", handle, **variables).returncode == 0
    assert launch("delete", handle, **variables).returncode == 2
    events = told(log)
    assert [(each["event"], each["action"], each["job"]) for each in events] == [
        ("UserAction", action, handle) for action in ("submit", "delete")
    ]
    assert events[0]["detail"] == "utils.echo"
    agent = events[0]["agent"]
    assert isinstance(agent, dict) and agent["user"] == getpass.getuser()


def test_site_settings_select_the_event_handler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", PLUGIN)
    monkeypatch.setenv("EVENTS_FILE", str(tmp_path / "audit"))
    site = Site(run={"event-log-handler": "logs"})
    audit.record(Environment({}), site, "debug", "4711", "rank 3, pid 4711")
    (event,) = told(tmp_path / "audit")
    assert (event["action"], event["detail"]) == ("debug", "rank 3, pid 4711")


def test_variable_cannot_turn_off_locked_event_handler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", PLUGIN)
    monkeypatch.setenv("EVENTS_FILE", str(tmp_path / "audit"))
    locked = frozenset({"event-log-handler"})
    site = Site(run={"event-log-handler": "logs"}, locked=locked)
    audit.record(Environment({"PET_EVENT_LOG_HANDLER": "null"}), site, "submit", "local://x/y")
    (event,) = told(tmp_path / "audit")
    assert event["action"] == "submit"
    assert "PET_EVENT_LOG_HANDLER=null: locked to logs by" in capsys.readouterr().err


def test_invalid_event_handler_of_site_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """The command's work is done, so it does not fail."""
    site = Site(run={"event-log-handler": "a b"})
    audit.record(Environment({}), site, "submit", "local://x/y")
    assert "relight: no audit record of submit: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("raises", "no audit record of submit: ValueError: no UserAction here"),
        ("exits", "no audit record of submit: it exited with code 3"),
        ("missing", "No module named 'relight_nowhere'"),
        ("nobody", "no audit record of submit: KeyError: 'nobody'"),
        ("null", ""),
        ("console", ""),
        ("blocks", "no audit record of submit: it took longer than 0.5 s"),
    ],
)
def test_failing_event_handler_is_reported_in_one_line(
    name: str, why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", PLUGIN)
    if name == "blocks":
        monkeypatch.setattr(audit, "_LIMIT_S", 0.5)
    audit.record(Environment({"PET_EVENT_LOG_HANDLER": name}), NO_SITE, "submit", "local://x/y")
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == bool(why)
