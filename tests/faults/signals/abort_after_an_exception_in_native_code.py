import faulthandler
import os
import time

if os.environ["RANK"] != "1":
    time.sleep(60)

faulthandler.enable()
os.write(
    2,
    b"terminate called after throwing an instance of 'c10::DistBackendError'\n"
    b"  what():  no device\n",
)
os.abort()
