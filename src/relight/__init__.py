"""relight launches distributed training and keeps it alive.

Importing this package does not import any of its modules. Launching must take only milliseconds,
and training scripts that use `relight.worker` should not have to load the launcher. Type checkers
read `__init__.pyi`.
"""

_FROM_MODULE = {
    "__version__": "base.package",
    "Future": "api.futures",
    "attach": "api.futures",
    "launch": "api.function",
    "map": "api.submission",
    "run": "api.embedding",
    "RunResult": "api.embedding",
    "RunSpec": "api.embedding",
    "submit": "api.submission",
}


def __getattr__(name: str) -> object:
    if name in _FROM_MODULE:
        from importlib import import_module

        return getattr(import_module(f"relight.{_FROM_MODULE[name]}"), name)
    raise AttributeError(f"module 'relight' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_FROM_MODULE]
