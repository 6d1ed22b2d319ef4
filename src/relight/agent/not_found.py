"""Errors for a script, program or module that does not exist, with a suggested correction. This
module is loaded only if one of these is missing.
"""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence

from relight.base.errors import UsageError
from relight.base.text import closest_match
from relight.flags.arguments import FALSE, TRUE
from relight.flags.spec import FLAGS, LaunchSpec
from relight.flags.suggestions import CARRIAGE_RETURN

_SIMILAR = 0.75
"""Minimum similarity between a file's name, without its extension, and the name that was given."""
_ADDRESS = r"(\d+\.){3}\d+(:\d*)?|[\da-fA-F]*:[\da-fA-F:]+"
"""An IP address, optionally with a port. `hostname -I` and `--ip-address` print several
addresses.
"""
_STARTERS = ("torchrun", "torchx", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun")


def no_script(script: str, spec: LaunchSpec) -> UsageError:
    """Return the error for a script that does not exist.

    Args:
        script: the path of the script.
        spec: the launch's options.
    """
    name, arguments = os.path.basename(script), spec.script_args
    if re.fullmatch(r"python[\d.]*", name):
        rest = [word for word in arguments if word != "-u"]
        shown = shlex.join(rest[:2] if rest[:1] == ["-m"] else rest[:1]) or "SCRIPT"
        hint = f"relight starts Python itself: relight run [flags] {shown}"
        return UsageError(f"{script} is not a script", hint=hint)
    if name in _STARTERS:
        hint = f"relight replaces {name}; leave it out"
        return UsageError(f"{script} is not a script", hint=hint)
    if script.startswith(("\u2013", "\u2014")):
        hint = "the name begins with a typographic dash; type `--`"
    elif script.lstrip().startswith("--"):
        hint = "the name begins with a space"
    elif "\r" in script:
        hint = CARRIAGE_RETURN
    elif script.startswith("~") or "$" in script:
        hint = "the shell doesn't replace ~ and variables in quotes"
    elif "://" in script:
        hint = "a script is a local file; download it first"
    elif re.fullmatch(_ADDRESS, script):
        hint = f"if {script} belongs to a flag's value, quote the value, or use its first word only"
    elif " " in script and os.path.isfile(script.split()[0]):
        hint = f"don't quote the script and its arguments together: {script}"
    elif hint := value_of_switch(spec):
        pass
    elif script.isdecimal() and arguments[:1] and os.path.exists(arguments[0]):
        hint = f"join a flag and its value with =, as in --keep-warm={script}"
    elif script.startswith(("dist.", "utils.")) and not script.endswith(".py"):
        hint = f"this is a component; submit it with: relight submit {script} …"
    elif re.fullmatch(r"[A-Z_][A-Z\d_]*=.*", script):
        hint = f"put variables before the command: {script} relight run …"
    elif "." in script and os.path.isfile(script.replace(".", "/") + ".py"):
        hint = f"did you mean -m {script}?"
    elif not os.path.isfile(f"{script}.py") and (program := _program_on_path(script)):
        hint = f"did you mean {program}?"
    else:
        hint = similar_file(script)
    return UsageError(f"no such file: {script}", hint=hint)


def _program_on_path(name: str) -> str:
    """Return how to start a program on PATH: by its path if it's a Python script, such as an entry
    point. Returns an empty string if there is no such program.
    """
    path = shutil.which(name) if "/" not in name else None
    if path is None:
        return ""
    try:
        with open(path, "rb") as file:
            first = file.readline(512)
    except OSError:
        first = b""
    return path if first.startswith(b"#!") and b"python" in first else f"--no-python {name}"


def value_of_switch(spec: LaunchSpec) -> str:
    """Return a hint if the apparent script was probably meant as the value of a switch."""
    word = spec.script
    if word.lower() not in (*FALSE, *TRUE):
        return ""
    on = [flag.name for flag in FLAGS if flag.parse is None and getattr(spec, flag.field, False)]
    if not on:
        return ""
    switch = f"--{on[0]}" if len(on) == 1 else "--" + " or --".join(on)
    leave = f"{switch} {word}" if word.lower() in FALSE else word
    return f"{switch} does not take a value; leave out {leave}"


def no_program(name: str, path: str) -> UsageError:
    """Return the error for a program that isn't in one of the directories in `path`, or isn't
    executable.
    """
    if "/" in name and os.path.isdir(name):
        return UsageError(f"{name} is a directory", hint="pass the path of a file")
    file = shutil.which(name, os.F_OK, path)
    if file is not None:
        return UsageError(f"{file} is not executable", hint=f"chmod +x {shlex.quote(file)}")
    if "/" not in name and os.path.isfile(name):
        hint = f"to run the program in this directory, use ./{name}"
        return UsageError(f"no such program on PATH: {name}", hint=hint)
    hint = similar_file(name) if "/" in name else "searched the directories in PATH"
    return UsageError(f"no such program: {name}", hint=hint)


def no_module(
    name: str,
    package: str,
    missing: str,
    where: Sequence[str] | None,
    *,
    flag: str,
    roots: Sequence[str],
) -> UsageError:
    """Return the error for a module that does not exist.

    Args:
        name: the name given with the flag.
        package: the part of the name that could be found.
        missing: the name up to the first part that was not found.
        where: the package's directories, or None for a top-level module.
        flag: `-m ` or `--preload=`.
        roots: directories to search for similar top-level modules.
    """
    if name.endswith(".py") and os.path.isfile(name):
        module = os.path.normpath(name[:-3]).replace("/", ".")
        hint = f"-m takes a module name: -m {module}; to run a file, leave out -m: {name}"
        return UsageError(f"-m {name} is a file", hint=hint)
    if name.endswith(".py") and os.path.isfile(name[:-3].replace(".", "/") + ".py"):
        return UsageError(f"no such module: {name}", hint=f"did you mean {flag}{name[:-3]}?")
    part = missing.rpartition(".")[2]
    folders = roots if where is None else where
    known = [one for each in folders for one in _modules(each, packages=name != missing)]
    # Many top-level package names resemble any short name, so the threshold is higher for them.
    meant = closest_match(part, known, cutoff=0.6 if where is not None else 0.65)
    if meant:
        whole = ".".join(filter(None, (package, meant, name[len(missing) + 1 :])))
        hint = f"did you mean {flag}{whole}?"
    elif where is not None:
        hint = f"{package} was found in {where[0]}"
    else:
        places = f"this directory, PYTHONPATH and the packages of {sys.executable}"
        hint = f"searched {places}; is it installed there?"
    return UsageError(f"no such module: {missing}", hint=hint)


def similar_file(path: str) -> str:
    """Return a hint that names an existing file with a similar name, or the directory that was
    searched.
    """
    folder, name = os.path.split(path)
    if os.path.isfile(f"{path}.py"):
        return f"did you mean {path}.py?"
    where = os.path.abspath(folder)
    try:
        names = os.listdir(where)
    except OSError:
        return f"no such directory: {where}"
    # The extension makes up most of a short name, so only stems are compared. Also, a configuration
    # file is no substitute for the script that it is named after.
    stem, extension = os.path.splitext(name)
    same = [known for known in names if known.lower() == name.lower()]
    if same:
        return f"did you mean {os.path.join(folder, same[0])}?"
    split = {known: os.path.splitext(known) for known in names}
    fitting = (extension, extension or ".py")
    stems = {own: known for known, (own, its) in split.items() if its in fitting}
    meant = stems.get(closest_match(stem, list(stems), cutoff=_SIMILAR))
    return f"did you mean {os.path.join(folder, meant)}?" if meant else f"searched {where}"


def _modules(folder: str, *, packages: bool) -> list[str]:
    """Return the importable modules in a directory, or only its packages."""
    try:
        with os.scandir(folder) as entries:
            names = [each.name for each in entries if not packages or each.is_dir()]
    except OSError:
        return []
    return [name.removesuffix(".py") for name in names if name.removesuffix(".py").isidentifier()]
