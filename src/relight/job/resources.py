"""Defines named resources: machine sizes under their TorchX names, and resources that the user
defines.

The memory of `aws_*` resources is 983 MiB for each advertised GiB, because only that much is
available to a container.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any

from relight.base import plugins
from relight.base.env import Environment, read
from relight.base.errors import UsageError
from relight.base.text import closest_match
from relight.job.app import NAME_TAG, Resource, unspecified

INSTANCE_TYPE = "node.kubernetes.io/instance-type"
GROUPS = ("relight.named_resources", "torchx.named_resources")
VARIABLES = ("RELIGHT_NAMED_RESOURCES", "TORCHX_CUSTOM_NAMED_RESOURCES")
EFA = "vpc.amazonaws.com/efa"
NEURON = "aws.amazon.com/neurondevice"

# Logical cores, GPUs, memory in MiB, other devices.
_TABLE: Mapping[str, tuple[Any, ...]] = {
    "gpu.small": (8, 1, 32768),
    "gpu.medium": (16, 2, 65536),
    "gpu.large": (32, 4, 131072),
    "gpu.xlarge": (64, 8, 262144),
    "cpu.nano": (1, 0, 512),
    "cpu.micro": (1, 0, 1024),
    "cpu.small": (1, 0, 2048),
    "cpu.medium": (2, 0, 4096),
    "cpu.large": (2, 0, 8192),
    "cpu.xlarge": (8, 0, 32768),
    "aws_t3.medium": (2, 0, 3932),
    "aws_m5.large": (2, 0, 7864),
    "aws_m5.xlarge": (4, 0, 15728),
    "aws_m5.2xlarge": (8, 0, 31456),
    "aws_m5.4xlarge": (16, 0, 62912),
    "aws_m5.8xlarge": (32, 0, 125824),
    "aws_m5.12xlarge": (48, 0, 188736),
    "aws_m5.16xlarge": (64, 0, 251648),
    "aws_m5.24xlarge": (96, 0, 377472),
    "aws_m5.metal": (96, 0, 377472),
    "aws_m5d.large": (2, 0, 7864),
    "aws_m5d.xlarge": (4, 0, 15728),
    "aws_m5d.2xlarge": (8, 0, 31456),
    "aws_m5d.4xlarge": (16, 0, 62912),
    "aws_m5d.8xlarge": (32, 0, 125824),
    "aws_m5d.12xlarge": (48, 0, 188736),
    "aws_m5d.16xlarge": (64, 0, 251648),
    "aws_m5d.24xlarge": (96, 0, 377472),
    "aws_m5d.metal": (96, 0, 377472),
    "aws_c5.18xlarge": (72, 0, 139586),
    "aws_p3.2xlarge": (8, 1, 59963),
    "aws_p3.8xlarge": (32, 4, 239852),
    "aws_p3.16xlarge": (64, 8, 479704),
    "aws_p3dn.24xlarge": (96, 8, 754944, {EFA: 1}),
    "aws_p4d.24xlarge": (96, 8, 1132416, {EFA: 4}),
    "aws_p4de.24xlarge": (96, 8, 1132416, {EFA: 4}),
    "aws_p5.48xlarge": (192, 8, 2013184, {EFA: 32}),
    "aws_p5e.48xlarge": (192, 8, 2013184, {EFA: 32}),
    "aws_p5en.48xlarge": (192, 8, 2013184, {EFA: 16}),
    "aws_p6-b200.48xlarge": (192, 8, 2013184, {EFA: 8}),
    "aws_p6-b300.48xlarge": (192, 8, 4026368, {EFA: 16}),
    "aws_p6e-gb200.36xlarge": (144, 4, 943680, {EFA: 16}),
    "aws_g4dn.xlarge": (4, 1, 15728),
    "aws_g4dn.2xlarge": (8, 1, 31456),
    "aws_g4dn.4xlarge": (16, 1, 62912),
    "aws_g4dn.8xlarge": (32, 1, 125824, {EFA: 1}),
    "aws_g4dn.16xlarge": (64, 1, 251648, {EFA: 1}),
    "aws_g4dn.12xlarge": (48, 4, 188736, {EFA: 1}),
    "aws_g4dn.metal": (96, 8, 377472, {EFA: 1}),
    "aws_g5.xlarge": (4, 1, 15728),
    "aws_g5.2xlarge": (8, 1, 31456),
    "aws_g5.4xlarge": (16, 1, 62912),
    "aws_g5.8xlarge": (32, 1, 125824, {EFA: 1}),
    "aws_g5.16xlarge": (64, 1, 251648, {EFA: 1}),
    "aws_g5.12xlarge": (48, 4, 188736, {EFA: 1}),
    "aws_g5.24xlarge": (96, 4, 377472, {EFA: 1}),
    "aws_g5.48xlarge": (192, 8, 754944, {EFA: 1}),
    "aws_g6e.xlarge": (4, 1, 31456),
    "aws_g6e.2xlarge": (8, 1, 62912),
    "aws_g6e.4xlarge": (16, 1, 125824),
    "aws_g6e.8xlarge": (32, 1, 251648),
    "aws_g6e.16xlarge": (64, 1, 503296),
    "aws_g6e.12xlarge": (48, 4, 377472),
    "aws_g6e.24xlarge": (96, 4, 754944, {EFA: 2}),
    "aws_g6e.48xlarge": (192, 8, 1509888, {EFA: 4}),
    "aws_trn1.2xlarge": (8, 0, 31456, {NEURON: 1}),
    "aws_trn1.32xlarge": (128, 0, 503296, {EFA: 8, NEURON: 16}),
    "aws_inf2.xlarge": (4, 0, 15728, {NEURON: 1}),
    "aws_inf2.8xlarge": (32, 0, 125824, {NEURON: 1}),
    "aws_inf2.24xlarge": (96, 0, 377472, {NEURON: 6}),
    "aws_inf2.48xlarge": (192, 0, 754944, {NEURON: 12}),
}  # fmt: skip
_NOT_SAID = ("NULL", "MISSING")

Own = Mapping[str, Callable[[], Resource] | Resource]


class NamedResources(Mapping[str, Resource]):
    """The built-in named resources and those that the user has defined.

    Args:
        own: the user's own resources, by name. If None, they are loaded with `own(environment)`.
    """

    def __init__(self, own: Own | None = None) -> None:
        self._own = own

    def __getitem__(self, name: str) -> Resource:
        """Look up a resource by name.

        Raises:
            UsageError: if no resource has this name, ignoring case.
        """
        if name in _TABLE and self._own is None and not _has_own(read()):
            return _from_table(name)
        known = list(self)
        same = [name] if name in known else [x for x in known if x.lower() == name.lower()]
        if len(same) > 1:
            raise UsageError(
                f"the named resource {name} is ambiguous: {', '.join(same)}",
                hint="match the case of the name in the list",
            )
        if not same:
            raise _unknown(name, known)
        found = same[0]
        maker = self._all().get(found)
        if maker is None:
            return _from_table(found)
        made = maker() if callable(maker) else maker
        tags = {NAME_TAG: found, **getattr(made, "tags", {})}
        return Resource(
            made.cpu, made.gpu, made.memMB, dict(made.capabilities), dict(made.devices), tags
        )

    def __contains__(self, name: object) -> bool:
        return name in list(self)

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys([*_TABLE, *self._all(), *_NOT_SAID])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def _all(self) -> Own:
        if self._own is None:
            self._own = own(read())
        return self._own


named_resources = NamedResources()


def resource(
    cpu: int | None = None,
    gpu: int | None = None,
    memMB: int | None = None,  # noqa: N803  # the flag's name
    h: str | None = None,
) -> Resource:
    """Look up the resource named `h` or, if `h` is empty, create a resource from the numbers.

    None means TorchX's default: 2 cores, no GPU and 1024 MiB. An explicit 0 is kept.
    """
    if h:
        return named_resources[h]
    return Resource(
        cpu=2 if cpu is None else cpu,
        gpu=0 if gpu is None else gpu,
        memMB=1024 if memMB is None else memMB,
    )


def own(env: Environment) -> Own:
    """Return the user's named resources. The resources come from the entry point groups
    `relight.named_resources` and `torchx.named_resources`, and then from the module named by
    RELIGHT_NAMED_RESOURCES (or TorchX's variable), whose NAMED_RESOURCES maps names to resources or
    to functions that return one.

    Raises:
        UsageError: if that module can't be imported or doesn't define such a mapping.
    """
    found: dict[str, Callable[[], Resource] | Resource] = {
        name: _made_by(entry)
        for name, entry in plugins.find(*GROUPS).items()
        if name not in _TABLE  # a package can't redefine a built-in name
    }
    for variable in VARIABLES:
        module = env.get(variable)
        if not module:
            continue
        try:
            found |= import_module(module).NAMED_RESOURCES
        except (ImportError, AttributeError) as error:
            raise UsageError(
                f"{variable}={module}: {error}",
                hint="it must name a module that defines the mapping NAMED_RESOURCES",
            ) from None
    return found


def _made_by(entry: Any) -> Callable[[], Resource]:
    """Return a function that loads a package only when its resource is used, because most resources
    are never used.
    """

    def load() -> Resource:
        found = entry.load()
        made: Resource = found() if callable(found) else found
        return made

    return partial(plugins.loaded, f"the named resource {entry.name} ({entry.value})", load)


def _has_own(env: Environment) -> bool:
    return any(env.get(variable) for variable in VARIABLES)


def _from_table(name: str) -> Resource:
    if name in _NOT_SAID:
        return unspecified()
    cpu, gpu, memory, *devices = _TABLE[name]
    kind = {INSTANCE_TYPE: name.removeprefix("aws_")} if name.startswith("aws_") else {}
    return Resource(cpu, gpu, memory, kind, dict(devices[0]) if devices else {}, {NAME_TAG: name})


def _unknown(name: str, known: list[str]) -> UsageError:
    meant = closest_match(name, known) or closest_match("aws_" + name, known)
    sizes = [each for each in known if each not in _NOT_SAID]
    hint = f"did you mean {meant}?" if meant else f"known: {', '.join(sizes)}"
    return UsageError(f"unknown named resource: {name}", hint=hint)
