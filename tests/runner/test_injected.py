"""The variables that identify each job, under TorchX's names and relight's."""

from typing import Any

import pytest

import relight.job as specs
from relight.base.env import Environment
from relight.base.errors import UsageError
from relight.runner.job_env import with_job_env
from relight.runner.runner import Runner
from relight.runner.settings import ConfigFile

APP = specs.AppDef(
    "a",
    [
        specs.Role("r", "", entrypoint="true", env={"A": "1", "TORCHX_TRACKING_RUN_NAME": "run"}),
        specs.Role("s", "", entrypoint="true", env={"TORCHX_JOB_ID": "mine"}),
    ],
)


def injected(
    sections: dict[str, Any] | None = None, parent: str = "", session: str = "relight", **env: str
) -> list[dict[str, str]]:
    with Runner(session, found=ConfigFile(sections or {}), env=Environment(env)) as runner:
        app = with_job_env(APP, "local", session, parent, runner.env, runner.settings)
    assert dict(APP.roles[0].env) == {"A": "1", "TORCHX_TRACKING_RUN_NAME": "run"}
    return [dict(role.env) for role in app.roles]


def test_each_role_gets_job_handle_and_session() -> None:
    """The session has both names; a role's own variables are kept."""
    first, second = injected()
    number = first["TORCHX_INTERNAL_SESSION_ID"]
    assert first == {
        "A": "1",
        "TORCHX_TRACKING_RUN_NAME": "run",
        "RELIGHT_TRACKING_RUN_NAME": "run",
        "TORCHX_JOB_ID": "local://torchx/${app_id}",
        "RELIGHT_JOB_ID": "local://relight/${app_id}",
        "RELIGHT_REPLICA_ID": "${replica_id}",
        "TORCHX_INTERNAL_SESSION_ID": number,
        "RELIGHT_INTERNAL_SESSION_ID": number,
    }
    assert second["TORCHX_JOB_ID"] == "local://torchx/${app_id}"
    assert second["TORCHX_INTERNAL_SESSION_ID"] == number


def test_jobs_from_one_process_share_a_session() -> None:
    """Jobs submitted from within these jobs inherit the session."""
    assert (
        injected()[0]["RELIGHT_INTERNAL_SESSION_ID"]
        == (injected()[0]["RELIGHT_INTERNAL_SESSION_ID"])
    )
    (found, _) = injected(TORCHX_INTERNAL_SESSION_ID="outer")
    assert found["RELIGHT_INTERNAL_SESSION_ID"] == found["TORCHX_INTERNAL_SESSION_ID"] == "outer"


def test_runner_session_is_part_of_both_job_id_variables() -> None:
    (found, _) = injected(session="nightly")
    assert found["TORCHX_JOB_ID"] == found["RELIGHT_JOB_ID"] == "local://nightly/${app_id}"


@pytest.mark.parametrize(
    ("said", "env", "expected"),
    [
        ("p", {}, "p"),
        ("", {"TORCHX_PARENT_RUN_ID": "t"}, "t"),
        ("", {"RELIGHT_PARENT_RUN_ID": "r", "TORCHX_PARENT_RUN_ID": "t"}, "r"),
        ("p", {"RELIGHT_PARENT_RUN_ID": "r", "TORCHX_PARENT_RUN_ID": "t"}, "p"),
        ("", {}, None),
    ],
)
def test_parent_job_is_explicit_or_taken_from_environment(
    said: str, env: dict[str, str], expected: str | None
) -> None:
    """Otherwise, the variable is unset."""
    (found, _) = injected(parent=said, **env)
    assert found.get("TORCHX_PARENT_RUN_ID") == found.get("RELIGHT_PARENT_RUN_ID") == expected


def test_trackers_from_settings_are_passed_to_job() -> None:
    (found, _) = injected(
        {"torchx:tracker": {"mlflow": "", "files": ""}, "tracker:files": {"config": "/c.txt"}}
    )
    assert found["TORCHX_TRACKERS"] == found["RELIGHT_TRACKERS"] == "mlflow,files"
    assert found["TORCHX_TRACKER_FILES_CONFIG"] == "/c.txt"
    assert found["RELIGHT_TRACKER_FILES_CONFIG"] == "/c.txt"
    assert "TORCHX_TRACKER_MLFLOW_CONFIG" not in found


def test_trackers_from_environment_override_settings() -> None:
    """TORCHX_TRACKERS and a tracker's own variable both take precedence."""
    (found, _) = injected(
        {"torchx:tracker": {"mlflow": ""}, "tracker:files": {"config": "/c.txt"}},
        TORCHX_TRACKERS="files,other",
        TORCHX_TRACKER_OTHER_CONFIG="/o.txt",
    )
    assert found["TORCHX_TRACKERS"] == found["RELIGHT_TRACKERS"] == "files,other"
    assert found["TORCHX_TRACKER_FILES_CONFIG"] == "/c.txt"
    assert found["TORCHX_TRACKER_OTHER_CONFIG"] == "/o.txt"
    assert "TORCHX_TRACKER_MLFLOW_CONFIG" not in found


def test_tracker_may_be_a_function_in_a_module() -> None:
    """Such a tracker can't be configured, because its name can't be part of a variable name."""
    (found, _) = injected({"torchx:tracker": {"mine.trackers:make": ""}})
    assert found["TORCHX_TRACKERS"] == "mine.trackers:make"
    with pytest.raises(UsageError, match="module:function without a configuration"):
        injected({"torchx:tracker": {"m:make": ""}, "tracker:m:make": {"config": "/c"}})


def test_tracker_name_that_is_not_a_word_is_rejected() -> None:
    """The name becomes part of a variable name."""
    with pytest.raises(
        UsageError, match="the settings: invalid tracker name 'a-b': expected an identifier"
    ):
        injected({"torchx:tracker": {"a-b": ""}})
