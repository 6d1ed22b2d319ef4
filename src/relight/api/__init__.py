"""Launching from Python: `relight.run`, `relight.launch`, `relight.submit`, `relight.map`.

`embedding` is `relight.run`, a job inside a longer-running program; `function` is `relight.launch`,
a function on every rank, with `function_hosts` for other machines and `function_results`;
`submission` is `relight.submit` and `relight.map`, functions as jobs, with their `futures`.
`relight.torch_launcher` has the interface of torch.distributed.launcher.
"""
