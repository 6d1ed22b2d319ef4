# truth: rank=all line=7 kind=exception says=cannot start any token
# run: {L} --nproc-per-node=2 {C}/51_yaml_with_a_tab.py
# also: ScannerError
import os, sys, time
rank = int(os.environ["RANK"])
import yaml
yaml.safe_load("optim:\n\tlr: 1")
