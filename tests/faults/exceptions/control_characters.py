import os
import time

if os.environ["RANK"] != "1":
    time.sleep(60)

text = "\x1b[31mred\x1b]0;title\x07 \x07bell\r\x08\u202e\x9b2J end"
raise ValueError(text)
