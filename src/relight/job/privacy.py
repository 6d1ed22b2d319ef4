"""What is kept of a job, and shown of it, without what looks like a secret.

A variable or a flag is taken for a secret by its name; values that are none cost little to hide.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from relight.job.app import AppDef

HIDDEN = "<hidden>"
_PART = r"[A-Za-z0-9_.-]*"
_WORD = (
    rf"(?:(?:{_PART}(?:tokens?|secrets?|passwords?|passwd|passphrase|credentials?)"
    rf"|(?:{_PART}[_.-])?(?:auth|authorization|cookie|jwt|bearer"
    r"|(?:api|access|private|secret|ssh|wandb|openai|hf)[_-]?key(?:[_-]?id)?)"
    rf")(?:[_.-]{_PART}+)?"
    rf"|(?:{_PART}[_.-])?(?:(?:pg|my|db)?pass|pat|creds?)"
    rf"|[A-Za-z0-9]{_PART}(?<!public)[_-]key)"
)
_QUOTED = r"'[^']*'|\"[^\"]*\""
_UP_TO_NEXT = r"(?:[^,;\s]|[,;](?![\w.-]+=))*"
_NAME = re.compile(_WORD, re.IGNORECASE)
_ASSIGNED = re.compile(
    rf"(?<![A-Za-z0-9_.-])((?:--?)?{_WORD}=)({_QUOTED}|{_UP_TO_NEXT})", re.IGNORECASE
)
_FOLLOWED = re.compile(rf"(?<!\S)(--?{_WORD}\s+)({_QUOTED}|[^-\s]\S*)", re.IGNORECASE)
_HEADER = re.compile(
    rf"(?<![A-Za-z0-9_.-])({_WORD}:\s+(?:(?:bearer|basic|token)\s+)?|bearer\s+)([^\s'\"]+)",
    re.IGNORECASE,
)
_USER = re.compile(r"(?<!\S)((?:--user[=\s]\s*|-u\s+)[^\W\d][^:\s]*:)([^\s/]\S*)")
_URL = re.compile(r"(://[^/\s:@]*):[^/\s@]+@")

# What says how a job was started, and nothing about its owner.
_KEPT = ("CUDA_", "NCCL_", "TORCH", "RELIGHT_", "PET_", "OMP_", "MKL_", "SLURM_", "PYTHON", "GLOO_",
         "UCX_", "FI_", "HSA_", "ROCR_", "HIP_", "LD_", "CONDA_", "VIRTUAL_ENV", "PATH", "LANG",
         "LC_", "HOSTNAME", "USER", "PWD", "SHELL", "LOGLEVEL", "HYDRA_")  # fmt: skip


def is_secret(name: str) -> bool:
    """Return whether a variable or a flag of this name holds a secret."""
    return _NAME.fullmatch(name.lstrip("-")) is not None


def of_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables with secrets hidden."""
    return {
        name: HIDDEN if value and is_secret(name) and not _is_count(name, value) else of_text(value)
        for name, value in variables.items()
    }


def of_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return what is recorded of the environment of the process that submits."""
    return of_variables({n: v for n, v in sorted(variables.items()) if n.startswith(_KEPT)})


def of_text(text: str) -> str:
    """Return a text with the values of `NAME=value`, `--name value`, `Name: value` hidden where the
    name is a secret's, and passwords in URLs and after `--user NAME:`.
    """
    for pattern in (_ASSIGNED, _FOLLOWED, _HEADER, _USER):
        text = pattern.sub(_hidden, text)
    return _URL.sub(rf"\1:{HIDDEN}@", text)


def of_words(words: Sequence[str]) -> list[str]:
    """Return a command line with secrets hidden."""
    shown: list[str] = []
    for number, word in enumerate(words):
        before = words[number - 1] if number else ""
        if before.startswith("-") and "=" not in before and is_secret(before):
            shown.append(word if _is_count(before, word) else HIDDEN)
        elif before in ("-u", "--user"):
            shown.append(of_text(f"{before} {word}").removeprefix(f"{before} "))
        else:
            shown.append(of_text(word))
    return shown


def of_app(app: AppDef) -> AppDef:
    """Return an app with secrets hidden in arguments, variables and metadata."""
    roles = [
        replace(
            role,
            args=tuple(of_words(role.args)),
            env=of_variables(role.env),
            metadata=_inside(role.metadata),
        )
        for role in app.roles
    ]
    return replace(app, roles=tuple(roles), metadata=_inside(app.metadata))


def _hidden(match: re.Match[str]) -> str:
    name, value = match.groups()
    return match[0] if _is_count(name, value) else name + HIDDEN


def _is_count(name: str, value: str) -> bool:
    """Return whether this is a number of tokens, as models are told it."""
    return name.rstrip("= :").lower().endswith("tokens") and value.isdecimal()


def _inside(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            name: HIDDEN if inner and is_secret(str(name)) else _inside(inner)
            for name, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_inside(inner) for inner in value]
    return of_text(value) if isinstance(value, str) else value
