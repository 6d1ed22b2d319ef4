"""An example plug-in: a leader lock in an SQLite database, for nodes on one machine.

    relight run --rdzv-backend=sqlite --rdzv-endpoint=/path/to/meet.db …

It measures the time to live with the machine's clock, which all nodes share here.
"""

import sqlite3
import time
import uuid
from collections.abc import Mapping

from relight.base.errors import UsageError
from relight.rendezvous.leader_lock import NOBODY, LeaderLock, Record


class SqliteRegister:
    """A leader lock with one row per job."""

    def __init__(self, path: str, job: str) -> None:
        self.own_address = ""
        self._path, self._job = path, job
        self._token = uuid.uuid4().hex

    def hold(self, value: str, ttl_s: float) -> Record:
        with self._open() as database:
            database.execute("DELETE FROM jobs WHERE until < ?", (time.monotonic(),))
            if value:
                database.execute(
                    "INSERT INTO jobs VALUES (?, ?, ?, ?) ON CONFLICT (job) DO UPDATE "
                    "SET until = excluded.until, value = excluded.value "
                    "WHERE token = excluded.token",
                    (self._job, value, self._token, time.monotonic() + ttl_s),
                )
            row = database.execute(
                "SELECT value, token FROM jobs WHERE job = ?", (self._job,)
            ).fetchone()
        return Record(row[0], row[1], row[1] == self._token) if row else NOBODY

    def evict(self, record: Record, patience_s: float = 0.0) -> bool:
        key = (self._job, record.revision)
        with self._open() as database:
            seen = database.execute(
                "SELECT until FROM jobs WHERE job = ? AND token = ?", key
            ).fetchone()
        if seen is None:
            return False
        time.sleep(patience_s)
        with self._open() as database:  # each renewal has a different `until`
            gone = database.execute(
                "DELETE FROM jobs WHERE job = ? AND token = ? AND until = ?", (*key, *seen)
            )
            return gone.rowcount > 0

    def release(self) -> None:
        self.evict(Record("", self._token, ours=True))
        self._token = uuid.uuid4().hex

    def close(self) -> None:
        """Do nothing, because no connection stays open between calls."""

    def _open(self) -> sqlite3.Connection:
        try:
            database = _Closing(self._path, isolation_level="IMMEDIATE", timeout=2)
            database.execute(
                "CREATE TABLE IF NOT EXISTS jobs (job PRIMARY KEY, value, token, until REAL)"
            )
            database.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise OSError(f"{self._path}: {error}") from None
        return database


class _Closing(sqlite3.Connection):
    """A connection that `with` commits and closes."""

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)  # type: ignore[arg-type]
        self.close()


def open(endpoint: str, job: str, pairs: Mapping[str, str]) -> LeaderLock:
    """The entry point's target; `pairs` come from --rdzv-conf and include the plug-in's own."""
    unknown = [name for name in pairs if name.startswith("sqlite_")]
    if unknown or not endpoint.endswith(".db"):
        raise UsageError(
            f"--rdzv-endpoint={endpoint}: expected the path of a .db file",
            hint=f"and no {', '.join(unknown)}" if unknown else "",
        )
    return SqliteRegister(endpoint, job)
