import os
import time

if os.environ["RANK"] == "3":
    import flash_attention_that_is_not_installed
time.sleep(60)
