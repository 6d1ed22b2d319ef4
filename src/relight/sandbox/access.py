"""Checks whether this process may create hosts. root can always create hosts. Other users can
create hosts in a user namespace, if the system permits user namespaces (user_namespaces(7)).
"""

import os
import shutil
import subprocess

from relight.base.errors import MachineError

_ROOT_OF_OUR_OWN = ("--user", "--map-root-user", "--net", "--uts", "--mount")
"""A process that creates hosts must be able to return to its own namespaces."""


def prefix() -> list[str]:
    """Return a prefix for commands that create hosts. The prefix is empty for root. For other
    users, it runs the command as root in a user namespace.

    Raises:
        MachineError: if hosts can't be created on this machine.
    """
    if os.geteuid() == 0:
        return []
    unshare = shutil.which("unshare")
    if unshare is None:
        raise _refused("unshare is not installed (Debian: util-linux)")
    command = [unshare, *_ROOT_OF_OUR_OWN, "--"]
    done = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise _refused(done.stderr.strip() or f"unshare exits with {done.returncode}")
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        raise _refused("only root may use /dev/net/tun")
    return command


def _refused(why: str) -> MachineError:
    return MachineError(
        f"sandbox hosts require root or user namespaces, which this system denies: {why}",
        hint="sudo env PATH=$PATH relight sandbox …",
    )
