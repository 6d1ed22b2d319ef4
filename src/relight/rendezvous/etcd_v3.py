"""A registry that uses etcd's v3 API through its JSON gateway. All etcd clusters from version 3.4
on have this gateway, including those that serve the v2 API to torchrun.

The record is a key with a lease, and only the server measures how long the lease lasts. The key's
create_revision is the record's revision. etcd doesn't grant leases shorter than one and a half
times its election timeout (2 s by default). If the configured time to live is shorter than that,
detecting that a holder has exited may take longer than configured, but never less.

An unanswered request may have been applied, or may still be applied later. The key
therefore also contains its writer's token, and its content is compared with the desired content
until the two match.

Renewing the lease doesn't change the key. A process that suspects that the holder has exited
therefore marks the holder's record, and a live holder overwrites the mark with its next renewal.
"""

import base64
import json
import math
import os
import time
from contextlib import suppress
from typing import Any, NamedTuple

from relight.base import fields
from relight.base.errors import UsageError
from relight.rendezvous.etcd_http import (
    EtcdAnswer,
    EtcdMembers,
    Login,
    error_message,
    nonsense,
)
from relight.rendezvous.leader_lock import NOBODY, Record

_TRIES = 5
_LEASE_ENDED = 5
_NO_PERMISSION = 7
_UNAUTHENTICATED = 16
_TOKEN_TOO_OLD = ("invalid auth token", "revision of auth store is old")


class _Stored(NamedTuple):
    """The value of a job's key. The `token` field identifies the process that wrote the value.
    `doubted` is set by a process that could not connect to the writer's address (`value`) and is
    waiting to see whether the writer renews the record.
    """

    token: str
    value: str
    doubted: bool = False


class _KeyContent(NamedTuple):
    """The key's content. The `revision` field is 0 if the key is missing."""

    stored: _Stored = _Stored("", "")
    revision: int = 0
    modified: int = 0
    lease: int = 0


class _Pair(NamedTuple):
    """A key and its value in an etcd response. Numbers are represented as strings, and the value is
    base64-encoded.
    """

    value: str
    create_revision: str
    mod_revision: str
    lease: str = "0"


class _Range(NamedTuple):
    """The keys in an etcd range response."""

    kvs: tuple[_Pair, ...]


class _LeaseEnded(Exception):  # noqa: N818
    """Raised when the lease has ended."""


class EtcdRegister:
    """A job's record in etcd.

    Args:
        members: the cluster.
        key: the record's key.
        login: the etcd user.
    """

    def __init__(self, members: EtcdMembers, key: str, login: Login) -> None:
        self.own_address = ""
        self._members = members
        self._key = key
        self._range = {"key": _encoded(key)}
        self._login = login
        self._token = _new_token()
        self._held = False
        self._lease = 0
        self._lease_s = 0
        self._session = ""

    def hold(self, value: str, ttl_s: float) -> Record:
        """Take, renew or read the record, as described in `LeaderLock`."""
        self._members.hurry(ttl_s)
        try:
            found = self._hold(value, math.ceil(ttl_s)) if value else self._read_key()
        finally:
            self.own_address = self._members.own_address
        if not found.revision:
            return NOBODY
        stored = found.stored
        return Record(stored.value, str(found.revision), stored.token == self._token)

    def close(self) -> None:
        """Close the connection."""
        self._members.close()

    def evict(self, record: Record, patience_s: float = 0.0) -> bool:
        """Remove the record of a holder that has exited, as described in `LeaderLock`."""
        if not record.revision.isdecimal() or not int(record.revision):
            return False
        if not patience_s:
            return not self._remove(_if_created(int(record.revision))).revision
        found = self._read_key()
        if str(found.revision) == record.revision and not found.stored.doubted:
            marked = found.stored._replace(doubted=True)
            try:
                found = self._put(_if_modified(found.modified), marked, found.lease)
            except _LeaseEnded:
                return True  # the record expired with its lease
        if str(found.revision) != record.revision or not found.stored.doubted:
            return False
        time.sleep(patience_s)
        return not self._remove(_if_modified(found.modified)).revision

    def release(self) -> None:
        """Release the record if this object holds it."""
        if not self._lease:
            return  # without a lease, no request can have acquired the record
        found = self._read_key()
        lease, token = self._lease, self._token
        # The requests below may be carried out late, after this object has taken the record again.
        # The new record must therefore share neither the key's revision nor the lease.
        self._held, self._lease, self._token = False, 0, _new_token()
        try:
            if found.stored.token == token:
                self._remove(_if_created(found.revision))
        finally:
            self._revoke(lease)  # a request still in flight finds no lease

    def _hold(self, value: str, seconds: int) -> _KeyContent:
        old = self._lease
        # Renew the lease first, because a key that is read afterwards exists as long as the lease.
        renewed = self._renewed(seconds) if self._held else 0
        found = self._read_key()
        for _ in range(_TRIES):
            if found.revision and found.stored.token != self._token:
                self._held = False
                return found
            try:
                renewed = renewed or self._renewed(seconds) or self._grant(seconds)
                as_meant = found.stored == _Stored(self._token, value) and found.lease == renewed
                if found.revision and as_meant:
                    self._held = True
                    if old not in (0, renewed):
                        self._revoke(old)
                    return found
                found = self._write(found.revision, value, renewed)
            except _LeaseEnded:
                renewed = self._lease = 0
                found = self._read_key()
        raise OSError(f"etcd: the key {self._key} changes faster than it can be read")

    def _renewed(self, seconds: int) -> int:
        """Renew our lease and return its id, or return 0 if we don't have a lease of this
        duration.
        """
        if not self._lease or self._lease_s != seconds:
            return 0
        result = self._call("/lease/keepalive", {"ID": str(self._lease)}).body.get("result")
        if not isinstance(result, dict) or not _number(result.get("TTL", "0")):
            self._lease = 0
        return self._lease

    def _grant(self, seconds: int) -> int:
        answer = self._call("/lease/grant", {"TTL": str(seconds)})
        self._lease = _number(answer.body.get("ID"))
        self._lease_s = seconds
        if not self._lease:
            raise nonsense(answer)
        return self._lease

    def _revoke(self, lease: int) -> None:
        """Revoke a lease early, instead of letting it expire."""
        with suppress(_LeaseEnded, OSError):
            self._call("/lease/revoke", {"ID": str(lease)})

    def _read_key(self) -> _KeyContent:
        answer = self._call("/kv/range", self._range)
        return self._parse_key(answer, answer.body)

    def _write(self, revision: int, value: str, lease: int) -> _KeyContent:
        """Write the key if it still has this revision, and return the key's content afterwards."""
        return self._put(_if_created(revision), _Stored(self._token, value), lease)

    def _put(self, condition: dict[str, str], stored: _Stored, lease: int) -> _KeyContent:
        text = json.dumps(fields.plain(stored))
        put = {**self._range, "value": _encoded(text), "lease": str(lease)}
        return self._transact(condition, {"request_put": put})

    def _remove(self, condition: dict[str, str]) -> _KeyContent:
        return self._transact(condition, {"request_delete_range": self._range})

    def _transact(self, condition: dict[str, str], change: dict[str, Any]) -> _KeyContent:
        """Change the key if it meets a condition, and return the key's content afterwards."""
        compare = {**self._range, "result": "EQUAL", **condition}
        look = {"request_range": self._range}
        answer = self._call(
            "/kv/txn", {"compare": [compare], "success": [change, look], "failure": [look]}
        )
        try:
            last = answer.body["responses"][-1]["response_range"]
        except (LookupError, TypeError):
            raise nonsense(answer) from None
        return self._parse_key(answer, last)

    def _parse_key(self, answer: EtcdAnswer, result: Any) -> _KeyContent:
        """Parse the record in a range response."""
        if not isinstance(result, dict) or not isinstance(answer.body.get("header"), dict):
            raise nonsense(answer)
        if not result.get("kvs"):
            return _KeyContent()
        try:
            pair, *_ = fields.record(_Range, result).kvs
            stored: _Stored = fields.record(_Stored, fields.decode(base64.b64decode(pair.value)))
        except ValueError:  # malformed, or not base64
            pair = _Pair("", "", "")
        revision, modified = _number(pair.create_revision), _number(pair.mod_revision)
        if not revision:
            raise OSError(
                f"etcd at {answer.member}: the key {self._key} contains a value that is not a "
                "record"
            )
        return _KeyContent(stored, revision, modified, _number(pair.lease))

    # Calls to etcd.

    def _call(self, path: str, request: dict[str, Any]) -> EtcdAnswer:
        """Make one API call, logging in first (or again) if etcd requires it."""
        if self._login.user and not self._session:
            self._log_in()
        answer = self._post(path, request)
        if self._login.user and _is_stale(answer):
            self._log_in()
            answer = self._post(path, request)
        if answer.status == 200 and "error" not in answer.body:
            return answer
        raise self._error(answer)

    def _log_in(self) -> None:
        name, password = self._login
        answer = self._post("/auth/authenticate", {"name": name, "password": password})
        token = answer.body.get("token")
        if answer.status == 200 and isinstance(token, str) and token.isascii():
            self._session = "".join(token.split())
        elif "not enabled" in error_message(answer):
            self._session = ""  # authentication is disabled in etcd
        else:
            raise self._error(answer)

    def _post(self, path: str, request: dict[str, Any]) -> EtcdAnswer:
        headers = {"Content-Type": "application/json"}
        if self._session and path != "/auth/authenticate":
            headers["Authorization"] = self._session
        body = json.dumps(request).encode()
        answer = self._members.post("/v3" + path, body, headers)
        if answer.status == 404 and not answer.body:
            raise UsageError(
                f"etcd at {answer.member} has no JSON gateway at /v3",
                hint="use etcd 3.4 or newer, without --enable-grpc-gateway=false",
            )
        return answer

    def _error(self, answer: EtcdAnswer) -> Exception:
        """Return the error to raise for a response that rejects a call."""
        code, text = _grpc_code(answer), error_message(answer)
        where = f"etcd at {answer.member}"
        if code == _LEASE_ENDED and "lease" in text:
            return _LeaseEnded()
        if code == _NO_PERMISSION:
            return UsageError(
                f"{where}: user {self._login.user} may not read and write {self._key}: {text}",
                hint=(
                    "etcdctl role grant-permission ROLE readwrite --prefix=true PREFIX "
                    "(etcd_prefix)"
                ),
            )
        if "invalid user ID or password" in text:
            return UsageError(f"{where}: wrong user or password ({self._login.user})")
        if not self._login.user and (code == _UNAUTHENTICATED or "user name is empty" in text):
            return UsageError(
                f"{where} requires a user and a password",
                hint="--rdzv-conf=etcd_user=NAME,etcd_password_file=FILE",
            )
        self._members.move_on()
        return OSError(f"{where}: {text}")


def _new_token() -> str:
    return os.urandom(16).hex()


def _if_created(revision: int) -> dict[str, str]:
    return {"target": "CREATE", "create_revision": str(revision)}


def _if_modified(revision: int) -> dict[str, str]:
    return {"target": "MOD", "mod_revision": str(revision)}


def _is_stale(answer: EtcdAnswer) -> bool:
    text = error_message(answer)
    return _grpc_code(answer) == _UNAUTHENTICATED or any(word in text for word in _TOKEN_TOO_OLD)


def _grpc_code(answer: EtcdAnswer) -> int:
    """Return the gRPC status code in a response, or 0. In streamed responses, the code is nested
    one level deeper.
    """
    error = answer.body.get("error")
    if isinstance(error, dict):
        return _number(error.get("grpc_code", error.get("code")))
    return _number(answer.body.get("code"))


def _number(value: Any) -> int:
    """Parse a 64-bit number, which etcd's JSON represents as a string. Return 0 for any other
    value.
    """
    if isinstance(value, str) and value.isdecimal() and value.isascii() and len(value) < 20:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode(errors="surrogateescape")).decode()
