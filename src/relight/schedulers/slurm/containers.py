"""Runs a job's replicas in containers, on nodes that have pyxis or Apptainer.

    pyxis      flags of srun: --container-image, --container-mounts, --container-workdir
    apptainer  the task's command: apptainer exec --bind … --pwd … IMAGE

The working directory and the job's directory, which contains the launcher, have the same paths in
the container as on the host. Sources: github.com/NVIDIA/pyxis, "Usage"; apptainer exec --help
(1.3). NeMo-Run uses the same pyxis flags.
"""

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from relight.base.errors import UsageError
from relight.job.app import BindMount, Role

FORMS = ("pyxis", "apptainer")


class Container(NamedTuple):
    """A job's image and its container runtime (one of `FORMS`). `here` is the working directory,
    and `job_dir` is the directory that contains the job's files. Both are in shell syntax.
    """

    form: str
    image: str
    here: str
    job_dir: str

    def flags(self, role: Role) -> list[str]:
        """Return the srun flags, as shell words."""
        if self.form != "pyxis":
            return []
        return [
            f"--container-image={shlex.quote(self.image)}",
            f"--container-mounts={self._mounts(role)}",
            f"--container-workdir={shlex.quote(self.here)}",
        ]

    def prefix(self, role: Role) -> list[str]:
        """Return the prefix for a task's command, as shell words."""
        if self.form != "apptainer":
            return []
        gpus = ["--nv"] if role.resource.gpu > 0 else []
        bind = ["--bind", self._mounts(role), "--pwd", shlex.quote(self.here)]
        return ["apptainer", "exec", *gpus, *bind, shlex.quote(self.image)]

    def _mounts(self, role: Role) -> str:
        here = mountable(self.here)
        mounts = [f"{here}:{here}", f'"{self.job_dir}":"{self.job_dir}"']
        for mount in role.mounts:
            if isinstance(mount, BindMount):
                source, target = (mountable(each) for each in (mount.src_path, mount.dst_path))
                mounts.append(f"{source}:{target}" + (":ro" if mount.read_only else ""))
        return ",".join(mounts)


def unmounted(roles: Sequence[Role]) -> bool:
    """Return whether any role has a mount that is not supported for containers on Slurm."""
    return any(not isinstance(mount, BindMount) for role in roles for mount in role.mounts)


def mountable(path: str) -> str:
    """Quote a path as a shell word.

    Raises:
        UsageError: if the path contains a character that separates mounts.
    """
    if set(path) & {",", ":"}:
        raise UsageError(f"can't mount {path}: it contains a comma or a colon")
    return shlex.quote(path)
