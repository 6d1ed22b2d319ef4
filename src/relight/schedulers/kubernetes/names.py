"""Creates names and labels that a Kubernetes API server accepts (RFC 1123 labels, label values)."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from relight.base.errors import UsageError
from relight.job.app import AppDef, Role

LONGEST = 63
_SUFFIX = len("-00000")
"""The length of the suffix that the Job controller appends to a pod's name: a hyphen and five
random characters.
"""
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_VALUE = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_NAME = rf"({_SUBDOMAIN}/)?{_VALUE}"
_LABEL_FORM = "a label such as topology.kubernetes.io/zone"
_QUANTITY = r"\d+(\.\d+)?([numkMGTPE]|[KMGTPE]i|[eE]\d+)?"
_FORMS = {
    "namespace": (_LABEL, "lower case letters, digits and hyphens, at most 63"),
    "queue": (_VALUE, "the name of a queue, at most 63 characters"),
    "runtime": (_SUBDOMAIN, "the name of a ClusterTrainingRuntime"),
    "service_account": (_SUBDOMAIN, "the name of a service account"),
    "image_secret": (_SUBDOMAIN, "the name of a secret"),
    "priority_class": (_SUBDOMAIN, "the name of a priority class"),
    "scheduler": (_SUBDOMAIN, "the name of a scheduler"),
    "topology": (_NAME, _LABEL_FORM),
    "shm_size": (_QUANTITY, "a size such as 8Gi"),
    "user": (r"\d+", "the number of a user, from 0"),
    "fs_group": (r"\d+", "the number of a group, from 0"),
}
"""Patterns for the option values that an API server accepts, each with a description."""


class JobId(NamedTuple):
    """A job's id, in the form [CONTEXT@]NAMESPACE:NAME. The context is quoted as in a URL,
    because EKS context names contain a slash, and a slash in a handle would be followed by a role.
    """

    context: str
    namespace: str
    name: str

    def __str__(self) -> str:
        """Return the id as users see it."""
        context = f"{quote(self.context, safe=':@')}@" if self.context else ""
        return f"{context}{self.namespace}:{self.name}"


def read_id(app_id: str) -> JobId:
    """Split a job id into its parts."""
    context, _, rest = app_id.rpartition("@")  # neither a namespace nor a name contains an @
    namespace, colon, name = rest.partition(":")
    if not colon or not name:
        raise UsageError(
            f"not a Kubernetes job id: {app_id}", hint="NAMESPACE:NAME, or CONTEXT@NAMESPACE:NAME"
        )
    return JobId(unquote(context), namespace, name)


def label_name(text: str) -> str:
    """Convert text to a valid object name, which consists of lowercase letters, digits and
    hyphens.
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def label_value(text: str) -> str:
    """Convert text to a valid label value: at most 63 characters, beginning and ending with a
    letter or a digit.
    """
    return re.sub(r"[^A-Za-z0-9._-]+", ".", text)[:LONGEST].strip("._-")


def app_name(app: AppDef, app_id: str, stem: Callable[[str, Role], str]) -> str:
    """Return the name for an app's objects. It is the app's id, shortened if the pods' host names
    would be too long. The id's random suffix is always kept.

    Args:
        app: the app.
        app_id: the app's unique name.
        stem: given the name and a role, returns the part of the role's pod names that precedes the
            number.
    """
    roles = app.roles
    ends = [f"{stem('', role)}-{max(0, role.num_replicas - 1)}" + "x" * _SUFFIX for role in roles]
    room = LONGEST - max((len(end) for end in ends), default=0)
    name = label_name(app_id)
    if room < 24:
        longest = max(roles, key=lambda role: len(role.name))
        raise UsageError(
            f"role name {longest.name} is too long; pod names have at most {LONGEST} characters",
            hint="rename the role",
        )
    if len(name) > room:
        start, _, unique = name.rpartition("-")
        name = f"{start[: room - len(unique) - 1].rstrip('-')}-{unique}"
    return name if name[:1].isalpha() else f"a{name}"[:room]


def check_options(cfg: Mapping[str, Any]) -> None:
    """Reject option values that every API server would reject, without contacting a server.

    Raises:
        UsageError: if a value is invalid.
    """
    for name, (pattern, form) in _FORMS.items():
        value = cfg.get(name)
        if value is not None and value != "" and not re.fullmatch(pattern, str(value)):
            raise UsageError(f"-cfg {name}={value}: not valid in Kubernetes", hint=form)
    for label in cfg.get("rank_order") or ():
        if not re.fullmatch(_NAME, label):
            raise UsageError(
                f"-cfg rank_order={label}: not valid in Kubernetes", hint=f"{_LABEL_FORM};LABEL"
            )
    for node in cfg.get("exclude") or ():
        if not re.fullmatch(_SUBDOMAIN, node):
            raise UsageError(
                f"-cfg exclude={node}: not valid in Kubernetes",
                hint="expected node names: NODE;NODE",
            )
