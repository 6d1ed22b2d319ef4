"""A drop-in replacement for torch.distributed.launcher: `elastic_launch(LaunchConfig(…),
entrypoint)(*args)`.

    from relight.torch_launcher import LaunchConfig, elastic_launch
    results = elastic_launch(LaunchConfig(1, 1, 4, rdzv_backend="c10d"), train)(0.1)

Arguments, results and errors match torch 2.13 (`torch/distributed/launcher/api.py`,
`torch/distributed/elastic/multiprocessing/errors`); docs/embedding.md lists the differences.
torch's own LaunchConfig also works, because only the field names matter. This package doesn't
import torch. If the caller has imported torch, errors are also instances of torch's classes, so
that `except` clauses catch them.

    python -m relight.torch_launcher accelerate launch … train.py

runs a program that itself calls torch's launcher, but with this launcher instead (`replacement`).
The package `shim` does the same for whole programs and environments (`relight exec`,
`relight shim`).
"""

from relight.torch_launcher.launch_config import DefaultLogsSpecs as DefaultLogsSpecs
from relight.torch_launcher.launch_config import LaunchConfig as LaunchConfig
from relight.torch_launcher.launch_errors import ChildFailedError as ChildFailedError
from relight.torch_launcher.launch_errors import ProcessFailure as ProcessFailure
from relight.torch_launcher.launch_errors import SignalException as SignalException
from relight.torch_launcher.launcher import elastic_launch as elastic_launch
from relight.torch_launcher.launcher import launch_agent as launch_agent
from relight.torch_launcher.replacement import replace_torchs as replace_torchs
