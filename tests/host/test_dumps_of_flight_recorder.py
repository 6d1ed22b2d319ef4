"""Dumps from torch's flight recorder are read without executing anything in them."""

import os
import pickle
import time
from pathlib import Path

import pytest

from relight.base.env import Environment
from relight.core.failure import Collective, Failure
from relight.stacks.flight_recorder import ask, have_dumped, with_collectives

ENTRY = {
    "process_group": ("0", "default_pg"), "collective_seq_id": 5, "profiling_name": "nccl:barrier",
    "input_sizes": [[1]], "state": "started", "retired": False, "is_p2p": False,
    "time_created_ns": 1 << 62, "time_discovered_completed_ns": None,
}  # fmt: skip
GOOD = pickle.dumps({"version": "2.10", "entries": [ENTRY]}, protocol=2)
FOUND = (Collective("default_pg", 5, "barrier", "[1]", is_done=False),)


class Attack:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self.path,)


def read(env: dict[str, str], since: float = 0.0) -> tuple[Collective, ...] | None:
    failure = Failure(
        rank=3, local_rank=0, host="a", pid=1, exitcode=1, at=0.0, stop_signal=0, report=None,
        last_lines=(), evidence="", log="",
    )  # fmt: skip
    return with_collectives([failure], Environment(env), since)[0].collectives


@pytest.mark.parametrize("name", ["TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"])
def test_flight_recorder_dump_is_found_at_configured_path(name: str, tmp_path: Path) -> None:
    (tmp_path / "trace_3").write_bytes(GOOD)
    assert read({name: f"{tmp_path}/trace_"}) == FOUND
    assert read({name: f"{tmp_path}/other_"}) is None


def test_flight_recorder_dump_is_found_at_default_torch_path(tmp_path: Path) -> None:
    (tmp_path / ".cache" / "torch").mkdir(parents=True)
    (tmp_path / ".cache" / "torch" / "comm_lib_trace_rank_3").write_bytes(GOOD)
    assert read({"HOME": str(tmp_path)}) == FOUND


def test_dump_from_earlier_generation_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "trace_3"
    path.write_bytes(GOOD)
    os.utime(path, (1, 1))
    assert read({"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/trace_"}, time.time() - 60) is None


def test_unpickler_rejects_callables(tmp_path: Path) -> None:
    attack = Attack(str(tmp_path / "made"))
    (tmp_path / "trace_3").write_bytes(pickle.dumps({"entries": [ENTRY, attack]}, protocol=2))
    assert read({"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/trace_"}) is None
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "data",
    [b"", b"\x80", GOOD[:-20], b"\x80\x02c", b"{}", pickle.dumps(3), b"\x80\x02h\x09.", b"((((("],
)
def test_malformed_dump_is_ignored(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "trace_3").write_bytes(data)
    assert read({"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/trace_"}) is None


def test_pipe_or_directory_in_place_of_dump_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trace_3")
    (tmp_path / "other_3").mkdir()
    assert read({"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/trace_"}) is None
    assert read({"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/other_"}) is None


def test_dump_is_requested_from_rank_that_listens_on_its_pipe(tmp_path: Path) -> None:
    env = Environment({"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/ask_"})
    os.mkfifo(tmp_path / "ask_3.pipe")
    assert not ask(env, [2, 3]), "nobody reads"
    reader = os.open(tmp_path / "ask_3.pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert ask(env, [2, 3]) == [3]
        assert os.read(reader, 100)
    finally:
        os.close(reader)
    assert not ask(Environment({}), [3])


def test_dump_is_complete_once_its_last_byte_has_been_written(tmp_path: Path) -> None:
    env = Environment({"XDG_CACHE_HOME": str(tmp_path)})
    (tmp_path / "torch").mkdir()
    dump = tmp_path / "torch" / "comm_lib_trace_rank_0"
    dump.write_bytes(GOOD[:-1])
    assert not have_dumped(env, [0], since=0)
    dump.write_bytes(GOOD)
    assert have_dumped(env, [0], since=0)
    assert not have_dumped(env, [0, 1], since=0)
    assert not have_dumped(env, [0], since=time.time() + 60), "an old one"


def test_regular_file_in_place_of_pipe_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "ask_3.pipe").write_text("mine")
    assert not ask(Environment({"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/ask_"}), [3])
    assert (tmp_path / "ask_3.pipe").read_text() == "mine"
