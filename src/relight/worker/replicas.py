"""Arguments of a recoverable function: the generation that it runs in, and its replicas' state.

torch is imported when the state is shared, and only here: the script has imported it by then.
"""

import os
from typing import Any, NamedTuple, Protocol

_unshared: "Generation | None" = None
"""The generation of this process in which it has not shared its state, although ranks are new."""


_versions: "list[int] | None" = None
"""How often torch has written to each shared tensor when the last group broke; None for none."""


class Stateful(Protocol):
    """A model, an optimizer, a learning rate schedule, and the like."""

    def state_dict(self) -> Any:
        """Return its state: tensors in dicts and lists, and what pickle can copy."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Take a state."""


class Generation:
    """One run of a recoverable function, in one group of ranks.

    Args:
        has_survived: whether this process was in the group before.
    """

    def __init__(self, has_survived: bool) -> None:
        global _unshared
        self.has_survived = has_survived
        """Whether this process has run the function before: its model is trained."""
        self.rank = _number("RANK", 0)
        self.world_size = _number("WORLD_SIZE", 1)
        self.restart = _number("TORCHELASTIC_RESTART_COUNT", 0)
        """How often ranks were started again after a failure."""
        _unshared = self if has_survived else None
        self._objects: tuple[Stateful, ...] = ()
        self._buffers: list[_Buffer] = []
        self._groups: list[Any] = []
        """Keeps the groups until the function has returned. A DDP wrapper that outlives
        `destroy_process_group` would end them with the GIL, for which gloo's threads may wait
        (torch 2.13).
        """

    def share(self, *objects: Stateful, step: int) -> int:
        """Give all ranks the state of the rank that is furthest, and return its step.

        Call it in all ranks, once the group exists, and before anything may write to the model:
        DistributedDataParallel copies the weights of rank 0, which may be new. Only surviving
        ranks count; without any, as in the first generation, nothing is sent. Gradients of a step
        that was not completed are cleared.

        With NCCL it is the state of the survivor that is furthest behind: an aborted kernel may
        send undefined data, with which another rank takes the step before it hears of the failure.
        The rank whose kernel was aborted has not taken it.

        Args:
            objects: the model, the optimizer and any other stateful objects, in the same order on
                all ranks. They must be replicas: equal on all ranks that are at the same step.
            step: how many steps the state of this rank has. Count a step together with the
                optimizer's, before the next collective.

        Raises:
            TypeError: if a tensor is one shard of several ranks: load a checkpoint in all ranks,
                and call `restored`.
            RuntimeError: if no rank has survived, and they begin at different steps; or the state
                of this rank was overwritten since the failure.
        """
        import torch.distributed as dist

        self._objects, self._groups = objects, list(dist.distributed_c10d._world.pg_map)
        told: list[tuple[bool, int]] = [(False, 0)] * dist.get_world_size()
        dist.all_gather_object(told, (self.has_survived, step))
        survivors = [(of_rank, -rank) for rank, (stays, of_rank) in enumerate(told) if stays]
        if not survivors:
            steps = {of_rank for _, of_rank in told}
            if len(steps) > 1:
                raise RuntimeError(f"ranks begin at different steps: {sorted(steps)}")
            self._keep_buffers()
            return step
        writes = _count_writes(objects)  # raises in all ranks if they are shards
        if self.has_survived and _versions not in (None, writes):
            raise RuntimeError(
                "the state has changed since the failure: call generation.share() before "
                "DistributedDataParallel, which copies the weights of rank 0"
            )
        chosen, rank = (min if "nccl" in dist.get_backend_config() else max)(survivors)
        _broadcast(objects, -rank)
        self.restored()
        self._keep_buffers()
        return chosen

    def before_step(self) -> None:
        """Keep the buffers, such as BatchNorm's averages, of the step that the optimizer takes."""
        for buffer in self._buffers:
            buffer.keep()

    def _keep_buffers(self) -> None:
        modules = [each for each in self._objects if hasattr(each, "buffers")]
        self._buffers = [_Buffer(tensor) for module in modules for tensor in module.buffers()]

    def broke(self) -> None:
        """Record that the group failed; the state must not change until it is shared."""
        global _versions
        for buffer in self._buffers:  # the broken step has written to them
            buffer.put_back()
        try:
            _versions = _count_writes(self._objects) if self._objects else None
        except TypeError:
            _versions = None  # they are shards, as `share` will say
        self.restored()

    def check_shared(self) -> None:
        """Raise if ranks are new and have not got the state of the others.

        Raises:
            RuntimeError: if `share` was not called.
        """
        if _unshared is self:
            raise RuntimeError(
                "a rank was replaced, and its state differs from that of the others: call "
                "generation.share(), or load a checkpoint in all ranks and call "
                "generation.restored()"
            )

    def restored(self) -> None:
        """Record that all ranks have the same state by other means, as from a checkpoint."""
        global _unshared
        _unshared = None


def check_shared() -> None:
    """Raise if ranks are new and have not got the state of the others.

    Raises:
        RuntimeError: if `Generation.share` was not called.
    """
    if _unshared is not None:
        _unshared.check_shared()


class _Buffer:
    """A buffer of a model, and its value after the last step."""

    def __init__(self, tensor: Any) -> None:
        self._tensor, self._kept = tensor, tensor.detach().clone()
        self._version = tensor._version

    def keep(self) -> None:
        """Copy the buffer, unless nothing has written to it since."""
        if self._tensor._version != self._version:
            self._kept.copy_(self._tensor.detach())
            self._version = self._tensor._version

    def put_back(self) -> None:
        """Give the buffer its kept value."""
        if self._tensor._version != self._version:
            self._tensor.detach().copy_(self._kept)
            self._version = self._tensor._version


class _Slot(NamedTuple):
    """Where a tensor is in a state: its number, shape, type of elements and device."""

    number: int
    shape: tuple[int, ...]
    dtype: Any
    device: str


def _count_writes(objects: tuple[Stateful, ...]) -> list[int]:
    tensors: list[Any] = []
    for each in objects:
        _take_out(each.state_dict(), tensors)
    return [tensor._version for tensor in tensors]


def _broadcast(objects: tuple[Stateful, ...], source: int) -> None:
    import torch
    import torch.distributed as dist

    is_source = dist.get_rank() == source
    tensors: list[Any] = []
    described: list[Any] = [None]
    devices = dist.get_backend_config()  # such as cpu:gloo,cuda:nccl
    with torch.no_grad():
        if is_source:
            described = [[_take_out(each.state_dict(), tensors) for each in objects]]
            tensors = [tensor.contiguous() for tensor in tensors]
        dist.broadcast_object_list(described, src=source)
        slots = _slots(described[0])
        if not is_source:
            tensors = [
                torch.empty(slot.shape, dtype=slot.dtype, device=_device(slot.device))
                for slot in slots
            ]
        for tensor in tensors:
            # A group of NCCL alone can't send tensors of the CPU, such as Adam's number of steps.
            is_sent = f"{tensor.device.type}:" in devices
            sent = tensor if is_sent else tensor.to(_device(devices.partition(":")[0]))
            dist.broadcast(sent, src=source)
            if sent is not tensor:
                tensor.copy_(sent)
        for each, state in zip(objects, described[0], strict=True):
            if not is_source:
                each.load_state_dict(_put_back(state, tensors))
            clear = getattr(each, "zero_grad", None)
            if clear is not None:
                clear(set_to_none=True)


def _device(kind: str) -> Any:
    """Return this rank's device of a kind."""
    import torch

    if kind == "cpu":
        return torch.device("cpu")
    return torch.device(kind, torch.get_device_module(kind).current_device())


def _take_out(state: Any, tensors: list[Any]) -> Any:
    """Return a state with slots instead of its tensors, which are added to `tensors`."""
    import torch

    if isinstance(state, torch.Tensor):
        if hasattr(state, "placements") or hasattr(state, "local_shards"):
            raise TypeError(
                "share() sends replicas, not shards (DTensor): load a checkpoint in all ranks and "
                "call generation.restored()"
            )
        tensor = state.detach()
        tensors.append(tensor)
        return _Slot(len(tensors) - 1, tuple(tensor.shape), tensor.dtype, tensor.device.type)
    if isinstance(state, dict):
        return {key: _take_out(value, tensors) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(_take_out(value, tensors) for value in state)
    return state


def _put_back(state: Any, tensors: list[Any]) -> Any:
    if isinstance(state, _Slot):
        return tensors[state.number]
    if isinstance(state, dict):
        return {key: _put_back(value, tensors) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(_put_back(value, tensors) for value in state)
    return state


def _slots(state: Any) -> list[_Slot]:
    if isinstance(state, _Slot):
        return [state]
    values = state.values() if isinstance(state, dict) else state
    if not isinstance(state, dict | list | tuple):
        return []
    return [slot for value in values for slot in _slots(value)]


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else default
