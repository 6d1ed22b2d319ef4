"""Components for training with multiple processes and nodes: one role with one replica per node.

Each replica runs `relight run` with torchrun's flags. Multiple nodes rendezvous on replica 0's
host; the scheduler puts its name into the variable named by `rank0_env`.
"""

import re
import shlex

from relight.base.env import read
from relight.base.errors import UsageError
from relight.job import macros
from relight.job.app import AppDef, Role
from relight.job.components import IMAGE, TORCHRUN, launcher
from relight.job.components.nodes import parse_job_size, parse_name, parse_size, role_name
from relight.job.mounts import parse_mounts
from relight.job.resources import resource

_DEBUG = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "NCCL_DESYNC_DEBUG": "1",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCH_SHOW_CPP_STACKTRACES": "1",
}
# Shell syntax for the variable's value, which defaults to localhost if the scheduler does not set
# it.
_RANK0_HOST = f"$${{{macros.rank0_env}:=localhost}}"


def torchrun(
    *script_args: str,
    script: str | None = None,
    m: str | None = None,
    image: str = IMAGE,
    name: str = "/",
    h: str | None = None,
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 1024,  # noqa: N803
    j: str = "1x2",
    env: dict[str, str] | None = None,
    metadata: dict[str, str] | None = None,
    max_retries: int = 0,
    rdzv_port: int = 29500,
    rdzv_backend: str = "c10d",
    rdzv_conf: str | None = None,
    mounts: list[str] | None = None,
    debug: bool = False,
    tee: int = 3,
) -> AppDef:
    """Train a script or a module on nodes that each run the same number of workers.

    Args:
        script_args: the script's arguments
        script: the script, as a path within the image or the working directory
        m: a module to run instead of a script
        image: container image, for schedulers that use images
        name: EXPERIMENT/RUN, EXPERIMENT/, /RUN or RUN; RUN defaults to the script's name
        h: a named resource, instead of cpu, gpu and memMB
        cpu: cores per node
        gpu: GPUs per node
        memMB: memory per node in MiB
        j: [MIN:]NODESxWORKERS; with h, NODES alone starts one worker per GPU
        env: environment variables for the workers, A=1,B=2
        metadata: metadata of the job, for schedulers and trackers
        max_retries: how often the scheduler may restart the job
        rdzv_port: rendezvous port on the first node's host; any free port for a single node
        rdzv_backend: rendezvous backend
        rdzv_conf: settings for the backend, A=1,B=2
        mounts: type=bind,src=/on/host,dst=/inside[,readonly] and so on; also volume, device
        debug: set the variables that make CUDA, NCCL and torch log more
        tee: which worker output is shown and logged: 1 stdout, 2 stderr, 3 both, 0 none
    """
    size = parse_job_size(h, j) if h and j.isdecimal() else parse_size(j)
    named = parse_name(name, script, m, script_args)
    if not 0 < rdzv_port < 65536:
        raise UsageError(f"--rdzv_port={rdzv_port}: expected a port from 1 to 65535")
    if tee not in range(4):
        raise UsageError(f"--tee={tee}: expected 0, 1, 2 or 3")
    endpoint = "localhost:0" if size.nodes.max_nodes == 1 else f"{_RANK0_HOST}:{rdzv_port}"
    words = ["--rdzv_backend", shlex.quote(rdzv_backend)]
    if not rdzv_backend.strip():
        raise UsageError(f"--rdzv_backend={rdzv_backend}: expected a name, such as c10d")
    if rdzv_conf:
        for pair in rdzv_conf.split(","):
            if not re.fullmatch(r"\s*\w[^=]*=.*", pair) and pair.strip():
                raise UsageError(f"--rdzv_conf={rdzv_conf}: expected A=1,B=2")
        words += ["--rdzv_conf", shlex.quote(rdzv_conf)]
    words += ["--rdzv_endpoint", endpoint, "--rdzv_id", shlex.quote(macros.app_id)]
    words += ["--nnodes", str(size.nodes), "--nproc_per_node", str(size.workers)]
    words += ["--tee", str(tee), "--role", "''"]
    if rdzv_backend == "static":
        words += ["--node_rank", shlex.quote(macros.replica_id)]
    program = TORCHRUN if launcher.get() == TORCHRUN else "relight run"
    command = [script] if script else ["-m", m or ""]
    words += [shlex.quote(word) for word in (*command, *script_args)]
    variables = {
        "LOGLEVEL": read().get("LOGLEVEL", "WARNING"),
        **(env or {}),
        "TORCHX_TRACKING_EXPERIMENT_NAME": named.experiment,
        "TORCHX_TRACKING_RUN_NAME": named.run,
        **(_DEBUG if debug else {}),
    }
    role = Role(
        name=role_name(script, m),
        image=image,
        min_replicas=size.nodes.min_nodes,
        entrypoint="bash",
        args=["-c", " ".join([program, *words])],
        env=variables,
        num_replicas=size.nodes.max_nodes,
        max_retries=max_retries,
        resource=resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
        port_map={"c10d": rdzv_port},
        mounts=parse_mounts(mounts or []),
    )
    return AppDef(named.run, [role], metadata or {})


def ddp(
    *script_args: str,
    script: str | None = None,
    m: str | None = None,
    image: str = IMAGE,
    name: str = "/",
    h: str | None = None,
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 1024,  # noqa: N803
    j: str = "1x2",
    env: dict[str, str] | None = None,
    metadata: dict[str, str] | None = None,
    max_retries: int = 0,
    rdzv_port: int = 29500,
    rdzv_backend: str = "c10d",
    rdzv_conf: str | None = None,
    mounts: list[str] | None = None,
    debug: bool = False,
    tee: int = 3,
) -> AppDef:
    """Train a script or a module on nodes that each run the same number of workers.

    Args:
        script_args: the script's arguments
        script: the script, as a path within the image or the working directory
        m: a module to run instead of a script
        image: container image, for schedulers that use images
        name: EXPERIMENT/RUN, EXPERIMENT/, /RUN or RUN; RUN defaults to the script's name
        h: a named resource, instead of cpu, gpu and memMB
        cpu: cores per node
        gpu: GPUs per node
        memMB: memory per node in MiB
        j: [[MIN:]NODESx]WORKERS
        env: environment variables for the workers, A=1,B=2
        metadata: metadata of the job, for schedulers and trackers
        max_retries: how often the scheduler may restart the job
        rdzv_port: rendezvous port on the first node's host; any free port for a single node
        rdzv_backend: rendezvous backend
        rdzv_conf: settings for the backend, A=1,B=2
        mounts: type=bind,src=/on/host,dst=/inside[,readonly] and so on; also volume, device
        debug: set the variables that make CUDA, NCCL and torch log more
        tee: which worker output is shown and logged: 1 stdout, 2 stderr, 3 both, 0 none
    """
    return torchrun(
        *script_args,
        script=script,
        m=m,
        image=image,
        name=name,
        h=h,
        cpu=cpu,
        gpu=gpu,
        memMB=memMB,
        j=str(parse_size(j)),
        env=env,
        metadata=metadata,
        max_retries=max_retries,
        rdzv_port=rdzv_port,
        rdzv_backend=rdzv_backend,
        rdzv_conf=rdzv_conf,
        mounts=mounts,
        debug=debug,
        tee=tee,
    )


def spmd(
    *args: str,
    script: str | None = None,
    m: str | None = None,
    image: str = IMAGE,
    name: str = "/",
    h: str = "gpu.small",
    j: str = "1x1",
    env: dict[str, str] | None = None,
    metadata: dict[str, str] | None = None,
    max_retries: int = 0,
    mounts: list[str] | None = None,
    debug: bool = False,
) -> AppDef:
    """Run the same program on every GPU, on nodes that all have the same named resource.

    Args:
        args: the script's arguments
        script: the script, as a path within the image or the working directory
        m: a module to run instead of a script
        image: container image, for schedulers that use images
        name: EXPERIMENT/RUN, EXPERIMENT/, /RUN or RUN; RUN defaults to the script's name
        h: the named resource of each node
        j: NODESxWORKERS, or NODES for one worker per GPU
        env: environment variables for the workers, A=1,B=2
        metadata: metadata of the job, for schedulers and trackers
        max_retries: how often the scheduler may restart the job
        mounts: type=bind,src=/on/host,dst=/inside[,readonly] and so on; also volume, device
        debug: set the variables that make CUDA, NCCL and torch log more
    """
    return torchrun(
        *args,
        script=script,
        m=m,
        image=image,
        name=name,
        h=h,
        j=str(parse_job_size(h, j)),
        env=env,
        metadata=metadata,
        max_retries=max_retries,
        mounts=mounts,
        debug=debug,
    )
