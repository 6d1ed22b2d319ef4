# truth: rank=all line=5 kind=exception says=No module named 'nunpy'
# run: {L} --nproc-per-node=2 {C}/48_module_misspelt.py
import os, sys, time
rank = int(os.environ["RANK"])
import nunpy as np
