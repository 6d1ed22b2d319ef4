"""A hang report includes evidence from the dumps of torch's flight recorder."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Launch
from warm_torch import WarmTorch

from relight.base.env import Environment
from relight.base.errors import EXIT_HUNG
from relight.core.failure import Collective, Failure
from relight.stacks.flight_recorder import with_collectives

PLAIN = """
import os, pickle, time
rank = int(os.environ["RANK"])
entry = {
    "process_group": ("0", "default_pg"), "collective_seq_id": 2 - rank, "input_sizes": [[4, 2]],
    "profiling_name": "nccl:all_reduce", "state": "started", "retired": rank == 1,
}
with open(f"trace_{rank}", "wb") as file:
    pickle.dump({"version": "2.10", "entries": [entry]}, file)
time.sleep(1000)
"""
GLOO = """
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.broadcast(torch.ones(3), 0)
dist.all_reduce(torch.ones(4, 2))
with open("trace_0", "wb") as file:
    file.write(_dump_fr_trace())
"""


def test_failure_report_names_rank_missing_from_collective(
    launch: Launch, script: Callable[[str], Path], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    done = launch(
        "run", "--nproc-per-node=2", "--hang-timeout=3", f"--failure-report={report}",
        script(PLAIN), TORCH_FR_DUMP_TEMP_FILE=f"{tmp_path}/trace_",
    )  # fmt: skip
    assert done.returncode == EXIT_HUNG, done.stderr
    recorded = re.search(r"torch's flight recorder:\n  (.*)\n  (.*)\n", done.stderr)
    assert recorded is not None, done.stderr
    assert recorded.groups() == (
        "rank 0 is in all_reduce, number 2 of default_pg, sizes [4, 2]",
        "rank 1 has not entered number 2; the last was 1, all_reduce, sizes [4, 2]",
    )
    numbers = [
        each["collectives"][0]["number"] for each in json.loads(report.read_text())["failures_here"]
    ]
    assert sorted(numbers) == [1, 2]


@pytest.mark.slow
@pytest.mark.needs_torch
def test_flight_recorder_dump_written_by_torch_is_readable(warm_torch: WarmTorch) -> None:
    """Gloo records in the same format as NCCL."""
    assert warm_torch.run(GLOO).returncode == 0
    failure = Failure(
        rank=0, local_rank=0, host="a", pid=1, exitcode=1, at=0.0, stop_signal=0, report=None,
        last_lines=(), evidence="", log="",
    )  # fmt: skip
    env = Environment({"TORCH_FR_DUMP_TEMP_FILE": f"{warm_torch.folder}/trace_"})
    (found,) = with_collectives([failure], env, 0.0)[0].collectives or ()
    assert found._replace(is_done=True) == Collective(
        "default_pg", 2, "all_reduce", "[4, 2]", is_done=True
    )
