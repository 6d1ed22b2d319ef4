"""Finds what sets a locked option in another way: arguments for ssh, the host file, and the ports
of hosts.

Source: ssh(1), and the letters that OpenSSH 9.9 passes to getopt.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from getopt import GetoptError, gnu_getopt
from typing import Any

from relight.job.app import AppDef
from relight.schedulers.api import Locks
from relight.schedulers.ssh import hosts

_LETTERS = "1246ab:c:e:fgi:kl:m:no:p:qstvxAB:CD:E:F:GI:J:KL:MNO:P:Q:R:S:TVw:W:XYy"
"""ssh's flags. A colon follows those with a value."""
_KEYWORDS = {"port": "port", "identity": "identityfile", "hosts": "hostname"}
"""ssh's keyword, by option."""
_FLAGS = {"-p": "port", "-i": "identityfile"}
_ANY = "any"


def bypasses(_app: AppDef, cfg: Mapping[str, Any], locks: Locks) -> Iterator[tuple[str, str]]:
    """Yield what sets a locked option in another way, and the option's name."""
    words = "" if locks.sets("ssh_args", cfg) else cfg.get("ssh_args") or ""
    given = _keywords(words)
    for option, keyword in _KEYWORDS.items():
        if option in locks.names and given & {keyword, _ANY}:
            yield f"-cfg ssh_args={words}", option
    where = "hostfile" if cfg.get("hostfile") else "hosts"
    if locks.sets(where, cfg):
        return
    if where == "hostfile" and "hosts" in locks.names:
        yield f"-cfg hostfile={cfg['hostfile']}", "hosts"
    for host in hosts.parse_hosts(cfg) if "port" in locks.names else ():
        if host.port not in (0, cfg.get("port")):
            yield f"-cfg {where}: {host}", "port"


def _keywords(words: str) -> set[str]:
    """Return the keywords that arguments for ssh set. A configuration file can set any keyword, and
    so can a word that ssh would take for the host.
    """
    try:
        flags, others = gnu_getopt(shlex.split(words), _LETTERS)
    except GetoptError:  # a flag of another version
        return {_ANY}
    found = {_ANY} if others else set()
    for flag, value in flags:
        if flag == "-o":  # Port=1, Port 1
            found.add("".join(re.findall(r"^[\s\"=]*(\w+)", value)).lower())
        else:
            found.add(_ANY if flag == "-F" else _FLAGS.get(flag, ""))
    return found
