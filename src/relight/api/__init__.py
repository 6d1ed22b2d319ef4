"""Launching from Python: `relight.run`, `relight.launch`.

`embedding` is `relight.run`, a job inside a longer-running program; `function` is `relight.launch`,
a function on every rank, with `function_hosts` for other machines and `function_results`.
`relight.torch_launcher` has the interface of torch.distributed.launcher.
"""
