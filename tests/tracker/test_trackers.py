"""Runs record metadata, artifacts, and sources; `relight tracker` shows them.

`written-by-torchx.json` has the files that TorchX 0.7 writes for the calls in `record`.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import Launch

from relight.base.errors import MachineError, UsageError
from relight.cli.jobs import tracker
from relight.tracker import AppRun, TrackerArtifact, TrackerSource, app_run_from_env, backends
from relight.tracker.file_system import FileSystemTracker

pytestmark = [pytest.mark.needs_fsspec, pytest.mark.forked]
CHILD, PARENT = "local://torchx/child", "local://torchx/parent"
RECORDED = json.loads((Path(__file__).parent / "written-by-torchx.json").read_text())
FromEnv = Callable[..., AppRun]


@pytest.fixture
def run_from_env(monkeypatch: pytest.MonkeyPatch) -> Iterator[FromEnv]:
    """The run of a process that has only these variables."""

    def make(**variables: str) -> AppRun:
        for name in list(os.environ):
            if name.startswith("TORCHX_"):
                monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        app_run_from_env.cache_clear()
        return app_run_from_env()

    yield make
    app_run_from_env.cache_clear()


@pytest.fixture
def config(tmp_path: Path) -> str:
    """A configuration for the fsspec tracker."""
    path = tmp_path / "tracker.conf"
    path.write_text(f"# where\nprotocol = file\nroot_path={tmp_path}/runs\nauto_mkdir = true\n")
    return str(path)


def record(run: AppRun) -> None:
    run.add_metadata(lr=0.1, tags=["a"])
    run.add_metadata(lr=0.2)
    run.add_artifact("model", "/m.pt", {"step": 5})
    run.add_artifact("log", "/l")
    run.add_source("s3://data", "train")


def tree(root: Path) -> dict[str, str]:
    return {
        str(each.relative_to(root)): each.read_text() for each in root.rglob("*") if each.is_file()
    }


def shape(files: Mapping[str, str]) -> list[tuple[str, Any]]:
    """Return a tracker's files without the times in their names."""
    return sorted(
        (
            re.sub(r"/\d+(_\w+)?$", "/TIME", path),
            json.dumps(json.loads(text)) if "{" in text else text,
        )
        for path, text in files.items()
    )


def test_tracker_files_match_those_written_by_torchx(
    run_from_env: FromEnv, config: str, tmp_path: Path
) -> None:
    run = run_from_env(
        TORCHX_JOB_ID=CHILD, TORCHX_PARENT_RUN_ID=PARENT, TORCHX_TRACKERS="fsspec",
        TORCHX_TRACKER_FSSPEC_CONFIG=config,
    )  # fmt: skip
    record(run)
    assert shape(tree(tmp_path / "runs")) == shape(RECORDED)
    assert run.job_id() == CHILD
    assert [(each.parent.id, each.artifact_name) for each in run.sources()] == [
        (PARENT, None), ("s3://data", "train")
    ]  # fmt: skip


def test_tracker_files_written_by_torchx_are_readable(tmp_path: Path) -> None:
    """For each name, the last value is used; foreign files are skipped."""
    for path, text in {**RECORDED, "notes.txt": "", "NRXWGYLM/x": ""}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    import fsspec

    found = FileSystemTracker(fsspec.filesystem("file"), str(tmp_path))
    assert found.metadata(CHILD) == {"lr": 0.2, "tags": ["a"]}
    assert found.artifacts(CHILD) == {
        "model": TrackerArtifact("model", "/m.pt", {"step": 5}),
        "log": TrackerArtifact("log", "/l", None),
    }
    assert found.sources(CHILD, "train") == [TrackerSource("s3://data", "train")]
    assert CHILD in found.run_ids()
    assert found.run_ids(parent_run_id=PARENT) == [CHILD]
    assert found.lineage("s3://data").descendants == (CHILD,)
    assert found.metadata("unknown") == {}


def test_run_outside_submitted_job_records_nothing(run_from_env: FromEnv) -> None:
    """Without a tracker, the same calls have no effect, as in TorchX."""
    run = run_from_env()
    record(run)
    assert run == AppRun("<UNDEFINED>", [])
    assert run.sources() == []
    assert AppRun.run_from_env() is app_run_from_env()


def test_tracker_that_cannot_be_loaded_causes_only_a_warning_in_job(
    run_from_env: FromEnv, config: str
) -> None:
    """The other trackers still record."""
    with pytest.warns(UserWarning, match="unknown tracker: fspec"):
        run = run_from_env(TORCHX_JOB_ID=CHILD, TORCHX_TRACKERS="fspec,fsspec",
                           TORCHX_TRACKER_FSSPEC_CONFIG=config)  # fmt: skip
    assert [type(each) for each in run.backends] == [FileSystemTracker]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("fspec", "", "unknown tracker: fspec.*did you mean fsspec"),
        ("fsspec", None, "has no configuration file"),
        ("fsspec", "protocol = file\n", "has no root_path"),
        ("fsspec", "protocol = fire\nroot_path = /\n", "Protocol not known: fire"),
        ("fsspec", "protocol = file\nroot_path = /\na. = 1\n", "no name after its dot"),
        ("nowhere:make", "", "can't load the tracker nowhere:make: ModuleNotFoundError"),
        ("json:loads", "{", "tracker json:loads does not accept config=.*JSONDecodeError"),
    ],
)
def test_invalid_tracker_is_rejected(
    name: str, text: str | None, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "config"
    path.write_text(text or "")
    with pytest.raises(UsageError) as caught:
        backends.load(name, None if text is None else str(path))
    assert re.search(said, f"{caught.value} {caught.value.hint}")


def test_unserializable_value_is_shown_in_the_error(config: str) -> None:
    with pytest.raises(UsageError, match="metadata must be JSON-serializable"):
        backends.load("fsspec", config).add_metadata(CHILD, lr={1})


@pytest.mark.needs_mlflow
def test_mlflow_tracker_stores_same_records_as_fsspec_tracker(
    run_from_env: FromEnv, tmp_path: Path
) -> None:
    """Values are converted to strings, and artifacts are copied."""
    model = tmp_path / "model.pt"
    model.write_text("model")
    (tmp_path / ".torchxconfig").write_text(
        f"[tracker:mlflow]\ntracking_uri = file://{tmp_path}/mlruns\nexperiment_name = mine\n"
    )
    run = run_from_env(
        TORCHX_JOB_ID=CHILD, TORCHX_PARENT_RUN_ID=PARENT, TORCHX_TRACKERS="mlflow",
        TORCHX_TRACKER_MLFLOW_CONFIG=str(tmp_path), MLFLOW_ALLOW_FILE_STORE="true",
    )  # fmt: skip
    run.add_metadata(lr=0.1)
    run.add_artifact("model", str(model), {"step": 5})
    run.add_source("s3://data", "train")
    (found,) = run.backends
    assert found.metadata(CHILD) == {"lr": "0.1"}
    (artifact,) = found.artifacts(CHILD).values()
    assert artifact.metadata == {"step": "5", "mlflow.file_size": 5}
    assert Path(artifact.path.removeprefix("file://")).read_text() == "model"
    assert found.sources(CHILD, "train") == [TrackerSource("s3://data", "train")]
    assert found.run_ids(parent_run_id=PARENT) == [CHILD]


SCRIPT = """
from relight.tracker import app_run_from_env
run = app_run_from_env()
run.add_metadata(lr=0.1)
run.add_artifact("model", "/m.pt", {"step": 5})
run.add_artifact("log", "/l")
"""


def test_job_started_with_run_records_under_its_own_id(
    launch: Launch, config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "train.py").write_text(SCRIPT)
    flag = f"--tracker=fsspec={config}"
    job = launch("run", flag, "--name=mine", "train.py")
    assert job.returncode == 0, job.stderr
    monkeypatch.chdir(tmp_path)

    def shown(*words: str) -> str:
        assert tracker.main(["list", *words, flag]) == 0
        return capsys.readouterr().out

    run = shown("jobs").splitlines()[1]
    assert re.fullmatch(r"run://torchx/mine-\d+", run)
    for name in (run, run.replace("torchx", "relight"), run.rpartition("/")[2]):
        assert shown("metadata", name) == "ID  VALUE\nlr  0.1\n"


@pytest.mark.parametrize("name", ["a-b", "a:b=config", ""])
def test_tracker_with_invalid_name_is_rejected(launch: Launch, name: str) -> None:
    job = launch("run", f"--tracker={name}=x", "train.py")
    assert (job.returncode, "invalid tracker name" in job.stderr) == (2, True)


def test_tracker_command_shows_records_of_submitted_job(
    launch: Launch,
    config: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The settings for `torchx run` name the tracker; the run's id is the job handle."""
    (tmp_path / ".torchxconfig").write_text(
        f"[torchx:tracker]\nfsspec =\n[tracker:fsspec]\nconfig = {config}\n"
    )
    (tmp_path / "train.py").write_text(SCRIPT)
    own = {"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)}
    submitted = launch(
        "submit", "--parent-run-id", PARENT, "utils.sh", sys.executable, "train.py", **own
    )
    assert submitted.returncode == 0, submitted.stderr
    monkeypatch.chdir(tmp_path)
    for name, value in own.items():
        monkeypatch.setenv(name, value)

    def shown(*words: str) -> str:
        assert tracker.main(["list", *words]) == 0
        return capsys.readouterr().out

    heading, handle = shown("jobs", "--parent-run-id", PARENT).splitlines()
    assert heading == "JOB ID"
    assert handle.startswith("local://torchx/")
    job = handle.rpartition("/")[2]
    for run in (handle, f"local://relight/{job}", job):
        assert shown("metadata", run) == "ID  VALUE\nlr  0.1\n"
    assert shown("artifacts", job, "--artifact", "model").splitlines() == [
        "ARTIFACT  PATH   METADATA", "model     /m.pt  step=5"
    ]  # fmt: skip
    assert json.loads(shown("lineage", "--json", job)) == [
        {"relation": "comes from", "run": PARENT, "artifact": None}
    ]
    assert shown("jobs", "--parent-run-id", "x") == ""
    monkeypatch.setattr(FileSystemTracker, "run_ids", lambda self: open("/nowhere"))
    with pytest.raises(MachineError, match="can't read"):
        tracker.main(["list", "jobs"])
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for words, said in (
        (("list", "metadata", "x"), "has no run x"),
        (("list", "metadata"), "list metadata needs a RUN_ID"),
        (("list", "jobs", "x"), "list jobs does not take a RUN_ID"),
        (("list", "job"), "did you mean jobs?"),
        (("list",), "needs a subcommand: what to list"),
        (("show", "jobs"), "has no subcommand show"),
    ):
        with pytest.raises(UsageError) as caught:
            tracker.main([*words])
        assert said in f"{caught.value} {caught.value.hint}"


def test_tracker_without_string_form_is_named_in_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plain_tracker.py").write_text(
        "class Tracker:\n"
        "    def run_ids(self, **kwargs): return []\n"
        "def create(config): return Tracker()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    flag = "--tracker=plain_tracker:create"
    with pytest.raises(UsageError, match="tracker plain_tracker:create has no run foo"):
        tracker.main(["list", "metadata", "foo", flag])
    assert tracker.main(["list", "jobs", flag]) == 0
    assert "tracker plain_tracker:create has no jobs" in capsys.readouterr().err
