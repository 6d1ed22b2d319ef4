import json
import os
import time

if os.environ["RANK"] != "1":
    time.sleep(60)


def load(text):
    return json.loads(text)


load("{")
