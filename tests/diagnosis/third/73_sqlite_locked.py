# truth: rank=1 line=14 kind=exception says=OperationalError: database is locked
# run: {L} --nproc-per-node=2 {C}/73_sqlite_locked.py
# never: (?i)gone or late
import os, sys, time
rank = int(os.environ["RANK"])
import sqlite3
db = sqlite3.connect("runs.db", timeout=1, isolation_level=None)
if rank == 0:
    db.execute("begin exclusive")
    open("locked", "w").close()
else:
    while not os.path.exists("locked"):
        time.sleep(0.05)
    db.execute("create table runs (id)")
time.sleep(300)
