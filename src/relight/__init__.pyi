"""The names that `relight` loads on access, for type checkers and editors."""

from relight.api.embedding import RunResult as RunResult
from relight.api.embedding import RunSpec as RunSpec
from relight.api.embedding import run as run
from relight.api.function import launch as launch
from relight.api.futures import Future as Future
from relight.api.futures import attach as attach
from relight.api.submission import map as map
from relight.api.submission import submit as submit
from relight.base.package import __version__ as __version__
