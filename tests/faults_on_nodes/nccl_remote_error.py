# The text is NCCL's; no GPU is needed for it.
import os
import signal

if os.environ["RANK"] == "3":
    os.kill(os.getpid(), signal.SIGSEGV)
raise RuntimeError("NCCL error: ncclRemoteError: A call failed possibly due to a network error or "
                   "a remote process exiting prematurely.")  # fmt: skip
