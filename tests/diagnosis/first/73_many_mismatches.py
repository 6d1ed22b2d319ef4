# truth: rank=all line=6 kind=exception says=Error(s) in loading state_dict
# run: {L} --nproc-per-node=2 {C}/73_many_mismatches.py
import os, torch
net = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(90)])
other = torch.nn.Sequential(*[torch.nn.Linear(5, 5) for _ in range(90)])
net.load_state_dict(other.state_dict())
# also: size mismatch for 0.weight
