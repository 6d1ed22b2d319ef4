"""Hides values that look like secrets in a job's records and output.

A variable or flag is considered secret if its name suggests that. A token for a well-known service
is recognized by its prefix. False positives do little harm.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from relight.base.values import is_number

HIDDEN = "<hidden>"
_PART = r"[A-Za-z0-9_.-]*"
_WORD = (
    rf"(?:(?:{_PART}(?:tokens?|secrets?|passwords?|passwd|passphrase|credentials?)"
    rf"|(?:{_PART}[_.-])?(?:auth|authorization|cookie|jwt|bearer"
    r"|(?:api|access|private|secret|ssh|wandb|openai|hf)[_-]?keys?(?:[_-]?id)?|sas)"
    rf"|{_PART}(?:account|master|storage|shared[_-]?access|encryption|signing)[_-]?keys?"
    rf"|{_PART}(?:kube[_-]?config|netrc)[_-]?(?:data|contents?|b64|base64)"  # not just a path
    rf")(?:[_.-]{_PART}+)?"
    rf"|{_PART}(?:conn(?:ection)?[_-]?str(?:ing)?s?|webhook{_PART}|pwd)"
    rf"|(?:{_PART}[_.-])?(?:(?:pg|my|db)?pass|pat|creds?|dsn)"
    rf"|[A-Za-z0-9]{_PART}(?<!public)[_-]key|(?-i:KEY))"  # `--key` usually means a sort key
)
_QUOTED = r"'[^']*'|\"[^\"]*\""
_UP_TO_NEXT = r"(?:[^,;\s]|[,;](?![\w.-]+=))*"
# Python compiles the pattern at its first use and caches it. Only code that redacts waits for this
# (10 ms).
_NAME = f"(?i){_WORD}"
_ASSIGNED = rf"(?i)(?<![A-Za-z0-9_.-])((?:--?)?{_WORD}=)({_QUOTED}|{_UP_TO_NEXT})"
_FOLLOWED = rf"(?i)(?<!\S)(--?{_WORD}\s+)({_QUOTED}|[^-\s]\S*)"
_HEADER = (
    rf"(?i)(?<![A-Za-z0-9_.-])({_WORD}:\s+(?:(?:bearer|basic|token)\s+)?|bearer\s+)([^\s'\"]+)"
)
_JSON = rf"(?i)((\\*[\"'])({_WORD})\2\s*:\s*)(?:(\\*[\"'])(.*?)\4|([^\s,\[\]{{}}\"'\\]+))"
_SIGNED = r"(?i)([?&](?:sig|(?:x-[a-z]+-)?signature)=)[^&\s'\"]+"
_LOGIN = rf"(?<!\S)(-p\s+)({_QUOTED}|[^-\s]\S*)"
_PORTS = r"[\d.:/]+(?:tcp|udp)?"
_ANOTHER_P = {"mkdir", "cp", "tar", "ps", "read", "pytest", "srun", "sbatch", "salloc", "squeue",
              "sinfo", "sacct", "scontrol", "unzip", "nc", "patch", "git"}  # fmt: skip
"""Programs whose -p does not mean a password but something else, such as a partition or a patch."""
_USER = r"(?<!\S)((?:--user[=\s]\s*|-u\s+)[^\W\d][^:\s]*:)([^\s/]\S*)"
_SERVICE_KEY = (
    r"(?<![\w-])(?:hf_[A-Za-z0-9]{20,}|gh[oprsu]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
    r"|sk-(?=[\w-]*\d)[\w-]{20,}|xox[abeprs]-[\w-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|glpat-[\w-]{20,}|AIza[\w-]{35}|pypi-[\w-]{20,}|npm_[A-Za-z0-9]{20,}|nvapi-[\w-]{20,})"
    r"(?![\w-])"
)
_WEBHOOK = (
    r"(https://(?:hooks\.slack\.com|discord(?:app)?\.com/api/webhooks"
    r"|[\w.-]+\.webhook\.office\.com)/)[^\s'\"]+"
)
_NETRC = (
    r"\b((?:machine\s+\S+\s+(?:(?:login|account)\s+\S+\s+)*"
    r"|default\s+(?:(?:login|account)\s+\S+\s+)+)password\s+)[^\s'\"]+"
)
_URL = r"(://[^/\s:@]*):[^/\s@]+@"

# Variables that show how a job was started, but reveal nothing private about its owner.
_RECORDED = ("CUDA_", "NCCL_", "TORCH", "RELIGHT_", "PET_", "OMP_", "MKL_", "SLURM_", "PYTHON",
             "GLOO_", "UCX_", "FI_", "HSA_", "ROCR_", "HIP_", "LD_", "CONDA_", "VIRTUAL_ENV",
             "PATH", "LANG", "LC_", "HOSTNAME", "USER", "PWD", "SHELL", "LOGLEVEL",
             "HYDRA_")  # fmt: skip


def is_secret(name: str) -> bool:
    """Return whether a variable or flag with this name holds a secret."""
    return re.fullmatch(_NAME, name.lstrip("-")) is not None


def redact_env(variables: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables with secrets hidden."""
    return {name: _shown(name, value) for name, value in variables.items()}


def _shown(name: str, value: str) -> str:
    hidden = value and is_secret(name) and not _is_other(name, value)
    return HIDDEN if hidden else redact_text(value)


def redact_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the submitting process's environment variables that are to be recorded, with secrets
    hidden.
    """
    return redact_env({n: v for n, v in sorted(variables.items()) if n.startswith(_RECORDED)})


def redact_text(text: str) -> str:
    """Redact secrets in text. A value in `NAME=value`, `--name value` or `Name: value` is a secret
    if its name suggests one. Webhook URLs, and passwords in URLs, in netrc files and after `--user
    NAME:` are also secrets.
    """
    text = re.sub(_SERVICE_KEY, HIDDEN, text)
    text = re.sub(_JSON, _hidden_in_json, text)
    for pattern in (_ASSIGNED, _FOLLOWED, _HEADER, _USER):
        text = re.sub(pattern, _hidden, text)
    text = re.sub(_LOGIN, _hidden_login, text)
    for pattern in (_WEBHOOK, _NETRC):
        text = re.sub(pattern, rf"\1{HIDDEN}", text)
    text = re.sub(_SIGNED, rf"\1{HIDDEN}", text)
    return re.sub(_URL, rf"\1:{HIDDEN}@", text)


def redact_argv(words: Sequence[str]) -> list[str]:
    """Return a command line with secrets hidden."""
    shown: list[str] = []
    for number, word in enumerate(words):
        before = words[number - 1] if number else ""
        if before.startswith("-") and "=" not in before and is_secret(before):
            shown.append(word if _is_other(before, word) else HIDDEN)
        elif before == "-p" and not word.startswith("-"):
            login = f"{' '.join(words[:number])} "
            shown.append(HIDDEN if _is_login(login, word) else redact_text(word))
        elif before in ("-u", "--user"):
            shown.append(redact_text(f"{before} {word}").removeprefix(f"{before} "))
        else:
            shown.append(redact_text(word))
    return shown


def _hidden(match: re.Match[str]) -> str:
    name, value = match.groups()
    return match[0] if value == HIDDEN or _is_other(name, value) else name + HIDDEN


def _hidden_in_json(match: re.Match[str]) -> str:
    begin, _, name, quote, text, word = match.groups()
    value = word if text is None else text
    if not value or value in ("null", "true", "false") or _is_other(name, value):
        return match[0]
    return f"{begin}{quote or ''}{HIDDEN}{quote or ''}"


def _hidden_login(match: re.Match[str]) -> str:
    return match[1] + HIDDEN if _is_login(match.string[: match.start()], match[2]) else match[0]


def _is_login(before: str, value: str) -> bool:
    """Return whether the value after `-p` is a password, as it is for `docker login`, `sshpass` and
    `mysql`.

    The value is treated as a password unless it is a number, a port or a port mapping, or unless
    the command's `-p` is known to have a different meaning.
    """
    command = re.split(r"[;|&\n(]", before)[-1].split()
    if re.fullmatch(_PORTS, value) or is_number(value):
        return False
    return not any(word.rpartition("/")[2] in _ANOTHER_P for word in command)


def _is_other(name: str, value: str) -> bool:
    """Return whether a value isn't secret even though its name suggests it, because the value is a
    number of language model tokens or a working directory.
    """
    name = name.rstrip("= :").lower()
    if name.endswith("tokens"):
        return value.isdecimal()
    return name.endswith("pwd") and value.lstrip("'\"").startswith(("/", "$", "~", ".", "`"))


def redact_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a scheduler's options with secrets hidden."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, Mapping):
            found[name] = redact_env({str(k): str(v) for k, v in value.items()})
        else:
            found[name] = HIDDEN if value and is_secret(name) else value
    return found


def redact_app(app: Mapping[str, Any]) -> dict[str, Any]:
    """Return an app in JSON form, with the secrets in its arguments, variables and metadata
    hidden.
    """
    roles = [
        {
            **role,
            "args": redact_argv(role["args"]),
            "env": redact_env(role["env"]),
            "metadata": redact_value(role["metadata"]),
        }
        for role in app["roles"]
    ]
    return {**app, "roles": roles, "metadata": redact_value(app["metadata"])}


def redact_value(value: Any) -> Any:
    """Return a JSON value with the secrets in all of its strings hidden."""
    if isinstance(value, Mapping):
        return {
            name: HIDDEN
            if inner and is_secret(str(name)) and not _is_other(str(name), str(inner))
            else redact_value(inner)
            for name, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [redact_value(inner) for inner in value]
    return redact_text(value) if isinstance(value, str) else value
