"""Nodes with failed hardware are remembered and excluded from jobs (`--bad-nodes`)."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from conftest import Launch

from relight.agent import bad_node, health_check
from relight.base.env import Environment
from relight.base.values import BadNodesDirectory, parse_bad_nodes
from relight.cli.jobs import nodes
from relight.flags.site import NO_SITE
from relight.health import bad_nodes
from relight.host.loop import Loop
from relight.runner import node_exclusion
from relight.schedulers.api import Option

SLURM = {"RELIGHT_JOB_ID": "slurm://relight/71", "SLURMD_NODENAME": "gpu-17"}


@pytest.fixture
def place(tmp_path: Path) -> BadNodesDirectory:
    (tmp_path / "bad").mkdir()
    return BadNodesDirectory(str(tmp_path / "bad"), 3600.0)


def remember(place: BadNodesDirectory, node: str = "gpu-17", why: str = "Xid 79") -> None:
    bad_nodes.remember(place, why, Environment({**SLURM, "SLURMD_NODENAME": node}))


class Cluster:
    """A scheduler that has the option `exclude`."""

    name = "slurm"

    def __init__(self, kind: type) -> None:
        self.options = [Option("exclude", kind, None, "")]


def excluded(place: BadNodesDirectory, cluster: Cluster, given: object) -> tuple[object, list[str]]:
    values = {"exclude": given}
    env = Environment({"RELIGHT_BAD_NODES": f"{place.path},1h"})
    notes = node_exclusion.add("slurm", cluster, values, env, NO_SITE)  # type: ignore[arg-type]
    return values["exclude"], list(notes)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/x", BadNodesDirectory("/x", 7 * 86400.0)),
        ("/x,12h", BadNodesDirectory("/x", 12 * 3600.0)),
        ("off", None),
        ("", None),
    ],
)
def test_bad_nodes_directory_accepts_an_expiry(
    text: str, expected: BadNodesDirectory | None
) -> None:
    assert parse_bad_nodes(text) == expected


@pytest.mark.parametrize("text", ["/x,", "/x,7", ",7d", "/x,0d", "/x,d7"])
def test_invalid_bad_nodes_directory_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="expected DIR or DIR,TIME"):
        parse_bad_nodes(text)


def test_bad_node_is_remembered_until_it_expires(place: BadNodesDirectory) -> None:
    remember(place)
    ((found,), _) = bad_nodes.current(place)
    assert (found.name, found.reason, found.scheduler) == ("gpu-17", "Xid 79", "slurm")
    assert (found.job, found.until - found.since) == ("slurm/71", 3600.0)
    remember(place._replace(expiry_s=-1.0))
    assert bad_nodes.current(place) == ([], [])


def test_adding_a_record_removes_expired_records(place: BadNodesDirectory) -> None:
    remember(place._replace(expiry_s=-1.0), "gpu-1")
    remember(place, "gpu-2")
    assert os.listdir(place.path) == [f"gpu-2.{os.getuid()}.json"]


def test_adding_a_short_record_keeps_longer_ones(place: BadNodesDirectory) -> None:
    """The time limit for another user's records is that of the machine where a job is submitted."""
    remember(place, "gpu-1")
    remember(place._replace(expiry_s=-70.0), "gpu-2")
    assert [each.name for each in bad_nodes.current(place)[0]] == ["gpu-1"]


def test_node_recorded_by_several_users_is_listed_once(place: BadNodesDirectory) -> None:
    """The record that lasts longest counts; forgetting a node removes all of its records."""
    remember(place)
    record = json.loads(Path(place.path, f"gpu-17.{os.getuid()}.json").read_text())
    longer = {**record, "reason": "ECC", "until": record["until"] + 60}
    Path(place.path, "gpu-17.77.json").write_text(json.dumps(longer))
    assert [each.reason for each in bad_nodes.current(place)[0]] == ["ECC"]
    assert bad_nodes.forget(place, ["gpu-17", "gpu-18"]) == ["gpu-17"]
    assert os.listdir(place.path) == []


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("gpu-1.1.json", lambda record: {**record, "name": "gpu-2"}),
        ("a b.1.json", lambda record: {**record, "name": "a b"}),
        ("--all.1.json", lambda record: {**record, "name": "--all"}),
        ("gpu-17.1.json", lambda record: {**record, "until": "tomorrow"}),
        ("gpu-17.1.json", lambda record: [record]),
    ],
)
def test_malformed_bad_node_records_are_ignored(
    place: BadNodesDirectory, name: str, change: Callable[[dict[str, object]], object]
) -> None:
    remember(place)
    path = Path(place.path, f"gpu-17.{os.getuid()}.json")
    record = json.loads(path.read_text())
    path.unlink()
    Path(place.path, name).write_text(json.dumps(change(record)))
    Path(place.path, "x.json").write_text("{")
    os.mkfifo(Path(place.path, "fifo.json"))
    assert bad_nodes.current(place) == ([], [])


def forge(place: BadNodesDirectory, count: int, **change: object) -> None:
    """Write records by hand, as any user can in a world-writable directory."""
    remember(place)
    own = Path(place.path, f"gpu-17.{os.getuid()}.json")
    record = json.loads(own.read_text())
    own.unlink()
    for number in range(count):
        name = f"gpu-{number:02}"
        path = Path(place.path, f"{name}.1000.json")
        path.write_text(json.dumps({**record, "name": name, **change}))


def test_record_lasts_no_longer_than_configured(place: BadNodesDirectory) -> None:
    forge(place, 1, until=9999999999)
    os.utime(Path(place.path, "gpu-00.1000.json"), (8e9, 8e9))
    ((found,), _) = bad_nodes.current(place)
    assert found.until < time.time() + place.expiry_s + 2 * bad_nodes._CLOCK_SKEW_S


@pytest.mark.needs_root
def test_user_can_exclude_only_a_few_nodes(place: BadNodesDirectory) -> None:
    """The uid in a file's name doesn't matter. Root and the directory's owner are not limited."""
    forge(place, 64)
    for entry in list(Path(place.path).iterdir()):
        os.chown(entry, 12345, -1)
        second = shutil.copy2(entry, entry.with_name(entry.name.replace(".1000.", ".1001.")))
        os.chown(second, 12345, -1)
    found, notes = bad_nodes.current(place)
    assert len(found) == 16
    assert notes == [f"{place.path} contains 64 bad nodes from uid 12345; only the latest 16 count"]
    excludes, printed = excluded(place, Cluster(list), None)
    assert len(excludes) == 16  # type: ignore[arg-type]
    assert printed[0] == notes[0] and printed[6] == "not using 11 more bad nodes"
    os.chown(place.path, 12345, -1)
    assert len(bad_nodes.current(place)[0]) == 64


def test_bad_nodes_are_added_to_excluded_nodes(place: BadNodesDirectory) -> None:
    remember(place)
    remember(place, "gpu-18", "its GPU 0000:3b:00.0 reported Xid 79")
    until = time.strftime("%F %H:%M", time.localtime(bad_nodes.current(place)[0][0].until))
    value, notes = excluded(place, Cluster(str), "gpu-[1-2]")
    assert value == "gpu-[1-2],gpu-17,gpu-18"
    assert notes[0] == f"not using gpu-17 until {until}: Xid 79"
    assert notes[-1] == "to let jobs use it again: relight nodes forget gpu-17"
    assert excluded(place, Cluster(list), ["gpu-18"])[0] == ["gpu-18", "gpu-17"]


def test_bad_nodes_recorded_on_other_schedulers_are_not_excluded(place: BadNodesDirectory) -> None:
    bad_nodes.remember(place, "x", Environment({"RELIGHT_NODE_NAME": "gpu-17"}))
    assert excluded(place, Cluster(str), None) == (None, [])


def test_scheduler_determines_which_nodes_can_be_excluded(place: BadNodesDirectory) -> None:
    """Slurm refuses a job that excludes an unknown node."""
    remember(place)
    remember(place, "gone")
    cluster = Cluster(str)
    cluster.excludable = lambda names, cfg: [n for n in names if n != "gone"]  # type: ignore[attr-defined]
    assert excluded(place, cluster, None)[0] == "gpu-17"


def test_missing_bad_nodes_directory_only_causes_a_note(tmp_path: Path) -> None:
    value, notes = excluded(BadNodesDirectory(str(tmp_path / "no"), 1.0), Cluster(str), None)
    assert value is None
    assert notes == [
        f"bad nodes are not avoided: can't read {tmp_path}/no: No such file or directory"
    ]


def test_nodes_command_lists_and_removes_bad_nodes(
    place: BadNodesDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RELIGHT_BAD_NODES", place.path)
    remember(place)
    assert nodes.main([]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["NODE", "UNTIL", "SCHEDULER", "USER", "JOB", "REASON"]
    assert row.startswith("gpu-17  ") and row.endswith("slurm/71  Xid 79")
    assert nodes.main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "gpu-17"
    assert nodes.main(["forget", "gpu-17", "gpu-18"]) == 0
    assert capsys.readouterr().err == (
        "relight: forgot gpu-17\nrelight: gpu-18 was not recorded as bad\n"
    )
    assert nodes.main([]) == 0
    assert capsys.readouterr().err == f"relight: no node is remembered as bad in {place.path}\n"


@pytest.mark.parametrize(
    ("check", "config", "is_remembered"),
    [
        pytest.param("./check.sh", "", False, id="a user's check"),
        pytest.param(
            "./check.sh", '[run]\nhealth-check = "./check.sh"\n', True, id="the site's check"
        ),
        pytest.param("disk=9T", "", False, id="a full disk"),
    ],
)
def test_only_health_check_configured_by_site_marks_a_node_as_bad(
    launch: Launch, tmp_path: Path, place: BadNodesDirectory, check: str, config: str,
    is_remembered: bool,
) -> None:  # fmt: skip
    (tmp_path / "config.toml").write_text(config)
    (tmp_path / "check.sh").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "check.sh").chmod(0o755)
    result = launch(
        "run", f"--health-check={check}", f"--bad-nodes={place.path}", "--no-python", "true",
        RELIGHT_CONFIG_DIR=str(tmp_path), SLURMD_NODENAME="gpu-17",
    )  # fmt: skip
    assert result.returncode == 4
    assert ("later jobs will not use gpu-17 until " in result.stderr) == is_remembered
    assert len(os.listdir(place.path)) == is_remembered


def test_broken_driver_and_memory_errors_mark_a_node_as_bad(tmp_path: Path) -> None:
    """GPUs that are in use by other processes don't."""
    env = Environment({"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    for text, is_proof in (
        ("echo Unable to determine the device handle for GPU: Unknown Error; exit 15", True),
        ("echo 0, 5, 3", True),
        ("echo 0, 5000, 0", False),
    ):
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
        found = health_check._by_nvidia_smi(env)
        assert found.why and found.is_proof == is_proof


def test_broken_gpu_of_a_failed_rank_is_remembered(place: BadNodesDirectory) -> None:
    loop, journal = Loop(), mock.Mock()
    try:
        bad_node.remember(loop, journal, place, "Xid 79", Environment(SLURM))
        bad_node.remember(loop, journal, place._replace(path="/no"), "Xid 79", Environment(SLURM))
    finally:
        loop.close()
    said = [call.args[0] for call in journal.say.call_args_list]
    assert said[0].startswith("later jobs will not use gpu-17 until ")
    assert said[1] == "can't record this node as bad in /no: No such file or directory"
    assert [each.reason for each in bad_nodes.current(place)[0]] == ["Xid 79"]
