"""relight.runner.Runner: jobs submitted from Python, with a scheduler from another package."""

import json
import os
import pwd
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import LIMIT_S

import relight.job as specs
from relight.base.env import Environment
from relight.base.errors import MachineError, UsageError
from relight.job import AppState, records
from relight.runner import Runner, audit
from relight.runner.settings import ConfigFile
from relight.schedulers.api import AppStatus, JobSummary, LogQuery, Option, Request

from . import scripted

ECHO = ("utils.echo", ["--msg", "hi"])


@pytest.fixture
def scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[scripted.Scripted]:
    """A scheduler named `scripted`, installed as by a package."""
    folder = tmp_path / "site"
    info = folder / "theirs-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[relight.schedulers]\nscripted = {scripted.__name__}\nbroken = no_such_module\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(scripted, "ONLY", scripted.Scripted())
    yield scripted.ONLY


@pytest.fixture
def runner(
    scheduler: scripted.Scripted,
) -> Iterator[Runner]:
    with Runner(found=ConfigFile({"cli:run": {"scheduler": "scripted"}})) as found:
        yield found


def state_files(tmp_path: Path) -> list[str]:
    return [str(path) for path in (tmp_path / "state").rglob("*")]


def test_dry_run_submits_nothing_and_writes_no_files(
    runner: Runner, scheduler: scripted.Scripted, tmp_path: Path
) -> None:
    """The dry run shows what would be sent."""
    before = sorted(tmp_path.rglob("*"))
    job = runner.dryrun(*ECHO)
    assert (job.scheduler, job.session, job.words) == (
        "scripted", "relight", ("utils.echo", "--msg", "hi")
    )  # fmt: skip
    assert job.request.body == {"commands": [["echo", "hi"]]}
    assert job.notes == ("scripted only",)
    shown = json.loads(json.dumps(job.to_json()))
    assert list(shown) == ["scheduler", "cfg", "app", "request"]
    assert shown["cfg"] == {"queue": "main", "secret": None}
    assert (scheduler.jobs, scheduler.stop_signal) == ({}, [])
    assert sorted(tmp_path.rglob("*")) == before


def test_submitted_job_has_scheduler_id_and_record(
    runner: Runner, scheduler: scripted.Scripted, place: Path
) -> None:
    """The record contains the request."""
    handle = runner.submit(*ECHO, cfg="queue=long,secret=hunter2")
    assert handle == "scripted://relight/1"
    assert scheduler.jobs["1"].cfg == {"queue": "long", "secret": "hunter2"}
    record = runner.describe(handle)
    assert {name: record[name] for name in ("handle", "app_id", "scheduler", "state", "name")} == {
        "handle": handle, "app_id": "1", "scheduler": "scripted", "state": "RUNNING",
        "name": "echo",
    }  # fmt: skip
    assert record["command"] == ["utils.echo", "--msg", "hi"]
    assert record["cfg"] == {"queue": "long", "secret": "<hidden>"}
    assert record["directory"] == str(place)
    assert record["versions"]["packages"]["pytest"]
    assert specs.from_json(record["app"]).roles[0].args == ["hi"]
    assert datetime.fromisoformat(record["submitted"]).tzinfo is not None
    assert runner.describe(record["id"]) == record


def test_prepared_job_is_submitted_once_and_exactly_as_shown(
    runner: Runner, scheduler: scripted.Scripted
) -> None:
    job = runner.dryrun(*ECHO)
    handle = runner.submit(job)
    assert scheduler.jobs["1"] is job.request
    with pytest.raises(UsageError, match="already submitted"):
        runner.submit(job)
    assert runner.describe(handle)["id"] == job.app_id
    assert list(scheduler.jobs) == ["1"]


def test_app_can_be_passed_instead_of_component(
    runner: Runner, scheduler: scripted.Scripted
) -> None:
    """The app itself is not changed."""
    app = specs.AppDef("mine", [specs.Role("r", "", entrypoint="true", args=["${app_id}"])])
    handle = runner.submit(app)
    record = runner.describe(handle)
    assert scheduler.jobs["1"].body == {"commands": [["true", record["id"]]]}
    assert record["id"].startswith("mine-")
    assert (record["command"], dict(app.roles[0].env)) == ([], {})


@pytest.mark.parametrize("args", [["--msg", "a b"], {"msg": "a b"}])
def test_component_arguments_may_be_strings_or_values(
    runner: Runner, scheduler: scripted.Scripted, args: Any
) -> None:
    runner.submit("utils.echo", args)
    assert scheduler.jobs["1"].body == {"commands": [["echo", "a b"]]}


@pytest.mark.parametrize("error", [UsageError("no"), MachineError("no"), KeyboardInterrupt()])
def test_rejected_job_leaves_no_record(
    runner: Runner, scheduler: scripted.Scripted, tmp_path: Path, error: BaseException
) -> None:
    """Exceptions from the scheduler are passed on."""
    scheduler.refuses = error
    with pytest.raises(type(error)):
        runner.submit(*ECHO)
    assert records.every() == []
    assert [path for path in state_files(tmp_path) if not path.endswith("/jobs")] == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"app": "utils.ecoh"}, "unknown component: utils.ecoh"),
        ({"app": "utils.echo", "scheduler": "scriptd"}, "unknown scheduler: scriptd"),
        ({"app": "utils.echo", "scheduler": "broken"}, "the scheduler broken (no_such_module)"),
        ({"app": "utils.echo", "cfg": "queu=a"}, "scripted has no option queu"),
        ({"app": "utils.echo", "cfg": {"queue": 1}}, "queue=1: expected a string"),
        ({"app": "utils.echo", "args": ["--mgs", "a"]}, "utils.echo has no parameter --mgs"),
        ({"app": "utils.echo", "args": {"msg": 1}}, "msg of the arguments: expected str, not 1"),
        ({"app": "utils.echo", "workspace": "/no"}, "workspace /no is not a directory"),
        ({"app": "utils.echo", "launcher": "x"}, "--launcher=x: expected auto, installed"),
        ({"app": specs.AppDef("a")}, "app a has no roles"),
        ({"app": "dist.ddp", "args": ["--script", "no.py"]}, "no such file: no.py"),
    ],
)  # fmt: skip
def test_invalid_job_is_not_submitted(
    runner: Runner, scheduler: scripted.Scripted, tmp_path: Path, call: Any, message: str
) -> None:
    """Each error is a UsageError."""
    with pytest.raises(UsageError) as caught:
        runner.submit(**call)
    assert message in caught.value.message
    assert scheduler.jobs == {}
    assert state_files(tmp_path) == []


def test_job_status_comes_from_scheduler(runner: Runner, scheduler: scripted.Scripted) -> None:
    """An unknown job raises an error."""
    handle = runner.submit(*ECHO)
    assert runner.status(handle).state is AppState.RUNNING
    assert scheduler.stop_signal == [("status", ("1",))]
    with pytest.raises(UsageError, match="no such job: scripted://relight/2"):
        runner.status("scripted://relight/2")
    with pytest.raises(UsageError, match="unknown scheduler: nosuch"):
        runner.status("nosuch://a/b")


def test_job_forgotten_by_scheduler_keeps_final_state_or_is_unknown(
    runner: Runner, scheduler: scripted.Scripted
) -> None:
    first, second = runner.submit(*ECHO), runner.submit(*ECHO)
    scheduler.states = [AppState.FAILED]
    assert runner.status(first).exitcode == 3
    scheduler.jobs.clear()
    found = runner.status(first)
    assert (found.state, found.message) == (
        AppState.FAILED,
        "its scheduler no longer knows it",
    )
    assert runner.status(second).state is AppState.UNKNOWN


def test_wait_returns_the_final_job_status(runner: Runner, scheduler: scripted.Scripted) -> None:
    """`wait` polls until the job has ended."""
    handle = runner.submit(*ECHO)
    scheduler.states = [AppState.PENDING, AppState.RUNNING, AppState.FAILED]
    found = runner.wait(handle)
    assert (found.state, found.exitcode) == (AppState.FAILED, 3)
    assert scheduler.stop_signal == [("status", ("1",))] * 3
    assert runner.describe(handle)["state"] == "FAILED"


def test_job_description_includes_current_state(
    runner: Runner, scheduler: scripted.Scripted
) -> None:
    """Like `status`, `describe` queries the scheduler; without a response, it shows the request."""
    handle = runner.submit(*ECHO)
    scheduler.states = [AppState.PENDING, AppState.RUNNING]
    assert [runner.describe(handle)["state"] for _ in range(2)] == ["PENDING", "RUNNING"]
    scheduler.is_out_of_reach = True
    found = runner.describe(handle)
    assert (found["state"], found["name"]) == ("UNKNOWN", "echo")


def test_user_name_is_found_without_environment_variables(
    scheduler: scripted.Scripted, runner: Runner
) -> None:
    """If USER is not set, as in containers, the system is asked."""
    runner.env = Environment({})
    assert runner.describe(runner.submit(*ECHO))["user"] == pwd.getpwuid(os.getuid()).pw_name


def test_job_keeps_running_after_wait_times_out(
    runner: Runner, scheduler: scripted.Scripted
) -> None:
    """The timeout raises an error."""
    handle = runner.submit(*ECHO)
    with pytest.raises(TimeoutError, match=r"scripted://relight/1 is RUNNING after 0\.05 s"):
        runner.wait(handle, timeout=0.05)
    assert ("cancel", "1") not in scheduler.stop_signal
    with pytest.raises(TimeoutError):
        runner.wait(handle, timeout=0)
    scheduler.states = [AppState.SUCCEEDED]
    assert runner.wait(handle, timeout=0).state is AppState.SUCCEEDED


def test_cancel_stops_running_job(runner: Runner, scheduler: scripted.Scripted) -> None:
    """A job that has ended stays as it is."""
    handle = runner.submit(*ECHO)
    assert runner.cancel(handle).state is AppState.CANCELLED
    assert runner.cancel(handle).state is AppState.CANCELLED
    assert scheduler.stop_signal.count(("cancel", "1")) == 1
    with pytest.raises(UsageError, match="no such job"):
        runner.cancel("scripted://relight/9")


def test_submit_cancel_and_delete_are_each_audited_once(
    runner: Runner, scheduler: scripted.Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    del scheduler
    found: list[tuple[str, ...]] = []
    monkeypatch.setattr(audit, "record", lambda env, site, *what: found.append(what))
    handle = runner.submit(*ECHO)
    runner.cancel(handle)
    runner.cancel(handle)
    runner.delete(handle)
    assert found == [("submit", handle, "utils.echo"), ("cancel", handle), ("delete", handle)]


@pytest.mark.parametrize("verb", ["cancel", "delete"])
def test_job_being_submitted_can_be_cancelled_and_deleted(
    verb: str, runner: Runner, scheduler: scripted.Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a job has a record but its scheduler doesn't know it yet, cancel and delete wait for the
    scheduler and then stop the job.
    """
    begun, waiting, go = threading.Event(), threading.Event(), threading.Event()
    submit = scheduler.submit

    def slowly(request: Request) -> str:
        begun.set()
        assert go.wait(LIMIT_S)
        return submit(request)

    def wait(_: float) -> None:
        waiting.set()
        go.wait(LIMIT_S)

    monkeypatch.setattr(scheduler, "submit", slowly)
    monkeypatch.setattr(
        "relight.host.waiting.time", SimpleNamespace(monotonic=time.monotonic, sleep=wait)
    )
    job = runner.dryrun(*ECHO, scheduler="scripted")
    sending = threading.Thread(target=runner.submit, args=(job,))
    sending.start()
    assert begun.wait(LIMIT_S)
    assert runner.status(f"scripted://relight/{job.app_id}").message == "it is being submitted"
    found = []
    stop = getattr(Runner(), verb)
    stopping = threading.Thread(
        target=lambda: found.append(stop(f"scripted://relight/{job.app_id}"))
    )
    stopping.start()
    assert waiting.wait(LIMIT_S)
    assert not {"cancel", "delete"} & {each[0] for each in scheduler.stop_signal}
    go.set()
    stopping.join(60)
    sending.join(60)
    (status,) = found
    if verb == "cancel":
        assert status.state is AppState.CANCELLED
    else:
        assert records.every() == []


def test_deleted_job_is_removed_from_scheduler_and_records(
    runner: Runner, scheduler: scripted.Scripted, tmp_path: Path
) -> None:
    handle = runner.submit(*ECHO)
    runner.delete(handle)
    assert ("delete", "1") in scheduler.stop_signal
    assert os.listdir(tmp_path / "state" / "jobs") == []
    for call in (runner.delete, runner.status, runner.describe):
        with pytest.raises(UsageError, match="no such job"):
            call(handle)


def test_log_query_is_passed_to_scheduler_and_filtered_by_regex(
    runner: Runner, scheduler: scripted.Scripted
) -> None:
    handle = runner.submit("utils.echo", ["--num_replicas", "3"])
    scheduler.lines = ["loss 1", "step", "loss 2"]
    now = datetime.now(UTC)
    assert list(runner.log_lines(handle)) == scheduler.lines
    found = runner.log_lines(handle, "echo", 2, regex="los+ ", since=now, until=now, follow=True,
                             stream="stderr")  # fmt: skip
    assert list(found) == ["loss 1", "loss 2"]
    assert [asked[1:] for asked in scheduler.stop_signal if asked[0] == "logs"] == [
        ("1", LogQuery("echo", 0)),
        ("1", LogQuery("echo", 2, True, now, now, "stderr")),
    ]
    with pytest.raises(UsageError, match=r"^--regex=\(: "):
        runner.log_lines(handle, regex="(")


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("", [("echo", 0), ("echo", 1), ("echo", 2)]),
        ("/echo", [("echo", 0), ("echo", 1), ("echo", 2)]),
        ("/echo/2,0", [("echo", 0), ("echo", 2)]),
        ("/nope", None),
        ("/echo/3", None),
        ("/echo/0,3", None),
    ],
)
def test_handle_can_refer_to_roles_and_replicas(
    runner: Runner, part: str, expected: list[tuple[str, int]] | None
) -> None:
    """Nonexistent ones are rejected."""
    handle = runner.submit("utils.echo", ["--num_replicas", "3"]) + part
    if expected is not None:
        assert runner.replicas(handle) == expected
        return
    with pytest.raises(UsageError, match=f"has no replica {part[1:]}") as caught:
        runner.replicas(handle)
    assert caught.value.hint == "it has echo/0, echo/1, echo/2"


def test_recorded_jobs_are_listed_newest_first(
    runner: Runner, scheduler: scripted.Scripted
) -> None:
    """If a scheduler is named, the list includes its foreign jobs."""
    first, second = runner.submit(*ECHO), runner.submit(*ECHO)
    scheduler.others = [
        JobSummary("1", AppState.RUNNING, "echo"),
        JobSummary("9", AppState.PENDING, "theirs", "2020-01-01T00:00:00+00:00"),
    ]
    assert [job.handle for job in runner.list()] == [second, first]
    assert scheduler.stop_signal == [("status", ("2", "1"))]  # one query for all jobs
    found = runner.list("scripted")
    assert [(job.handle, job.state.name) for job in found] == [
        (second, "RUNNING"), (first, "RUNNING"), ("scripted://relight/9", "PENDING"),
    ]  # fmt: skip
    assert list(runner.list("local")) == []


def test_jobs_on_unreachable_scheduler_are_still_listed(
    runner: Runner, scheduler: scripted.Scripted
) -> None:
    """Jobs that have ended keep their final state."""
    runner.submit(*ECHO)
    over = runner.submit(*ECHO)
    scheduler.states = [AppState.SUCCEEDED]
    runner.status(over)
    scheduler.is_out_of_reach = True
    assert {job.handle: job.state.name for job in runner.list()} == {
        over: "SUCCEEDED", "scripted://relight/1": "UNKNOWN"
    }  # fmt: skip


def test_unreadable_job_does_not_hide_other_jobs(
    runner: Runner, scheduler: scripted.Scripted
) -> None:
    """The unreadable job's cluster or queue may no longer exist."""
    lost, known = runner.submit(*ECHO), runner.submit(*ECHO)
    scheduler.refused = {"1"}
    assert {job.handle: job.state.name for job in runner.list()} == {
        known: "RUNNING", lost: "UNKNOWN"
    }  # fmt: skip


def test_foreign_job_can_be_watched_and_described(
    runner: Runner, scheduler: scripted.Scripted
) -> None:
    """The description contains everything that is known."""
    scheduler.jobs["7"] = runner.dryrun(*ECHO).request
    handle = "scripted://other/7"
    known = {"handle": handle, "state": "RUNNING", "app": None, "message": "", "url": ""}
    assert runner.describe(handle) == known
    assert runner.replicas(handle) == [("echo", 0)]
    runner.delete(handle)
    assert ("delete", "7") in scheduler.stop_signal


def test_each_scheduler_is_created_and_closed_once(scheduler: scripted.Scripted) -> None:
    """Schedulers are closed even after an exception."""
    with pytest.raises(RuntimeError), Runner() as runner:
        assert runner.scheduler("scripted") is runner.scheduler("scripted")
        raise RuntimeError
    assert scheduler.stop_signal == ["close"]
    runner.close()
    assert scheduler.stop_signal == ["close"]


def test_runner_session_is_in_handles_and_variables(scheduler: scripted.Scripted) -> None:
    with Runner("nightly", found=ConfigFile({})) as runner:
        handle = runner.submit(*ECHO, scheduler="scripted")
    assert handle == "scripted://nightly/1"
    env = scheduler.jobs["1"].app.roles[0].env
    assert env["RELIGHT_JOB_ID"] == "scripted://nightly/${app_id}"


def test_scheduler_is_explicit_or_from_settings_and_defaults_to_local(
    scheduler: scripted.Scripted,
) -> None:
    """`auto` picks the most likely scheduler."""
    for said, file, expected in (
        ("scripted", "local", "scripted"), ("", "scripted", "scripted"), ("", "", "local")
    ):  # fmt: skip
        with Runner(found=ConfigFile({"cli:run": {"scheduler": file} if file else {}})) as runner:
            assert runner.dryrun(*ECHO, scheduler=said).scheduler == expected
    scheduler.liking = 99
    with Runner(found=ConfigFile({})) as runner:
        assert runner.dryrun(*ECHO, scheduler="auto").scheduler == "scripted"


def test_missing_options_are_taken_from_settings(scheduler: scripted.Scripted) -> None:
    """Unknown names cause a note."""
    sections = {
        "scripted": {"queue": "file", "nope": "1"},
        "component:utils.echo": {"msg": "file", "num_replicas": "2"},
    }
    with Runner(found=ConfigFile(sections)) as runner:
        job = runner.dryrun(*ECHO, scheduler="scripted")
        assert job.request.cfg["queue"] == "file"
        assert (job.app.roles[0].args, job.app.roles[0].num_replicas) == (["hi"], 2)
        assert "in the settings: scripted has no option nope" in job.notes
        job = runner.dryrun("utils.echo", scheduler="scripted", cfg="queue=said")
        assert (job.request.cfg["queue"], job.app.roles[0].args) == ("said", ["file"])
        assert runner.list("scripted") == []
        assert scheduler.stop_signal[-1] == ("list", {"queue": "file", "secret": None})


def test_note_is_printed_if_scheduler_does_not_use_workspace(runner: Runner, place: Path) -> None:
    """The directory must exist nevertheless."""
    notes = runner.dryrun(*ECHO, workspace=str(place)).notes
    assert "scripted takes no workspace, because the job runs where the files are" in notes


def test_option_image_repo_of_a_plugin_pushes_no_image(
    runner: Runner, scheduler: scripted.Scripted, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    option = Option("image_repo", str, None, "the plug-in's own")
    monkeypatch.setattr(scheduler, "options", (*scheduler.options, option))
    job = runner.dryrun(*ECHO, workspace=str(place), cfg="image_repo=reg.example/train")
    assert job.images == ()


@pytest.mark.needs_kubernetes
def test_workspace_is_pushed_before_a_job_whose_scheduler_pulls_images(
    runner: Runner, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dry run needs no daemon. If the image can't be pushed, nothing is submitted."""
    line = "utils.echo", ["--image", "img:1"]
    options = {"namespace": "ns", "image_repo": "registry.example/team/train"}
    with pytest.raises(UsageError, match="kubernetes needs a repository for the image") as caught:
        runner.dryrun(*line, scheduler="kubernetes", workspace=str(place), cfg={"namespace": "ns"})
    assert "-cfg image_repo=" in caught.value.hint
    job = runner.dryrun(*line, scheduler="kubernetes", workspace=str(place), cfg=options)
    image = f"registry.example/team/train:{job.app_id}"
    assert f"image: {image}\n" in job.request.text
    assert f"the workspace is added to img:1 and pushed as {image}" in job.notes
    assert job.to_json()["images"] == [{"image": image, "base": "img:1", "workspace": str(place)}]
    monkeypatch.setenv("DOCKER_HOST", f"unix://{place}/no.sock")
    with pytest.raises(MachineError, match="no Docker daemon at "):
        runner.submit(job)
    assert records.read(job.app_id) is None


def test_runner_can_be_given_its_own_environment(
    scheduler: scripted.Scripted, tmp_path: Path
) -> None:
    """The environment given to the runner has its own settings files."""
    home = tmp_path / "elsewhere"
    home.mkdir()
    (home / ".relightconfig").write_text("[cli:submit]\nscheduler = scripted\n")
    env = Environment({"HOME": str(home), "TORCHX_PARENT_RUN_ID": "p"})
    with Runner(env=env) as runner:
        job = runner.dryrun(*ECHO)
    assert job.scheduler == "scripted"
    assert job.app.roles[0].env["RELIGHT_PARENT_RUN_ID"] == "p"


def test_wait_raises_error_if_scheduler_forgot_final_state(
    runner: Runner, scheduler: scripted.Scripted
) -> None:
    handle = runner.submit("utils.echo")
    scheduler.jobs.clear()
    with pytest.raises(MachineError, match=f"^{handle}: its scheduler no longer knows it$"):
        runner.wait(handle, timeout=LIMIT_S)


def test_plugin_exception_is_reported_on_one_line_naming_the_plugin(
    runner: Runner, scheduler: scripted.Scripted
) -> None:
    """Exceptions from other packages' schedulers are not treated as relight's own bugs."""
    scheduler.refuses = RuntimeError("a\nbug")
    with pytest.raises(
        MachineError, match=r"^the scheduler scripted failed in submit: RuntimeError: a bug$"
    ):
        runner.submit(*ECHO)
    assert records.every() == []
    scheduler.refuses = None
    handle = runner.submit(*ECHO)
    scheduler.states = []
    with pytest.raises(MachineError, match="scripted failed in status: IndexError"):
        runner.status(handle)
    scheduler.lines = None  # type: ignore[assignment]
    with pytest.raises(MachineError, match="scripted failed in logs: TypeError"):
        list(runner.log_lines(handle))


@pytest.mark.parametrize(
    ("part", "found", "expected"),
    [
        ("options", [("x", str)], "a sequence of Option"),
        ("options", [Option("x", set, None, "")], "a sequence of Option"),
        ("render", lambda *_: None, "a Request"),
        ("submit", lambda _: None, "a word that contains no slash"),
        ("submit", lambda _: "ns/job", "a word that contains no slash"),
        ("submit", lambda _: "ns job", "a word that contains no slash"),
        ("submit", lambda _: "job:", "a word that contains no slash"),
        ("status", lambda _: None, "a mapping of ids to AppStatus"),
        ("status", lambda _: {"1": AppStatus("RUNNING")}, "a mapping of ids to AppStatus"),
        ("logs", lambda *_: None, "an iterator of lines"),
        ("logs", lambda *_: [b"line"], "a str"),
        ("list", lambda _: None, "a sequence of JobSummary"),
        ("list", lambda _: [{"app_id": "1"}], "a sequence of JobSummary"),
    ],
)
def test_malformed_plugin_attribute_error_shows_the_scheduler(
    runner: Runner, scheduler: scripted.Scripted, part: str, found: Any, expected: str
) -> None:
    """The message blames that package and not relight."""
    handle = runner.submit(*ECHO)
    setattr(scheduler, part, found)
    with pytest.raises(MachineError, match=f"^the scheduler scripted has .*: expected {expected}"):
        runner.submit(*ECHO)
        runner.status(handle)
        list(runner.log_lines(handle))
        runner.list("scripted")


def test_incomplete_plugin_is_rejected_before_start(
    runner: Runner, scheduler: scripted.Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(scripted.Scripted, "close")
    with pytest.raises(MachineError, match=r"^the scheduler plug-in scripted lacks close\n"):
        runner.submit(*ECHO)
    assert not scheduler.jobs
    monkeypatch.undo()


def test_wait_reports_deleted_job(runner: Runner, scheduler: scripted.Scripted) -> None:
    """A job that never existed causes a different error."""
    handle = runner.submit(*ECHO)
    known = runner.status

    def deleted_later(job: Any) -> Any:
        found = known(job)
        if len(scheduler.stop_signal) > 2:
            runner.delete(handle)
        return found

    runner.status = deleted_later  # type: ignore[method-assign]
    with pytest.raises(MachineError, match=f"{handle} has been deleted"):
        runner.wait(handle, LIMIT_S)
    with pytest.raises(UsageError, match="no such job"):
        runner.wait(handle, LIMIT_S)


def test_value_of_wrong_type_is_reported_on_one_line(runner: Runner) -> None:
    for call, text in (
        (lambda: runner.submit(None), "None is neither an app"),  # type: ignore[arg-type]
        (lambda: runner.submit("utils.echo", cfg=5), "cfg=5: expected a dict"),  # type: ignore[arg-type]
        (lambda: runner.submit("utils.echo", "--msg a"), "expected a list of strings"),
        (lambda: runner.submit("utils.echo", 5), "expected a list of strings"),  # type: ignore[arg-type]
        (lambda: runner.status(5), "5 is not a job handle"),  # type: ignore[arg-type]
        (lambda: Runner(session="a/b"), "expected a name without '/'"),
    ):
        with pytest.raises(UsageError, match=text):
            call()


def test_replicas_come_from_scheduler_if_record_has_no_app(
    runner: Runner, scheduler: scripted.Scripted
) -> None:
    handle = runner.submit(*ECHO)
    record = runner.describe(handle)
    del record["app"]
    records.write(record["id"], record)
    assert runner.replicas(handle) == [("echo", 0)]
    scheduler.lines = ["x"]
    assert list(runner.log_lines(handle)) == ["x"]


def test_torchx_helpers_are_available() -> None:
    handle = specs.make_app_handle("local", "me", "a-1")
    assert handle == "local://me/a-1"
    assert specs.parse_app_handle(handle) == ("local", "me", "a-1")
    assert specs.parse_app_handle(handle).scheduler_backend == "local"
    assert specs.get_named_resources("gpu.small") == specs.resource(h="gpu.small")
    assert specs.ReplicaState is AppState
    assert (specs.MISSING, specs.NONE) == ("<MISSING>", "<NONE>")
    assert [specs.is_terminal(state) for state in (AppState.RUNNING, AppState.FAILED)] == [0, 1]
    assert [specs.is_started(state) for state in (AppState.PENDING, AppState.RUNNING)] == [0, 1]


def test_changing_app_does_not_affect_prepared_job(runner: Runner) -> None:
    role = specs.Role("r", "i", entrypoint="echo", args=["a"], resource=specs.Resource(1, 0, 1))
    app = specs.AppDef("app", [role])
    job = runner.dryrun(app)
    role.args.append("b")
    role.env["A"] = "1"
    role.resource.tags["a"] = 1
    assert job.app.roles[0].args == ["a"]
    assert "A" not in job.app.roles[0].env
    assert not job.app.roles[0].resource.tags
    assert "TORCHX_JOB_ID" not in role.env


def test_pre_proc_of_role_can_change_the_request(runner: Runner) -> None:
    """The dry run shows the changed request, and that request is sent."""

    class Louder(specs.Role):
        def pre_proc(self, scheduler: str, dryrun_info: Any) -> Any:
            assert scheduler == "scripted"
            assert dryrun_info.app.name == "app"
            assert dryrun_info.cfg["queue"] == "main"
            dryrun_info.request["commands"][0].append("!")
            return dryrun_info

    app = specs.AppDef("app", [Louder("r", "i", entrypoint="echo", args=["a"])])
    job = runner.dryrun(app)
    assert job.request.body == {"commands": [["echo", "a", "!"]]}
    assert json.loads(job.request.text) == job.request.body


def test_role_workspace_applies_to_the_job(runner: Runner, place: Path) -> None:
    """`--workspace` takes precedence."""
    (place / "sub").mkdir()
    role = specs.Role("r", "i", entrypoint="true", workspace=specs.Workspace({"sub": "x"}))
    app = specs.AppDef("app", [role, specs.Role("other", "i", entrypoint="true")])
    job = runner.dryrun(app, scheduler="local")
    assert job.request.cfg["workspace"] == f"{place / 'sub'}:x"
    assert job.workspace == "sub:x"
    job = runner.dryrun(app, scheduler="local", workspace=specs.Workspace({".": ""}))
    assert job.request.cfg["workspace"] == str(place)


def test_roles_with_different_workspaces_are_rejected(runner: Runner) -> None:
    roles = [
        specs.Role(name, "i", entrypoint="true", workspace=specs.Workspace({name: ""}))
        for name in ("a", "b")
    ]
    with pytest.raises(UsageError, match="roles a and b have different workspaces"):
        runner.dryrun(specs.AppDef("app", roles), scheduler="local")
