"""Whether this process may make hosts: root may, and others in a user namespace of their own, where
the system lets them have one (user_namespaces(7)).
"""

import os
import shutil
import subprocess

from relight.base.errors import MachineError

_ROOT_OF_OUR_OWN = ("--user", "--map-root-user", "--net", "--uts", "--mount")
"""Whoever makes hosts must be able to come back from them to namespaces of its own."""


def prefix() -> list[str]:
    """Return what to put before a command that makes hosts: nothing for root, else a program that
    makes this user the root of a user namespace.

    Raises:
        MachineError: hosts can't be made here.
    """
    if os.geteuid() == 0:
        return []
    unshare = shutil.which("unshare")
    if unshare is None:
        raise _refused("there is no unshare (Debian: util-linux)")
    command = [unshare, *_ROOT_OF_OUR_OWN, "--"]
    done = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise _refused(done.stderr.strip() or f"unshare exits with {done.returncode}")
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        raise _refused("only root may use /dev/net/tun")
    return command


def _refused(why: str) -> MachineError:
    return MachineError(
        f"hosts of a sandbox need root, or a user namespace, which this system refuses: {why}",
        hint="sudo env PATH=$PATH relight sandbox …",
    )
