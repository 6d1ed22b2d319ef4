"""Collects facts that are expected to be the same on all nodes, within a few milliseconds and
without importing torch.

Facts that can't be determined are not compared. `core.env_diff` reports the differences
between nodes.
"""

import binascii
import os
import stat
import sys
from collections.abc import Sequence

from relight.base.package import __version__
from relight.host.devices import content, entries

_MAX_SCRIPT = 8 << 20
_MAX_ARGUMENTS = 200


def collect(
    *, script: str, arguments: Sequence[str], is_file: bool, python: str = sys.executable
) -> dict[str, str]:
    """Return the facts about this node.

    Args:
        script: SCRIPT from the command line.
        arguments: its arguments.
        is_file: whether SCRIPT is a file rather than a module or a program.
        python: the workers' interpreter, or empty if they run another program.
    """
    facts = {"relight": __version__}
    own = python == sys.executable
    if own or (python and os.path.realpath(python) == os.path.realpath(sys.executable)):
        facts["Python"] = ".".join(map(str, sys.version_info[:3]))
    torch = _torch_version(sys.path if own else _site_packages(python))
    if torch:
        facts["torch"] = torch
    checksum = _file_checksum(script) if is_file else ""
    if checksum:
        facts["script"] = checksum
    text = " ".join(map(_quoted, arguments))
    facts["arguments"] = text if len(text) <= _MAX_ARGUMENTS else _checksum(text.encode())
    return facts


def machine() -> str:
    """Return an id that all processes on this machine share until it reboots (random(4)), or an
    empty string on systems without a boot id.
    """
    return content("/proc/sys/kernel/random/boot_id")


def _torch_version(paths: Sequence[str]) -> str:
    """Return the version of torch that `import torch` would load, according to its metadata
    directory.
    """
    for path in paths:
        if not os.path.isdir(os.path.join(path or ".", "torch")):
            continue
        names = entries(path or ".")
        found = [n for n in names if n.startswith("torch-") and n.endswith(".dist-info")]
        return found[0][len("torch-") : -len(".dist-info")] if len(found) == 1 else ""
    return ""


def _site_packages(python: str) -> list[str]:
    """Return the site-packages directory of the interpreter at this path, if it has exactly one."""
    if "/" not in python:
        return []
    lib = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(python))), "lib")
    versions = [name for name in entries(lib) if name.startswith("python3.")]
    places = [os.path.join(lib, name, "site-packages") for name in versions]
    places = [place for place in places if os.path.isdir(place)]
    return places if len(places) == 1 else []


def _file_checksum(path: str) -> str:
    """Return the checksum of a file, or an empty string if the file is huge or not a regular
    file.
    """
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_SCRIPT:
            return ""  # reading a FIFO would block and consume its data
        with open(path, "rb") as file:
            return _checksum(file.read(_MAX_SCRIPT))
    except (OSError, ValueError):
        return ""


def _checksum(content: bytes) -> str:
    """Return the CRC-32 of this content, as printed by `crc32` and `gzip -lv`.

    `hashlib` is not used, because it loads OpenSSL and would therefore delay the start of each node
    by two milliseconds.
    """
    return f"{binascii.crc32(content):08x}"


def _quoted(argument: str) -> str:
    """Quote a command-line argument so that it can be sent as part of a single string."""
    plain = argument and argument.isprintable() and not any(c in " '\"\\" for c in argument)
    return argument if plain else repr(argument)
