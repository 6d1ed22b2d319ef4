# truth: rank=1 line=4 kind=exception says=SystemError: training could not start
import os, time
def vocab():
    return open("/data/vocab.json")
def tok():
    try: return vocab()
    except OSError as e: raise ValueError("tokenizer could not be loaded") from e
def data():
    try: return tok()
    except ValueError as e: raise RuntimeError("dataset setup failed") from e
def main():
    try: data()
    except RuntimeError as e: raise SystemError("training could not start") from e
if os.environ["RANK"] == "1": main()
time.sleep(3)
# also: FileNotFoundError
