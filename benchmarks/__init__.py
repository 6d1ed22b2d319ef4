"""Benchmarks, compared with torch's own launcher where it has an equivalent.

relight's bytecode is compiled first. pip compiles it when it installs a wheel, as it did for torch,
but not for a checkout.
"""

import compileall
from pathlib import Path

import relight

compileall.compile_dir(Path(relight.__file__).parent, quiet=1)
