"""A record in a key of etcd: the parts that both APIs share."""

import math
import os
from typing import NamedTuple

from relight.base.errors import UsageError
from relight.rendezvous.etcd_http import EtcdAnswer, EtcdMembers, Login
from relight.rendezvous.leader_lock import NOBODY, Record

TRIES = 5


class Stored(NamedTuple):
    """The value of a job's key. `token` identifies its writer. `doubted` is set by a process that
    could not reach the writer at `value`, and waits for its next renewal.
    """

    token: str
    value: str
    doubted: bool = False


class KeyContent(NamedTuple):
    """The content of the key. `revision` is 0 for a missing key; only v2 has `text`, only v3
    `lease` and `doubted`.
    """

    token: str = ""
    value: str = ""
    revision: int = 0
    modified: int = 0
    text: str = ""
    lease: int = 0
    doubted: bool = False


class EtcdRegister:
    """The record of one job.

    Args:
        members: the cluster.
        key: the key of the record.
        login: the user of etcd.
    """

    def __init__(self, members: EtcdMembers, key: str, login: Login) -> None:
        self.own_address = ""
        self._members = members
        self._key = key
        self._login = login
        self._token = os.urandom(16).hex()

    def hold(self, value: str, ttl_s: float) -> Record:
        """Take, renew or read the record; see `LeaderLock`."""
        self._members.hurry(ttl_s)
        try:
            found = self._hold(value, math.ceil(ttl_s)) if value else self._look()
        finally:
            self.own_address = self._members.own_address
        if not found.revision:
            return NOBODY
        return Record(found.value, str(found.revision), found.token == self._token)

    def close(self) -> None:
        """Close the connection."""
        self._members.close()

    def _hold(self, value: str, seconds: int) -> KeyContent:
        raise NotImplementedError

    def _look(self) -> KeyContent:
        raise NotImplementedError

    def _restless(self) -> OSError:
        return OSError(f"etcd: the key {self._key} changes faster than it can be read")

    def _something_else(self, answer: EtcdAnswer) -> OSError:
        return OSError(
            f"etcd at {answer.member}: the key {self._key} holds something else than a record"
        )


def login_needed(where: str) -> UsageError:
    """Return the error for a cluster that requires a login."""
    return UsageError(
        f"{where} requires a user and a password",
        hint="--rdzv-conf=etcd_user=NAME,etcd_password_file=FILE",
    )
