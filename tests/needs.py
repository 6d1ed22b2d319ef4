"""Requirements that not every machine meets, as markers such as `needs_etcd` and `needs_torch`.

Each marker is `needs_` plus a key of `NEEDS`. The values return why something is missing, or an
empty string. A test whose requirement is not met is skipped with that reason.
"""

import functools
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable


def _modules(*names: str) -> str:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return f"no Python package {', '.join(missing)}" if missing else ""


def _programs(*names: str) -> str:
    missing = [name for name in names if shutil.which(name) is None]
    return f"no {', '.join(missing)}" if missing else ""


def _python(version: str) -> str:
    from release.distribution import interpreter

    return "" if interpreter(version) else f"no Python {version}"


def _root() -> str:
    return "needs root" if os.geteuid() else ""


def _freezer() -> str:
    if os.access("/sys/fs/cgroup/freezer", os.W_OK):
        return ""
    return "no freezer of cgroups v1, whose processes get no SIGKILL"


def chromium() -> str | None:
    """Return the path of Chromium. The headless shell takes half of the processor time: it draws no
    window.
    """
    return shutil.which("chromium-headless-shell") or shutil.which("chromium")


def _chromium() -> str:
    if chromium() is None:
        return "no chromium-headless-shell, chromium"
    return _modules("playwright")


def _docker() -> str:
    from clusters.docker import docker_unavailable

    return docker_unavailable()


def _etcd() -> str:
    from etcd_server import etcd_unavailable

    return etcd_unavailable()


def _mounts() -> str:
    command = ["unshare", "--mount", "--map-root-user", "true"]
    if why := _programs("unshare"):
        return why
    failed = subprocess.run(command, capture_output=True, check=False).returncode
    return "no mount namespaces here" if failed else ""


def _mpi() -> str:
    from clusters.mpi import mpirun_unavailable

    return mpirun_unavailable() or _hosts()


def _hosts() -> str:
    from netlab import lab_unavailable

    return lab_unavailable()


def _ray() -> str:
    from clusters.ray import ray_unavailable

    return ray_unavailable()


def _slurm() -> str:
    from clusters.slurm import slurm_unavailable

    return slurm_unavailable() or _hosts()


def _ssh() -> str:
    from clusters.sshd import sshd_unavailable

    return sshd_unavailable()


def _reconfigure() -> str:
    if why := _modules("torch"):
        return why
    version = importlib.metadata.version("torch")
    release = tuple(int(part) for part in version.split(".")[:2])
    return "" if release >= (2, 14) else f"torch {version} can't reconfigure groups"


NEEDS: dict[str, Callable[[], str]] = {
    "aws": lambda: _modules("boto3", "moto"),
    "c_compiler": lambda: _programs("cc", "gcc"),
    "chromium": _chromium,
    "docker": _docker,
    "docker_client": lambda: _modules("docker"),
    "etcd": _etcd,
    "fire": lambda: _modules("fire"),
    "freezer": _freezer,
    "fsspec": lambda: _modules("fsspec"),
    "fuse": lambda: "" if os.path.exists("/dev/fuse") else "no /dev/fuse",
    "git": lambda: _programs("git"),
    "hosts": _hosts,
    "iptables": lambda: _programs("iptables", "ip6tables"),
    "kubernetes": lambda: _modules("kubernetes", "kubernetes_validate", "yaml"),
    "make": lambda: _programs("make"),
    "mlflow": lambda: _modules("mlflow"),
    "mounts": _mounts,
    "mpi": _mpi,
    "openssl": lambda: _programs("openssl"),
    "opentelemetry": lambda: _modules("opentelemetry"),
    "programs": lambda: _modules("accelerate", "ignite", "lightning", "transformers"),
    "prometheus": lambda: _programs("prometheus"),
    "prometheus_client": lambda: _modules("prometheus_client"),
    "python312": lambda: _python("3.12"),
    "python313": lambda: _python("3.13"),
    "python314": lambda: _python("3.14"),
    "ray": _ray,
    "root": _root,
    "slurm": _slurm,
    "setpriv": lambda: _root() or _programs("setpriv"),
    "ssh": _ssh,
    "torch": lambda: _modules("torch"),
    "torch_reconfigure": _reconfigure,
}
WHAT = {
    "hosts": "several hosts: network namespaces on this machine",
    "mounts": "mount namespaces",
    "programs": "accelerate, ignite, lightning and transformers",
}


@functools.cache
def missing(name: str) -> str:
    """Return why a test with the marker `needs_NAME` can't run here, or an empty string."""
    return NEEDS[name]()
