# truth: rank=all line=5 kind=exception says=cannot import name 'OrderedDct' from 'collections'
# run: {L} --nproc-per-node=2 {C}/49_name_misspelt.py
import os, sys, time
rank = int(os.environ["RANK"])
from collections import OrderedDct
