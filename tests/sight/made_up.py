"""A made-up view of a multi-node job, for tests and for pictures of the page."""

import math
from typing import Any

from relight.core.status.phases import PHASES

STARTED = 1_767_262_800.0
"""2026-01-01 10:20 UTC."""
_LASTS_S = 3900.0
_CAUSES = (
    "start",
    "rank 201 raised OutOfMemoryError: CUDA out of memory at /home/u/llama/model.py:88 (pid 4201 "
    "on gpu-04); restart 1 of 10",
    "gpu-08 was lost: no heartbeat for 1.3 s",
    "gpu-08 came back",
)
_GENERATIONS = ((0, 0.0, 1500.0, 16), (1, 1506.0, 2320.0, 16), (2, 2324.0, 2900.0, 15),
                (3, 2905.0, None, 16))  # fmt: skip
_STARTING = (("rendezvous", 0.4), ("spawn", 0.2), ("imports", 9.0), ("init", 3.0),
             ("first_step", 5.0))  # fmt: skip
_LOST_S = 130.0


def look(nodes: int = 16, ranks: int = 1000) -> dict[str, Any]:
    """Return the page's state for a job that lost a node and restarted once."""
    now = STARTED + _LASTS_S
    per_node = math.ceil(ranks / nodes)
    return {
        "job": {
            "id": "llama-7b-2711", "name": "llama-7b", "host": "gpu-01", "pid": 2711,
            "command": "train.py --config configs/7b.yaml --lr 3e-4 --hub-token <hidden>",
            "directory": "/home/u/llama", "started": STARTED, "taken": now, "generation": 3,
            "restart": 1, "max_restarts": 10, "nodes": nodes, "world_size": ranks,
            "shown_state": "running", "over": False, "mood": "", "step": 18345, "rate": 5.21,
            "total": 100_000, "remaining_s": 16_200.0,
            "notice": "",
        },
        "lanes": [_lane(node) for node in range(nodes)],
        "generations": [
            {"number": n, "began": STARTED + began, "ended": None if end is None else STARTED + end,
             "nodes": size, "ranks": size * per_node, "cause": _CAUSES[n]}
            for n, began, end, size in _GENERATIONS
        ],
        "failures": [{"at": STARTED + 1506, "text": _CAUSES[1]}],
        "ranks": [_row(rank, per_node) for rank in range(ranks)],
        "goodput": {
            "share": 0.914,
            "is_most": False,
            "phases": {"productive": 3565.0, "lost": 260.0, "detect": 2.1, "teardown": 4.0,
                       "rendezvous": 1.9, "spawn": 0.8, "imports": 36.0, "init": 12.0,
                       "first_step": 18.2},
            "failures": 2, "mttr": 14.2, "mtbf": 1950.0,
        },
        "phases": PHASES,
        "charts": _charts(),
        "actions": ["stacks", "cancel"],
        "events": [
            {"n": n, "at": STARTED + 2905 + n / 10, "node": f"gpu-{n % nodes + 1:02}",
             "event": "WorkerStarted", "text": f"rank {n} (local rank {n % 8}) is pid {4000 + n}"}
            for n in range(60)
        ],
    }  # fmt: skip


def _charts() -> list[list[Any]]:
    """Return 65 minutes of chart data: a value every 32 s, and none during restarts."""
    series: dict[str, list[Any]] = {"steps/s": [], "loss": [], "lr": [], "grad_norm": []}
    for n in range(122):
        wave = math.sin(n * n * 12.9898) / 2 + 0.5
        is_down = n in (46, 47, 72, 73, 90, 91)
        slow = 0.93 if 73 < n < 90 else 1.0
        numbers = {
            "steps/s": (5.1 + wave / 4) * slow,
            "loss": 2.1 + 5 * math.exp(-n / 18) + wave / 10,
            "lr": 3e-4 * min(1.0, n / 12),
            "grad_norm": 0.4 + 2 * math.exp(-n / 9) + wave / 4,
        }
        for name, values in series.items():
            values.append(None if is_down else float(f"{numbers[name]:.6g}"))
    return [[name, STARTED, 32.0, values] for name, values in series.items()]


def _lane(node: int) -> dict[str, Any]:
    bars: list[list[Any]] = []
    marks: list[list[Any]] = []
    for number, began, ended, _ in _GENERATIONS:
        if number == 2 and node == 7:
            continue
        at = STARTED + began
        for phase, seconds in _STARTING:
            bars.append([number, phase, at, at + seconds])
            at += seconds
        end = None if ended is None else STARTED + ended
        if end is None:
            bars.append([number, "productive", at, None])
        else:
            bars.append([number, "productive", at, end - _LOST_S])
            bars.append([number, "lost", end - _LOST_S, end])
            bars.append([number, "teardown", end, end + 2])
    if node == 0:
        marks += [[STARTED + 640.0 * k, "checkpoint", f"step {k * 3000}"] for k in range(1, 7)]
    if node == 3:
        marks.append([STARTED + 1500, "failure", "local rank 9 exited with code 1"])
    if node == 7:
        marks += [[STARTED + 2320, "departure", "gpu-08 was lost"],
                  [STARTED + 2900, "arrival", "gpu-08 came back"]]  # fmt: skip
    return {"name": f"gpu-{node + 1:02}", "bars": bars, "marks": marks}


def _row(rank: int, per_node: int) -> list[Any]:
    wave = math.sin(rank * 12.9898) / 2 + 0.5
    line = f"step 18345, loss {2.1 + wave / 10:.4f}, lr 3.0e-04, grad_norm {wave:.3f}"
    reported = f"loss={2.1 + wave / 10:.4f} lr=0.0003"
    gpu = (0.97 + wave / 50, int(61e9 + wave * 5e8)) if rank < 8 else (None, None)
    return [rank, rank // per_node, f"gpu-{rank // per_node + 1:02}", "running", None, 4000 + rank,
            18345 - int(wave * 1.2), 5.2 + wave / 30, 1 + wave / 8, int(6e9 + wave * 5e8),
            line, None, *gpu, reported]  # fmt: skip
