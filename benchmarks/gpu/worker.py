"""A worker of the checks: `worker.py MODE --device cuda [--backend nccl] --facts FILE --stop FILE`.

Appends one line of JSON to FILE after its first operation on the device. Modes:

once      ends after that
hold      also takes `--mib` of device memory, and keeps it until the stop file exists; a worker of
          the first generation raises RuntimeError if `STOP.raise` exists
busy      multiplies matrices until the stop file exists
kernel    is in one kernel for some 10 s
oom       rank 1 asks for more memory than there is; the others wait in a collective
assert    rank 1 fails a device-side assertion; the others wait in a collective
"""

import argparse
import gc
import json
import os
import sys
import time

BEGIN = time.monotonic()


def _maps() -> str:
    try:
        with open("/proc/self/maps") as file:
            return file.read()
    except OSError:
        return ""


# Forked from a process that has imported torch: its libraries are there before the import.
IS_WARM = "libtorch" in _maps()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

IMPORTED = time.monotonic()
KERNEL_CYCLES = 20_000_000_000
"""Some 10 s at 2 GHz."""
MIB = 1 << 20


def main() -> None:
    """Run one mode."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mode")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--backend", default="")
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--facts", required=True)
    parser.add_argument("--stop", required=True)
    options = parser.parse_args()
    rank = int(os.environ["RANK"])
    facts = _first_use(options.device)
    device = torch.device(facts["device"])
    if options.backend:
        facts.update(_meet(options.backend, device))
    held = None
    if options.mode == "hold":
        held = torch.ones(options.mib * MIB, dtype=torch.uint8, device=device)
        _synchronize(device)
    _append(options.facts, facts)

    if options.mode == "kernel":
        _stay_in_a_kernel(device)
    if options.mode == "oom":
        if rank == 1:
            held = torch.empty(1 << 50, dtype=torch.uint8, device=device)  # out of memory
        dist.all_reduce(torch.ones(1))
    if options.mode == "assert":
        if rank == 1:
            held = torch.ones(4, device=device)[torch.tensor([9], device=device)]
            print(held)  # the assertion of the kernel before is noticed here
        dist.all_reduce(torch.ones(1))
    while options.mode in ("hold", "busy") and not os.path.exists(options.stop):
        if facts["restart"] == 0 and os.path.exists(f"{options.stop}.raise"):
            raise RuntimeError("asked to fail")
        if options.mode == "busy":
            _multiply(device)
        else:
            time.sleep(0.02)
    if dist.is_initialized():
        gc.collect()  # DistributedDataParallel holds the process group in cycles
        dist.destroy_process_group()


def _first_use(kind: str) -> dict[str, object]:
    """Return what there was before the device was used, and what its first operation gave."""
    facts: dict[str, object] = {
        name.lower(): int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    }
    facts.update(
        pid=os.getpid(),
        restart=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        warm=IS_WARM,
        imports_s=round(IMPORTED - BEGIN, 3),
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        initialized=torch.cuda.is_initialized(),
        bad_fork=torch.cuda._is_in_bad_fork(),
    )
    begin = time.monotonic()
    device = torch.device("cpu")
    if kind == "cuda":
        count = torch.cuda.device_count()
        facts.update(count=count)
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % max(1, count))
        torch.cuda.set_device(device)
        facts.update(name=torch.cuda.get_device_name(device))
    left = torch.arange(12.0, device=device).reshape(3, 4)
    product = (left @ left.T).cpu()  # waits for the device
    facts["first_op"] = time.monotonic()
    facts["context_s"] = round(time.monotonic() - begin, 3)
    expected = torch.arange(12.0).reshape(3, 4)
    facts["right"] = bool(torch.equal(product, expected @ expected.T))
    facts["device"] = str(device)
    return facts


def _meet(backend: str, device: torch.device) -> dict[str, object]:
    """Join a process group; return whether a sum over all ranks, and the gradients of
    DistributedDataParallel, are right.
    """
    begin = time.monotonic()
    dist.init_process_group(backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    total = torch.full((4,), float(rank + 1), device=device)
    dist.all_reduce(total)
    summed = bool((total == world * (world + 1) / 2).all())
    model = DistributedDataParallel(torch.nn.Linear(4, 1, bias=False).to(device))
    model(torch.full((1, 4), float(rank + 1), device=device)).sum().backward()
    gradient = next(model.parameters()).grad
    assert gradient is not None
    averaged = bool(torch.allclose(gradient, torch.full_like(gradient, (world + 1) / 2)))
    return {
        "backend": dist.get_backend(),
        "summed": summed,
        "averaged": averaged,
        "group_s": round(time.monotonic() - begin, 3),
    }


def _stay_in_a_kernel(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda._sleep(KERNEL_CYCLES)
        torch.cuda.synchronize()
        return
    end = time.monotonic() + 10
    while time.monotonic() < end:
        _multiply(device)


def _multiply(device: torch.device) -> None:
    size = 4096 if device.type == "cuda" else 256
    matrix = torch.ones(size, size, device=device)
    for _ in range(20 if device.type == "cuda" else 1):
        matrix = (matrix @ matrix) / size
    _synchronize(device)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _append(path: str, facts: dict[str, object]) -> None:
    """Append a line in one write, because ranks share the file."""
    sys.stdout.flush()
    line = json.dumps(facts) + "\n"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


if __name__ == "__main__":
    main()
