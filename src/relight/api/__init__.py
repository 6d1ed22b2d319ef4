"""The Python API for launching: `relight.run`, `relight.launch`, `relight.submit`, `relight.map`.

`embedding` implements `relight.run`, which runs a job inside a longer-running program. `function`
implements `relight.launch`, which calls a function on every rank; `function_hosts` does so on other
machines, and `function_results` collects the results. `submission` implements `relight.submit` and
`relight.map`, which run functions as jobs and return `futures`. `relight.torch_launcher` has the
same interface as torch.distributed.launcher.
"""
