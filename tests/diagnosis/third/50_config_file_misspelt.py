# truth: rank=all line=7 kind=exception says=FileNotFoundError
# run: {L} --nproc-per-node=2 {C}/50_config_file_misspelt.py
# also: config/trian.yaml
import os, sys, time
rank = int(os.environ["RANK"])
def load(path):
    with open(path) as f:
        return f.read()
os.makedirs("config", exist_ok=True)
with open("config/train.yaml", "w") as f:
    f.write("lr: 1")
load("config/trian.yaml")
