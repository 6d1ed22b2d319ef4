"""Small components that run one command on one or more replicas."""

import shlex

from relight.base.env import read
from relight.base.errors import UsageError
from relight.job.app import AppDef, Role
from relight.job.components import IMAGE, NO_IMAGE, TORCHRUN, launcher
from relight.job.components.nodes import refuse_script
from relight.job.mounts import parse_mounts
from relight.job.resources import resource

# Module paths of the programs that `copy` and `booth` run, for images with relight and with torchx.
_OURS, _OF_TORCHX = "relight.job.apps.{}", "torchx.apps.utils.{}_main"


def echo(msg: str = "hello world", image: str = IMAGE, num_replicas: int = 1) -> AppDef:
    """Print a message.

    Args:
        msg: the message
        image: container image, for schedulers that use images
        num_replicas: number of replicas
    """
    role = Role(
        name="echo",
        image=image,
        entrypoint="echo",
        args=[msg],
        num_replicas=num_replicas,
        resource=resource(cpu=1),
    )
    return AppDef("echo", [role])


def touch(file: str, image: str = IMAGE) -> AppDef:
    """Create an empty file.

    Args:
        file: the file's path
        image: container image, for schedulers that use images
    """
    role = Role(
        name="touch", image=image, entrypoint="touch", args=[file], resource=resource(cpu=1)
    )
    return AppDef("touch", [role])


def sh(
    *args: str,
    image: str = IMAGE,
    num_replicas: int = 1,
    cpu: int = 1,
    gpu: int = 0,
    memMB: int = 1024,  # noqa: N803
    h: str | None = None,
    env: dict[str, str] | None = None,
    max_retries: int = 0,
    mounts: list[str] | None = None,
    entrypoint: str | None = None,
) -> AppDef:
    """Run a command with sh, its arguments unchanged; for variables and pipes, run sh -c TEXT.

    Args:
        args: the command and its arguments
        image: container image, for schedulers that use images
        num_replicas: number of replicas
        cpu: cores per replica
        gpu: GPUs per replica
        memMB: memory per replica in MiB
        h: a named resource, instead of cpu, gpu and memMB
        env: environment variables, A=1,B=2
        max_retries: how often the scheduler may restart it
        mounts: type=bind,src=/on/host,dst=/inside[,readonly] and so on; also volume, device
        entrypoint: a program to run with these arguments instead of sh
    """
    if not args and not entrypoint:
        raise UsageError("utils.sh needs a command", hint="relight submit utils.sh ls -l")
    role = Role(
        name="sh",
        image=image,
        entrypoint=entrypoint or "sh",
        args=list(args) if entrypoint else ["-c", shlex.join(args)],
        env={"LOGLEVEL": read().get("LOGLEVEL", "WARNING"), **(env or {})},
        num_replicas=num_replicas,
        max_retries=max_retries,
        resource=resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
        mounts=parse_mounts(mounts or []),
    )
    return AppDef("sh", [role])


def python(
    *args: str,
    m: str | None = None,
    c: str | None = None,
    script: str | None = None,
    image: str = IMAGE,
    name: str = "torchx_utils_python",
    cpu: int = 1,
    gpu: int = 0,
    memMB: int = 1024,  # noqa: N803
    h: str | None = None,
    num_replicas: int = 1,
    mounts: list[str] | None = None,
) -> AppDef:
    """Run Python with a module, a command string or a script.

    Args:
        args: the program's arguments
        m: a module to run
        c: a command string to run
        script: a script to run, as a path within the image or the working directory
        image: container image, for schedulers that use images
        name: name of the job
        cpu: cores per replica
        gpu: GPUs per replica
        memMB: memory per replica in MiB
        h: a named resource, instead of cpu, gpu and memMB
        num_replicas: number of replicas
        mounts: type=bind,src=/on/host,dst=/inside[,readonly] and so on; also volume, device
    """
    given = [each for each in (m, c, script) if each is not None]
    if not given:
        refuse_script(args)
    if len(given) != 1:
        raise UsageError(
            f"exactly one of -m, -c and --script is required, got {len(given) or 'none'}",
            hint="--script train.py, -m my.train, or -c 'print(1)'",
        )
    program = ("-m", m) if m is not None else ("-c", c) if c is not None else (script,)
    role = Role(
        name="python",
        image=image,
        entrypoint="python",
        args=[*map(str, program), *args],
        env={"HYDRA_MAIN_MODULE": m} if m is not None else {},
        num_replicas=num_replicas,
        resource=resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
        mounts=parse_mounts(mounts or []),
    )
    return AppDef(name, [role])


def binary(
    *args: str,
    entrypoint: str,
    name: str = "torchx_utils_binary",
    num_replicas: int = 1,
    cpu: int = 1,
    gpu: int = 0,
    memMB: int = 1024,  # noqa: N803
    h: str | None = None,
) -> AppDef:
    """Run a program that is already installed, without an image.

    Args:
        args: its arguments
        entrypoint: the program
        name: name of the job
        num_replicas: number of replicas
        cpu: cores per replica
        gpu: GPUs per replica
        memMB: memory per replica in MiB
        h: a named resource, instead of cpu, gpu and memMB
    """
    role = Role(
        name="binary",
        image=NO_IMAGE,
        entrypoint=entrypoint,
        args=list(args),
        num_replicas=num_replicas,
        resource=resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
    )
    return AppDef(name, [role])


def copy(src: str, dst: str, image: str = IMAGE, mounts: list[str] | None = None) -> AppDef:
    """Copy one file. With fsspec in the image, either side may be a URL.

    Args:
        src: the source path
        dst: the destination path
        image: container image, for schedulers that use images
        mounts: type=bind,src=/on/host,dst=/inside[,readonly] and so on; also volume, device
    """
    role = Role(
        name="torchx-utils-copy",
        image=image,
        entrypoint="python",
        args=["-m", _app("copy"), "--src", src, "--dst", dst],
        resource=resource(cpu=1),
        mounts=parse_mounts(mounts or []),
    )
    return AppDef("torchx-utils-copy", [role])


def booth(
    x1: float,
    x2: float,
    trial_idx: int = 0,
    tracker_base: str = "/tmp/torchx-util-booth",  # noqa: S108
    image: str = IMAGE,
) -> AppDef:
    """Evaluate Booth's function, (x1 + 2 x2 - 7)^2 + (2 x1 + x2 - 5)^2, to try out a parameter
    search.

    Args:
        x1: the first argument
        x2: the second argument
        trial_idx: number of the trial
        tracker_base: directory that the result is written to
        image: container image, for schedulers that use images
    """
    role = Role(
        name="torchx-utils-booth",
        image=image,
        entrypoint="python",
        args=[
            *("-m", _app("booth")),
            *("--x1", str(x1), "--x2", str(x2)),
            *("--trial_idx", str(trial_idx), "--tracker_base", tracker_base),
        ],
        resource=resource(cpu=1),
    )
    return AppDef("torchx-utils-booth", [role])


def _app(name: str) -> str:
    return (_OF_TORCHX if launcher.get() == TORCHRUN else _OURS).format(name)
