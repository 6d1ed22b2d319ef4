"""The checks' worker: `worker.py MODE --device cuda [--backend nccl] --facts FILE --stop FILE`.

It appends one line of JSON to FILE after its first operation on the device. Modes:

once      exits after that
hold      also allocates `--mib` of device memory, and keeps it until the stop file exists; a
          worker of the first generation raises RuntimeError if `STOP.raise` exists
busy      multiplies matrices until the stop file exists
kernel    runs a single kernel for about 10 s
oom       rank 1 allocates more memory than there is; the others wait in a collective
assert    rank 1 fails a device-side assertion; the others wait in a collective
fault     rank 1 writes to an unmapped address; the others wait in a collective
wait      rank 1 never enters a collective that the others are in
survivors trains in a recoverable function; appends facts after a few steps, waits for the stop
          file, and appends facts again at the end
"""

import argparse
import ctypes
import gc
import hashlib
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


# A process forked from one that has imported torch has its libraries loaded already.
IS_WARM = "libtorch" in _maps()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from relight.worker import progress, recoverable  # noqa: E402
from relight.worker.replicas import Generation  # noqa: E402

IMPORTED = time.monotonic()
STEPS = 600
"""How many steps the mode `survivors` trains."""
FIRST_STEPS = 20
KERNEL_CYCLES = 20_000_000_000
"""About 10 s at 2 GHz."""
MIB = 1 << 20
FAULT = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry fault()
{
    .reg .u64 %address;
    .reg .u32 %value;
    mov.u64 %address, 4096;
    mov.u32 %value, 1;
    st.global.u32 [%address], %value;
    ret;
}
"""
"""A PTX kernel that writes to an unmapped address."""


def main() -> None:
    """Run one mode."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mode")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--backend", default="")
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--wrap-at", type=int, default=-1, help="step that begins with a new DDP")
    parser.add_argument("--facts", required=True)
    parser.add_argument("--stop", required=True)
    options = parser.parse_args()
    rank = int(os.environ["RANK"])
    if options.backend == "nccl" and os.environ["WORLD_SIZE"] != "1":
        # NCCL refuses two ranks on one GPU of one host. Pretending to be two hosts makes it use
        # sockets.
        os.environ.update(NCCL_HOSTID=f"rank{rank}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
    facts = _first_use(options.device)
    device = torch.device(facts["device"])
    if options.mode == "survivors":
        training = Training(device)
        _train(training, options, facts)
        _append(options.facts, {**facts, "restart": -1, "hash": training.digest()})
    elif options.backend:
        facts.update(_meet(options.backend, device))
    held = None
    if options.mode == "hold":
        held = torch.ones(options.mib * MIB, dtype=torch.uint8, device=device)
        _synchronize(device)
    if options.mode != "survivors":
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
            print(held)  # the preceding kernel's failed assertion surfaces here
        dist.all_reduce(torch.ones(1))
    if options.mode == "fault":
        if rank == 1:
            _write_to_nowhere()
        dist.all_reduce(torch.ones(1))
    if options.mode == "wait":
        for step in range(10):  # report progress; a wait in NCCL keeps a CPU busy
            progress(step)
            time.sleep(0.2)
        if rank == 1:
            time.sleep(600)  # never arrives
        ones = torch.ones(1024, device=device)
        dist.all_reduce(ones)
        print(ones.sum().item())  # waits for rank 1
    while options.mode in ("hold", "busy") and not os.path.exists(options.stop):
        if facts["restart"] == 0 and os.path.exists(f"{options.stop}.raise"):
            raise RuntimeError("asked to fail")
        if options.mode == "busy":
            _multiply(device)
        else:
            time.sleep(0.02)
    if dist.is_initialized():
        gc.collect()  # DistributedDataParallel holds the process group in reference cycles
        dist.destroy_process_group()


def _first_use(kind: str) -> dict[str, object]:
    """Return the state before the device was used, and the result of its first operation."""
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
    product = (left @ left.T).cpu()  # synchronizes with the device
    facts["first_op"] = time.monotonic()
    facts["context_s"] = round(time.monotonic() - begin, 3)
    expected = torch.arange(12.0).reshape(3, 4)
    facts["right"] = bool(torch.equal(product, expected @ expected.T))
    facts["device"] = str(device)
    return facts


def _meet(backend: str, device: torch.device) -> dict[str, object]:
    """Join a process group. Return whether a sum over all ranks and the gradients of
    DistributedDataParallel are correct.
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


class Training:
    """The state that survives the failure of another rank."""

    def __init__(self, device: torch.device) -> None:
        torch.manual_seed(7)
        self.device = device
        self.model = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.BatchNorm1d(256), torch.nn.Tanh(),
            torch.nn.Linear(256, 1),
        ).to(device)  # fmt: skip
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.done = 0

    def digest(self) -> str:
        """Return a hash of the weights."""
        digest = hashlib.sha256()
        for tensor in self.model.parameters():
            digest.update(tensor.detach().cpu().numpy().tobytes())
        return digest.hexdigest()[:16]


@recoverable
def _train(
    generation: Generation,
    training: Training,
    options: argparse.Namespace,
    facts: dict[str, object],
) -> None:
    """Train, and append `facts` after `FIRST_STEPS` in each generation. In the first generation,
    wait there for the stop file.
    """
    dist.init_process_group(options.backend)
    begin = training.done = generation.share(training.model, training.optimizer, step=training.done)
    model = DistributedDataParallel(training.model)
    facts.update(begin=begin)
    while training.done < STEPS:
        if training.done == options.wrap_at:
            model = DistributedDataParallel(training.model)
        seed = 1000 * training.done + generation.rank
        inputs = torch.randn(64, 64, generator=torch.Generator().manual_seed(seed))
        inputs = inputs.to(training.device)
        training.optimizer.zero_grad()
        (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean().backward()
        training.optimizer.step()
        training.done += 1
        progress(training.done)
        if training.done == begin + 1:
            _synchronize(training.device)
            facts.update(
                first_op=time.monotonic(), restart=generation.restart, rank=generation.rank
            )
        if training.done == begin + FIRST_STEPS:
            _append(options.facts, facts)
            while not os.path.exists(options.stop):
                time.sleep(0.002)
    dist.barrier()


def _write_to_nowhere() -> None:
    """Run FAULT through the CUDA driver, in torch's context."""
    driver = ctypes.CDLL("libcuda.so.1")
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    for code in (
        driver.cuModuleLoadData(ctypes.byref(module), FAULT),
        driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"fault"),
        driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None),
    ):
        if code:
            raise OSError(f"the kernel could not be started: CUDA error {code}")
    torch.cuda.synchronize()  # out of bounds


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
    """Append a line with a single write, because ranks share the file."""
    sys.stdout.flush()
    line = json.dumps(facts) + "\n"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


if __name__ == "__main__":
    main()
