import os, time, threading
def work(): raise OSError(5, "Input/output error", "/mnt/x")
if os.environ["RANK"] == "1":
    t = threading.Thread(target=work); t.start(); t.join()
    os._exit(1)
time.sleep(3)
# truth: rank=1 line=0 kind=exit says=Input/output error
