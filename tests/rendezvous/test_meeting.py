"""From settings to a rendezvous: torchrun's settings that no other table covers."""

from pathlib import Path

import pytest

from relight.base.env import Environment
from relight.base.errors import UsageError
from relight.core.group.group_types import GroupSettings
from relight.flags.arguments import parse, to_spec
from relight.rendezvous.config import Meeting, arrange
from relight.rendezvous.file import FileRegister

BARRIER = "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT"


def arrange_job(*flags: str, **variables: str) -> tuple[Meeting, GroupSettings]:
    endpoint = ("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=node1", "--rdzv-id=j")
    spec = to_spec(parse([*endpoint, *flags, "train.py"], Environment({})))
    return arrange(spec, Environment(variables))[:2]


@pytest.mark.parametrize(("hosts", "count"), [("node1", 1), ("node1,node2,node3", 0)])
def test_takeover_alone_setting_without_effect_causes_a_note(hosts: str, count: int) -> None:
    """Only an endpoint with several hosts elects a coordinator."""
    flags = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={hosts}", "--rdzv-id=j"]
    flags.append("--rdzv-conf=takeover=alone")
    _, _, notes = arrange(to_spec(parse([*flags, "train.py"], Environment({}))), Environment({}))
    assert sum("takeover=alone has no effect" in note for note in notes) == count


@pytest.mark.parametrize(
    ("conf", "variable", "seconds"),
    [("", "", 300), ("", "7", 7), ("", "0", 0), ("exit_barrier_timeout=0", "7", 0)],
)
def test_exit_barrier_timeout_comes_from_rdzv_conf_or_torchrun_variable(
    conf: str, variable: str, seconds: float
) -> None:
    """--rdzv-conf takes precedence over torchrun's variable; both can be 0."""
    assert arrange_job(f"--rdzv-conf={conf}", **{BARRIER: variable})[1].exit_barrier_s == seconds


@pytest.mark.parametrize(
    ("conf", "backend", "first"),
    [
        ("rank0=endpoint", "c10d", True),
        ("is_host=1", "c10d", True),
        ("is_host=1,rank0=any", "c10d", False),
        ("is_host=0,rank0=endpoint", "c10d", True),
        ("is_host=0", "c10d", False),
        ("", "c10d", False),
        ("is_host=1", "etcd", False),
    ],
)
def test_rank_0_is_on_endpoint_host_only_if_settings_request_it(
    conf: str, backend: str, first: bool
) -> None:
    meeting, _ = arrange_job(f"--rdzv-conf={conf}", f"--rdzv-backend={backend}")
    assert meeting.endpoint_first == first


def test_job_without_id_has_no_display_name() -> None:
    """The default id, `none`, is not shown as an id."""
    assert arrange_job()[0].who == "job j"
    assert arrange_job("--rdzv-id=none")[0].who == "the job"


def test_invalid_exit_barrier_timeout_is_rejected() -> None:
    with pytest.raises(UsageError, match=f"{BARRIER}=-1: expected a number of seconds from 0"):
        arrange_job(**{BARRIER: "-1"})


@pytest.mark.parametrize(
    ("conf", "seconds"), [("", 600), ("join_timeout=9", 9), ("read_timeout=3,join_timeout=9", 6)]
)
def test_read_timeout_limits_search_for_endpoint(conf: str, seconds: float) -> None:
    """If read_timeout is set, the search ends after twice that time, as in torchrun."""
    assert arrange_job(f"--rdzv-conf={conf}")[0].seek_s == seconds


@pytest.mark.parametrize("endpoint", ["store", "sub/store"])
def test_c10d_file_store_is_mapped_to_file_backend(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A c10d file store becomes the backend `file`, with a relative path made absolute."""
    monkeypatch.chdir(tmp_path)
    flags = f"--rdzv-endpoint={endpoint}", "--rdzv-conf=store_type=FILE,read_timeout=3"
    meeting, _ = arrange_job(*flags)
    assert isinstance(meeting.register, FileRegister)
    assert meeting.where == f"file {tmp_path}/{endpoint}"
    assert meeting.hosts == ()


@pytest.mark.parametrize("text", ["::1", "[::1]"])
def test_master_addr_accepts_ipv6_with_or_without_brackets(text: str) -> None:
    flags = ["--nnodes=2", f"--master-addr={text}", "--master-port=29500", "train.py"]
    meeting, _, _ = arrange(to_spec(parse(flags, Environment({}))), Environment({}))
    assert meeting.hosts == (("::1", 29500),)


def test_ranks_follow_network_topology_on_request() -> None:
    """The rendezvous receives this node's place in the network."""
    meeting, group = arrange_job("--rank-order=topology", "--segment=2", RELIGHT_TOPOLOGY="s1.l2")
    assert (meeting.topology, group.by_topology, group.segment) == ("s1.l2", True, 2)
    meeting, group = arrange_job(RELIGHT_TOPOLOGY="s1.l2")
    assert (meeting.topology, group.by_topology, group.segment) == ("", False, 1)
