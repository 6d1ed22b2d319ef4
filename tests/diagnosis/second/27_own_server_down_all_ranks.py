# truth: rank=all line=8 kind=exception says=Connection refused
# run: {L} --nproc-per-node=3 {C}/27_own_server_down_all_ranks.py
import os, socket, urllib.request
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    # the same port at every rank is not needed: nobody listens
    url = f"http://127.0.0.1:{s.getsockname()[1]}/tokenizer.json"
tokenizer = urllib.request.urlopen(url, timeout=3).read()
