"""Records optimizer steps in unmodified programs. `benchmarks.programs` loads this file through a
`.pth` file in the interpreter that runs them.

Once a process has imported torch's optimizers, steps are recorded as JSON lines in `marks.jsonl` in
that interpreter's environment: the first 3 steps, and then one every half second. Each step is
followed by a pause, as if an accelerator were doing the work. At the first step, the names of the
imported modules are written to the file that STEP_MARKER_MODULES names.
"""

import os
import sys
import time
from typing import Any

PAUSE_S = 0.2
_HASHED = (1, 3)
_EVERY_S = 0.5
_FILE = os.path.join(sys.prefix, "marks.jsonl")


class Marker:
    """Registers an optimizer hook as soon as possible, and counts the modules that this process
    loads.
    """

    def __init__(self) -> None:
        self._is_registered = False
        self._steps = 0
        self._last = 0.0
        self._loaded: list[str] = []
        sys.addaudithook(self._audit)
        os.register_at_fork(after_in_child=self._loaded.clear)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]).endswith((".pyc", ".so")):
            self._loaded.append(str(arguments[0]))
        elif event == "import" and not self._is_registered:
            module = sys.modules.get("torch.optim.optimizer")
            register = getattr(module, "register_optimizer_step_post_hook", None)
            if register is not None:
                self._is_registered = True
                register(self._on_step)

    def _on_step(self, optimizer: Any, *_: object) -> None:
        self._steps += 1
        now = time.time()
        if self._steps in (1, 2, 3) or now - self._last >= _EVERY_S:
            self._last = now
            self._write(now, optimizer)
        time.sleep(PAUSE_S)

    def _write(self, now: float, optimizer: Any) -> None:
        import json

        mark: dict[str, object] = {
            "time": now,
            "step": self._steps,
            "worker": os.getsid(0),  # also identifies the worker in its child processes
            "rank": int(os.environ.get("RANK", "-1")),
            "attempt": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "-1")),
            "cpu_s": time.process_time(),
        }
        if self._steps == 1:
            mark["loaded"] = self._loaded
        if self._steps in _HASHED:
            mark["digests"] = _digests(optimizer)
        file = os.open(_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, json.dumps(mark).encode() + b"\n")
        os.close(file)
        if self._steps == 1 and (path := os.environ.get("STEP_MARKER_MODULES")):
            with open(f"{path}.part", "w") as part:
                json.dump(list(sys.modules), part)
            os.replace(f"{path}.part", path)


def _digests(optimizer: Any) -> dict[str, str]:
    """Return digests of the parameters and of the random generators' states."""
    import hashlib
    import random

    import torch

    def digest(data: object) -> str:
        return hashlib.sha256(repr(data).encode()).hexdigest()[:12]

    parameters = []
    for group in optimizer.param_groups:
        for each in group["params"]:
            tensor = each.detach()
            tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            if tensor.numel():
                data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
                parameters.append(hashlib.sha256(data).digest())
    found = {
        "parameters": digest(parameters),
        "torch": digest(torch.get_rng_state().tolist()),
        "random": digest(random.getstate()),
    }
    if "numpy" in sys.modules:
        found["numpy"] = digest(sys.modules["numpy"].random.get_state()[1].tolist())
    return found


MARKER = Marker()
