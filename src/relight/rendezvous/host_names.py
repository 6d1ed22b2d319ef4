"""Turns the id of a job into the name of a key or file."""

from urllib.parse import quote

_LONGEST = 150


def safe_name(job: str) -> str:
    """Return a name of ASCII letters, digits and `_-~.%` that is unique to this id.

    It needs no quoting in a path, does not begin with a dot, and has at most 150 characters.
    """
    name = quote(job, safe="", errors="surrogateescape")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) <= _LONGEST:
        return name
    from hashlib import sha256

    digest = sha256(name.encode()).hexdigest()
    return f"{name[: _LONGEST - len(digest) - 1]}~{digest}"
