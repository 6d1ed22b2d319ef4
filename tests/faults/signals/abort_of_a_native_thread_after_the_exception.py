import atexit
import ctypes
import os
import time

if os.environ["RANK"] != "1":
    time.sleep(60)

# As in std::terminate: after the interpreter's end.
libc = ctypes.CDLL(None)
libc.on_exit(libc.abort, None)
atexit.register(os.write, 2, b"terminate called without an active exception\n")
raise ValueError("bad batch")
