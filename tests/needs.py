"""What a test needs that not every machine has: `@pytest.mark.needs_etcd`, `needs_torch`, …

The markers are `needs_` and the keys of `NEEDS`, whose values return why the thing is missing, or
an empty string. A test whose need is not met is skipped with that reason.
"""

import functools
import importlib.util
import os
import shutil
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


def _docker() -> str:
    from clusters.docker import docker_unavailable

    return docker_unavailable()


def _etcd() -> str:
    from etcd_server import etcd_unavailable

    return etcd_unavailable()


def _mpi() -> str:
    from clusters.mpi import mpirun_unavailable

    return mpirun_unavailable() or _hosts()


def _hosts() -> str:
    from netlab import lab_unavailable

    return lab_unavailable()


def _slurm() -> str:
    from clusters.slurm import slurm_unavailable

    return slurm_unavailable() or _hosts()


def _ssh() -> str:
    from clusters.sshd import sshd_unavailable

    return sshd_unavailable()


NEEDS: dict[str, Callable[[], str]] = {
    "chromium": lambda: _programs("chromium") or _modules("playwright"),
    "docker": _docker,
    "etcd": _etcd,
    "fsspec": lambda: _modules("fsspec"),
    "git": lambda: _programs("git"),
    "hosts": _hosts,
    "make": lambda: _programs("make"),
    "mlflow": lambda: _modules("mlflow"),
    "mpi": _mpi,
    "openssl": lambda: _programs("openssl"),
    "prometheus": lambda: _programs("prometheus"),
    "python312": lambda: _python("3.12"),
    "python313": lambda: _python("3.13"),
    "python314": lambda: _python("3.14"),
    "ray": lambda: _modules("ray", "aiohttp_cors", "opencensus"),  # `ray` alone has no dashboard
    "root": _root,
    "slurm": _slurm,
    "ssh": _ssh,
    "torch": lambda: _modules("torch"),
}
WHAT = {"hosts": "several hosts: network namespaces on this machine"}


@functools.cache
def missing(name: str) -> str:
    """Return why a test with the marker `needs_NAME` can't run here, or an empty string."""
    return NEEDS[name]()
