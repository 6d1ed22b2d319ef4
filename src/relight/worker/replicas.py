"""Defines the generation (the argument of a recoverable function), and keeps the state that
survives from one generation to the next.

Of the modules in workers, only this one imports torch, and only when state is shared. By then, the
script has already imported torch.
"""

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from relight.core.workers import surviving_state
from relight.core.workers.surviving_state import RankState

_unshared: "Generation | None" = None
"""The current generation, if there are new ranks and this process has not shared its state yet."""

_kept: "_State | None" = None
"""The state that this process had when its last group broke, kept until it is shared."""

current: "Generation | None" = None
"""The generation in which a recoverable function runs."""

_has_begun = False
"""Whether this process has received the other ranks' state, or has found out that it is lost."""


class StateLostError(RuntimeError):
    """Raised if the surviving ranks don't have the complete state. All ranks raise this error. The
    script then has to load a checkpoint in all ranks, and call `Generation.restored`.
    """


class Stateful(Protocol):
    """A model, an optimizer, a learning rate scheduler, or a similar object."""

    def state_dict(self) -> Any:
        """Return the state. It consists of tensors in dicts and lists, and of any other objects
        that pickle can copy.
        """

    def load_state_dict(self, state: Any, /) -> Any:
        """Load a state."""


class Generation:
    """A single call of a recoverable function, in one group of ranks.

    Args:
        has_survived: whether this process was in the previous group.
        on_share: called when state is about to be shared. By then, torch has been imported.
        keeps_buffers: whether every optimizer step is reported.
    """

    def __init__(
        self,
        has_survived: bool,
        on_share: Callable[[], None] = lambda: None,
        keeps_buffers: bool = False,
    ) -> None:
        global _unshared
        self.has_survived = has_survived
        """Whether this process has already run the function, so that its model has been trained."""
        self.rank = env_number("RANK", 0)
        self.world_size = env_number("WORLD_SIZE", 1)
        self.restart = env_number("TORCHELASTIC_RESTART_COUNT", 0)
        """How often ranks have been restarted after a failure."""
        _unshared = self if has_survived else None
        self._objects: tuple[Stateful, ...] = ()
        self._on_share = on_share
        self._buffers: list[_Buffer] = []
        self._keeps_buffers = keeps_buffers
        self.optimizer_steps = 0
        """The number of steps that torch's optimizers have taken since the state was shared."""
        self.is_complete = False
        """Whether this rank has the complete state of a single step, either shared or restored."""
        self._shared: tuple[int, list[int]] | None = None
        """The step that was shared, and the number of times that torch had written to each shard by
        then.
        """
        self._groups: list[Any] = []
        """Keeps the groups alive until the function has returned. A DDP wrapper that outlives
        `destroy_process_group` would otherwise destroy them while holding the GIL, for which gloo's
        threads may be waiting (torch 2.13).
        """

    def share(self, *objects: Stateful, step: int) -> int:
        """Send the state of the rank that is furthest ahead to all ranks, and return that rank's
        step.

        Call this method in all ranks, once per generation, after the group has been created and
        before anything may write to the model. For example, DistributedDataParallel copies the
        weights from rank 0, possibly a new rank. Only surviving ranks count. Without any surviving
        ranks, as in the first generation, nothing is sent. Gradients from an incomplete step are
        cleared.

        The objects that were passed to `share` in the previous generation are those whose state
        survives. This call may pass the same objects or different ones, because FSDP2, for example,
        needs a new model for each group. Each rank receives its shard (DTensor) from a survivor
        that has the shard. All shards are from the highest step for which every shard has survived.

        With NCCL, the state is instead that of the survivor that is furthest behind. An aborted
        kernel may send undefined data, and another rank may take its step with this data before it
        is notified of the failure. The rank whose kernel was aborted has not taken that step.

        Args:
            objects: the model, the optimizer and any other stateful objects, in the same order on
                all ranks. State that is not sharded must be the same on all ranks that are at the
                same step.
            step: the number of steps that the surviving state on this rank has completed. Increment
                it when the optimizer takes its step, before the next collective.

        Raises:
            StateLostError: in all ranks, unless all shards have survived for at least one step.
            TypeError: in all ranks, if a tensor is a different kind of shard, such as one from
                FSDP1.
            RuntimeError: if no rank has survived and the ranks begin at different steps, if a
                rank's state was overwritten after the failure, or if `step` does not match the
                state.
        """
        global _has_begun, _kept
        import torch
        import torch.distributed as dist

        if self._objects:
            raise RuntimeError("call generation.share() once, with all objects")
        self._groups = list(dist.distributed_c10d._world.pg_map)
        with torch.no_grad():
            mine, own, new = _offer(objects, step, self.has_survived)
            offers = [mine] * dist.get_world_size()
            dist.all_gather_object(offers, mine)
            for offer in offers:
                if offer.error is not None:
                    raise offer.error
            self._objects = objects
            ranks = [offer.state for offer in offers]
            self._on_share()
            has_nccl = "nccl" in dist.get_backend_config()
            chosen = surviving_state.latest_step(ranks, only_lowest=has_nccl)
            sources = [offer for offer in offers if offer.state.step == chosen]
            if len({offer.structure for offer in sources}) > 1 and chosen is not None:
                raise TypeError("share() needs the same model and optimizer in all ranks")
            why_lost = ""
            if chosen is None:
                if any(offer.has_begun for offer in offers):
                    why_lost = surviving_state.why_lost(ranks)
            elif len({offer.steps for offer in sources}) > 1:
                why_lost = f"at step {chosen}, optimizers have taken different numbers of steps"
            if why_lost:
                _kept, _has_begun = None, True
                raise StateLostError(
                    f"{why_lost}: load a checkpoint in all ranks and call generation.restored()"
                )
            if chosen is not None:
                _exchange(objects, own, new, ranks, chosen)
            else:
                steps = {offer.step for offer in offers}
                if len(steps) > 1:
                    raise RuntimeError(f"the ranks start at different steps: {sorted(steps)}")
                chosen = step
            self.restored()
            self._shared = chosen, _State(objects).shard_versions()
        return chosen

    def before_step(self) -> None:
        """Save the values of buffers, such as BatchNorm's running averages, for the step that the
        optimizer is about to take or has just taken.
        """
        self._keeps_buffers = True
        for buffer in self._buffers:
            buffer.keep()

    def broke(self) -> None:
        """Record that the group has failed. The state must not change until it has been shared."""
        global _kept, _unshared
        # The failed step has written to the buffers. If steps are not reported, earlier steps may
        # also have written to them.
        for buffer in self._buffers if self._keeps_buffers else ():
            buffer.put_back()
        if self.is_complete and self._objects:
            _kept = _State(self._objects)
            _kept.steps = self.optimizer_steps
            _kept.meshes.clear()  # they keep the groups alive
            if self._shared is not None and self._shared[1] != _kept.shard_versions():
                _kept.trained_since = self._shared[0]
        self._objects = ()
        _unshared = None
        _forget_meshes()

    def check_shared(self) -> None:
        """Raise an exception if there are new ranks that have not received the other ranks' state.

        Raises:
            RuntimeError: if `share` has not been called.
        """
        if _unshared is self:
            raise RuntimeError(
                "a rank was replaced, and its state differs from that of the others: call "
                "generation.share(), or load a checkpoint in all ranks and call "
                "generation.restored()"
            )

    def restored(self) -> None:
        """Record that all ranks have obtained the same state by other means, for example from a
        checkpoint.
        """
        global _has_begun, _kept, _unshared
        self.is_complete, self._shared = True, None
        self.optimizer_steps = 0
        modules: list[Any] = [each for each in self._objects if hasattr(each, "named_buffers")]
        self._buffers = [_Buffer(tensor) for module in modules for tensor in module.buffers()]
        _kept, _has_begun = None, True
        _unshared = None


def check_shared() -> None:
    """Raise an exception if there are new ranks that have not received the other ranks' state.

    Raises:
        RuntimeError: if `Generation.share` has not been called.
    """
    if _unshared is not None:
        _unshared.check_shared()


class _Buffer:
    """A model's buffer, and its value after the last step."""

    def __init__(self, tensor: Any) -> None:
        self._tensor, self._kept = tensor, tensor.detach().clone()
        self._version = tensor._version

    def keep(self) -> None:
        """Copy the buffer if it has changed since the last copy."""
        if self._tensor._version != self._version:
            self._kept.copy_(self._tensor.detach())
            self._version = self._tensor._version

    def put_back(self) -> None:
        """Restore the buffer's value from the copy."""
        if self._tensor._version != self._version:
            self._tensor.detach().copy_(self._kept)
            self._version = self._tensor._version


class _Offer(NamedTuple):
    """A rank's report about its state to the other ranks.

    Args:
        state: the shard that the rank has, and the shard that it needs.
        structure: a value that is the same in all ranks, unless they have different models.
        step: the rank's step, even if it has not kept any state.
        steps: the number of steps that torch's optimizers have taken since the state was last
            shared.
        has_begun: whether the rank has received the other ranks' state, or has found out that this
            state is lost.
        error: the reason why the rank can't share its state.
    """

    state: RankState
    structure: str
    step: int
    steps: int
    has_begun: bool
    error: Exception | None


def _offer(
    objects: Sequence[Stateful], step: int, has_survived: bool
) -> "tuple[_Offer, _State | None, _State]":
    """Return what to report to the other ranks, the state that this rank has kept, and the current
    state of the objects.
    """
    error: Exception | None = None
    try:
        new = _State(objects)
    except TypeError as unable:
        new, error = _State(()), unable
    # If objects were not shared before, the objects themselves have survived. Only a sharded model
    # is new.
    own = _kept or (new if has_survived and not new.meshes else None)
    if own is not None and [tensor._version for tensor in own.tensors] != own.versions:
        error = RuntimeError(
            "the state has changed since the failure: call generation.share() before "
            "DistributedDataParallel, which copies the weights of rank 0"
        )
    elif own is not None and own.trained_since is not None and step <= own.trained_since:
        error = RuntimeError(
            f"the model was trained after step {own.trained_since}, but share() got step={step}; "
            "keep the step outside of the function"
        )
    state = RankState(step if own else None, own.shard if own else None, new.shard)
    structure, steps = (own.structure, own.steps) if own else ("", 0)
    return _Offer(state, structure, step, steps, _has_begun, error), own, new


class _Layout(NamedTuple):
    """Describes how a tensor is split into shards. It consists of the dimension names of the
    tensor's mesh, its placements, and the sizes of the mesh dimensions that split it. The number of
    replicas may change.
    """

    names: tuple[str, ...] | None
    placements: tuple[str, ...]
    sizes: tuple[int, ...]


class _Slot(NamedTuple):
    """A placeholder for a tensor in a state, with the tensor's number, shape, element type and
    device. If the tensor is a shard, `layout` and the fields after it describe the whole tensor.
    """

    number: int
    shape: tuple[int, ...]
    dtype: Any
    device: str
    layout: _Layout | None = None
    whole_shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()


class _State:
    """The state of this rank's objects, including their tensors or shards."""

    def __init__(self, objects: Sequence[Stateful]) -> None:
        self.tensors: list[Any] = []
        self.meshes: dict[_Layout, tuple[Any, Any]] = {}
        """The mesh and the placements for each layout."""
        self._coordinates: dict[_Layout, tuple[int, ...]] = {}
        self.parts = [self._take_out(each.state_dict()) for each in objects]
        """The state of each object, with its tensors replaced by slots."""
        self.versions = [tensor._version for tensor in self.tensors]
        """The number of times that torch has written to each tensor."""
        self.steps = 0
        """The number of steps that torch's optimizers had taken since the state was shared."""
        self.trained_since: int | None = None
        """A step after which this state is known to have been trained further."""

    @property
    def shard(self) -> frozenset[Any]:
        """The identity of the shards. Ranks that have replicas of the same shards have the same
        identity.
        """
        return frozenset(self._coordinates.items())

    @property
    def structure(self) -> str:
        """A value that is the same in all ranks, unless they have different models."""
        slots = [
            (path, slot.whole_shape if slot.layout else slot.shape, slot.dtype, slot.layout)
            for path, slot in _slots(self.parts)
        ]
        return hashlib.sha256(repr(slots).encode()).hexdigest()

    def shard_versions(self) -> list[int]:
        """Return the number of times that torch has written to each shard."""
        return [self.versions[slot.number] for _, slot in _slots(self.parts) if slot.layout]

    def _take_out(self, state: Any) -> Any:
        """Replace the tensors in a state with slots, add them to `tensors`, and return the new
        state.
        """
        import torch

        if isinstance(state, torch.Tensor):
            return self._slot(state)
        if isinstance(state, dict):
            return {key: self._take_out(value) for key, value in state.items()}
        if type(state) in (list, tuple):
            return type(state)(self._take_out(value) for value in state)
        return state

    def _slot(self, tensor: Any) -> _Slot:
        if hasattr(tensor, "local_shards"):
            raise TypeError(
                "share() does not send shards of FSDP1 (ShardedTensor): load a checkpoint in all "
                "ranks and call generation.restored()"
            )
        number = len(self.tensors)
        if not hasattr(tensor, "placements"):
            self.tensors.append(tensor.detach())
            return _Slot(number, tuple(tensor.shape), tensor.dtype, tensor.device.type)
        mesh, placements = tensor.device_mesh, tuple(tensor.placements)
        if any(each.is_partial() for each in placements):
            raise TypeError("share() does not send partial sums (DTensor)")
        split = [n for n, each in enumerate(placements) if not each.is_replicate()]
        sizes = tuple(mesh.size(n) for n in split)
        layout = _Layout(mesh.mesh_dim_names, tuple(map(repr, placements)), sizes)
        if self.meshes.setdefault(layout, (mesh, placements))[0] != mesh:
            raise TypeError(f"share() can't distinguish meshes that have the same names: {layout}")
        place = mesh.get_coordinate() or ()
        self._coordinates[layout] = tuple(place[n] for n in split) if place else ()
        local = tensor.to_local().detach()
        self.tensors.append(local)
        return _Slot(
            number, tuple(local.shape), local.dtype, local.device.type,
            layout, tuple(tensor.shape), tensor.stride(),
        )  # fmt: skip


def _exchange(
    objects: Sequence[Stateful],
    own: _State | None,
    new: _State,
    ranks: Sequence[RankState],
    step: int,
) -> None:
    """Load the state from a step. If this rank has not kept that state, other ranks send it.

    Args:
        objects: the objects to load the state into.
        own: the state that this rank has kept.
        new: the current state of the objects, whose meshes belong to this group.
        ranks: each rank's state.
        step: the number of the step.
    """
    import torch.distributed as dist

    rank = dist.get_rank()
    kept: tuple[list[Any], list[Any]] = (own.parts, own.tensors) if own else ([], [])
    loaded = kept
    for sender, receiver in surviving_state.transfers(ranks, step):
        if receiver == rank:
            loaded = _receive(sender)
        elif sender == rank:
            is_kept = ranks[rank].step == step and ranks[rank].held == ranks[receiver].needed
            _send(*(kept if is_kept else loaded), receiver)
    parts, tensors = loaded
    for each, part in zip(objects, parts, strict=True):
        each.load_state_dict(_put_back(part, tensors, new.meshes))
        clear = getattr(each, "zero_grad", None)
        if clear is not None:
            clear(set_to_none=True)


def _send(parts: list[Any], tensors: list[Any], rank: int) -> None:
    import torch.distributed as dist

    dist.send_object_list([parts], rank)
    for tensor in tensors:
        if tensor.numel():
            dist.send(tensor.to(_sending_device(tensor.device.type)).contiguous(), rank)


def _receive(rank: int) -> tuple[list[Any], list[Any]]:
    import torch
    import torch.distributed as dist

    received: list[Any] = [None]
    dist.recv_object_list(received, rank)
    tensors = []
    for _, slot in _slots(received[0]):
        device = _sending_device(slot.device)
        tensor = torch.empty(slot.shape, dtype=slot.dtype, device=device)
        if tensor.numel():
            dist.recv(tensor, rank)
        tensors.append(tensor.to(_device(slot.device)))
    return received[0], tensors


def _sending_device(kind: str) -> Any:
    """Return the device that the group sends tensors from. gloo can only send tensors from the
    CPU, whereas NCCL can't send them from the CPU.

    Args:
        kind: the type of device that the tensors are on.
    """
    import torch.distributed as dist

    backends = dict(each.split(":") for each in dist.get_backend_config().split(","))
    if kind not in backends or (backends[kind] == "gloo" and kind != "cpu"):
        kind = "cpu" if "cpu" in backends else next(iter(backends))
    return _device(kind)


def _device(kind: str) -> Any:
    """Return the device of the given type that this rank uses."""
    import torch

    if kind == "cpu":
        return torch.device("cpu")
    return torch.device(kind, torch.get_device_module(kind).current_device())


def _put_back(state: Any, tensors: list[Any], meshes: dict[_Layout, tuple[Any, Any]]) -> Any:
    if isinstance(state, _Slot):
        tensor = tensors[state.number]
        if state.layout is None:
            return tensor
        from torch.distributed.tensor import DTensor

        mesh, placements = meshes[state.layout]
        return DTensor.from_local(
            tensor, mesh, placements, run_check=False, shape=state.whole_shape, stride=state.stride
        )
    if isinstance(state, dict):
        return {key: _put_back(value, tensors, meshes) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(_put_back(value, tensors, meshes) for value in state)
    return state


def _slots(state: Any, path: str = "") -> list[tuple[str, _Slot]]:
    """Return the slots in a state, each with its name."""
    if isinstance(state, _Slot):
        return [(path, state)]
    if isinstance(state, dict):
        values = list(state.items())
    elif type(state) in (list, tuple):
        values = list(enumerate(state))
    else:
        return []
    return [slot for key, value in values for slot in _slots(value, f"{path}.{key}")]


def _forget_meshes() -> None:
    """Clear torch's cache of sharded operations. A mesh in the next group may be equal to a mesh in
    this group. It would then get cached results that belong to the old group and the old rank
    (torch 2.13).
    """
    tensor = sys.modules.get("torch.distributed.tensor")  # DDP also imports this module
    if tensor is None:
        return
    try:
        tensor.DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()
        sys.modules["torch"]._C._clear_DTensor_sharding_propagator_cache()
    except AttributeError:  # a different version of torch
        if _kept is not None and _kept.shard:
            raise


def env_number(name: str, default: int) -> int:
    """Return a number from the environment."""
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else default
