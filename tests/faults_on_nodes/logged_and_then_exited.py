import logging
import os
import sys
import time

if os.environ["RANK"] == "2":
    try:
        raise TimeoutError("no answer from the tokenizer service")
    except TimeoutError:
        logging.exception("giving up")
        sys.exit(1)
time.sleep(60)
