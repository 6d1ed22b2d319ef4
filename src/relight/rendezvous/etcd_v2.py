"""The register in etcd's v2 API, for servers below 3 and those started with --enable-v2.

The record is a key with a time to live. Its createdIndex is the record's revision: modifiedIndex
changes with each renewal. The stored text is different for each holder, so a comparison with it
can't match a successor.

The members measure the time by their wall clocks, comparing that of the member asked with that of
the leader. If clocks in a cluster differ, a record lapses too early or too late by the difference;
v3 does not have this weakness.

An unanswered request may have been applied, now or later. So the text also contains a token of its
writer.
"""

import base64
import json
import time
from typing import NamedTuple
from urllib.parse import quote, urlencode

from relight.base import fields
from relight.base.errors import UsageError
from relight.rendezvous.etcd_http import EtcdAnswer, EtcdMembers, Login, message_of, nonsense
from relight.rendezvous.etcd_record import TRIES, EtcdRegister, KeyContent, Stored, login_needed
from relight.rendezvous.leader_lock import Record

_NOT_FOUND = 100
_COMPARE_FAILED = 101
_EXISTS = 105
_NO_PERMISSION = 110


class _Node(NamedTuple):
    """A key in etcd's answer."""

    value: str
    createdIndex: int  # noqa: N815  # etcd's names
    modifiedIndex: int  # noqa: N815


class V2Register(EtcdRegister):
    """The record of one job; see `EtcdRegister`."""

    def __init__(self, members: EtcdMembers, key: str, login: Login) -> None:
        super().__init__(members, key, login)
        self._path = "/v2/keys" + quote(key, errors="surrogateescape")
        self._turn = 0
        self._asked = False
        self._ours = KeyContent()

    def evict(self, record: Record, patience_s: float = 0.0) -> bool:
        """Remove the record of a dead holder; see `LeaderLock`."""
        found = self._look()
        if not found.revision or str(found.revision) != record.revision:
            return False
        if not patience_s:
            self._remove(found)
            return True
        time.sleep(patience_s)
        self._call("DELETE", {"prevIndex": str(found.modified)})
        return not self._look().revision

    def release(self) -> None:
        """Give the record back if this register holds it."""
        if self._asked:
            found = self._look()
            self._asked, self._ours = False, KeyContent()
            if found.token == self._token:
                self._remove(found)
                self._remove_directory()

    def _hold(self, value: str, seconds: int) -> KeyContent:
        found = self._ours if self._ours.revision else self._look()
        self._ours = KeyContent()
        for _ in range(TRIES):
            if found.revision and found.token != self._token:
                return found
            written = self._write(found, value, seconds)
            if written is not None:
                self._ours = written
                return written
            found = self._look()
        raise self._restless()

    def _write(self, found: KeyContent, value: str, seconds: int) -> KeyContent | None:
        """Take or renew the key, if it still is as `found`; otherwise return None."""
        form = {"ttl": str(seconds)}
        if not found.revision:
            self._asked = True
            form |= {"prevExist": "false", "value": self._text(value)}
        elif found.value == value:
            form |= {"prevValue": found.text, "refresh": "true"}
        else:
            form |= {"prevValue": found.text, "value": self._text(value)}
        return self._call("PUT", form)

    def _text(self, value: str) -> str:
        self._turn += 1
        return json.dumps({"token": self._token, "turn": self._turn, "value": value})

    def _look(self) -> KeyContent:
        return self._call("GET", {"quorum": "true"}) or KeyContent()

    def _remove(self, found: KeyContent) -> None:
        self._call("DELETE", {"prevValue": found.text})

    def _remove_directory(self) -> None:
        """Tidy up: etcd removes the directory only if it is empty."""
        directory = self._path.rpartition("/")[0]
        try:
            self._members.ask("DELETE", f"{directory}?dir=true", None, self._credentials())
        except (OSError, UsageError):
            pass

    def _credentials(self) -> dict[str, str]:
        if not self._login.user:
            return {}
        pair = ":".join(self._login).encode(errors="surrogateescape")
        return {"Authorization": "Basic " + base64.b64encode(pair).decode()}

    def _call(self, method: str, asked: dict[str, str]) -> KeyContent | None:
        """Make one call; return the content of the key, or None if a condition was not met."""
        headers = self._credentials()
        form = urlencode(asked)
        if method == "PUT":
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            answer = self._members.ask("PUT", self._path, form.encode(), headers)
        else:
            answer = self._members.ask(method, f"{self._path}?{form}", None, headers)
        if answer.status in (200, 201):
            return self._found(answer) if method != "DELETE" else None
        if answer.body.get("errorCode") in (_NOT_FOUND, _COMPARE_FAILED, _EXISTS):
            return None
        raise self._error(answer)

    def _found(self, answer: EtcdAnswer) -> KeyContent:
        found = answer.body.get("node")
        if not isinstance(found, dict):
            raise nonsense(answer)
        try:
            node: _Node = fields.record(_Node, found)
            stored: Stored = fields.record(Stored, fields.decode(node.value))
        except fields.Malformed:
            raise self._something_else(answer) from None
        return KeyContent(
            stored.token, stored.value, node.createdIndex, node.modifiedIndex, text=node.value
        )

    def _error(self, answer: EtcdAnswer) -> Exception:
        """Return the error for a refusal."""
        code, where = answer.body.get("errorCode"), f"etcd at {answer.member}"
        if answer.status == 404 and code is None:
            return UsageError(
                f"{where} does not serve the v2 API",
                hint="start it with --enable-v2 (etcd below 3.6), or use --rdzv-backend=etcd",
            )
        if answer.status == 401 or code == _NO_PERMISSION:
            if not self._login.user:
                return login_needed(where)
            return UsageError(
                f"{where} rejects user {self._login.user}: wrong password, or no access to "
                f"{self._key}"
            )
        self._members.move_on()
        return OSError(f"{where}: {message_of(answer)}")
