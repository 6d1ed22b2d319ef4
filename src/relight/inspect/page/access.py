"""Implements the access rules for the status page. This module does no I/O.

The page listens on TCP, so other users can connect to it, and a browser may connect on behalf of
any site that its user visits. Therefore:
- a request that shows the job must carry the page's token, unless the page is public. The token is
  only accepted in the `Authorization` header, because URLs end up in logs and browser histories.
  The page reads it from the URL fragment (`#token=`), which browsers do not send;
- a request must address this server by an IP address or by the server's own name; another site's
  name that resolves to this address (DNS rebinding) is rejected;
- a request initiated by another site is rejected, unless it opens the page itself;
- a request that acts on the job must carry the token, and must come from the page itself.
"""

import hmac
import ipaddress
from collections.abc import Collection, Mapping
from typing import NamedTuple

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
"""Headers that are sent with every response. They forbid scripts from other origins, inline
scripts, and framing.
"""
_LOCAL = frozenset({"localhost", "localhost.localdomain"})
_BEARER = "Bearer "


class HttpRefusal(NamedTuple):
    """The HTTP status of a rejected request, and the message for the user."""

    status: int
    why: str


def check_get(headers: Mapping[str, str], names: Collection[str], path: str) -> HttpRefusal | None:
    """Return the reason for rejecting a read request, or None if it is allowed.

    Args:
        headers: the request's headers, names in lower case.
        names: the server's names, in lower case.
        path: the requested path, without a query.
    """
    if not _is_own(headers.get("host", ""), names):
        return HttpRefusal(421, "this server has no such name; use its address, or localhost")
    site = headers.get("sec-fetch-site", "none")  # https://www.w3.org/TR/fetch-metadata/
    if path != "/" and site not in ("same-origin", "none"):
        return HttpRefusal(403, "other sites may not read this")
    return None


def refusal_without_token(headers: Mapping[str, str], token: str) -> HttpRefusal | None:
    """Return the reason for rejecting a request that requires the token, or None if it is allowed.

    Args:
        headers: the request's headers, names in lower case.
        token: the page's token.
    """
    given = headers.get("authorization", "")
    if not given:
        return HttpRefusal(401, "this requires the page's token: Authorization: Bearer TOKEN")
    proof = given.removeprefix(_BEARER) if given.startswith(_BEARER) else ""
    if not token or not hmac.compare_digest(proof.encode(errors="replace"), token.encode()):
        return HttpRefusal(401, "wrong token; relight has printed the token or its location")
    return None


def check_post(
    headers: Mapping[str, str], names: Collection[str], token: str
) -> HttpRefusal | None:
    """Return the reason for rejecting a request that acts on the job, or None if it is allowed.

    Args:
        headers: the request's headers, names in lower case.
        names: the server's names, in lower case.
        token: the page's token; empty if the page is read-only.
    """
    host = headers.get("host", "")
    if not _is_own(host, names):
        return check_get(headers, names, "/")
    if headers.get("origin", "").lower() != f"http://{host.lower()}":
        return HttpRefusal(403, "only the page itself may request this (Origin)")
    if not token:
        return HttpRefusal(403, "this page is read-only")
    return refusal_without_token(headers, token)


def _is_own(host: str, names: Collection[str]) -> bool:
    name, colon, port = host.rpartition(":")
    if not (colon and port.isdecimal()):
        name = host
    name = name.lower().removesuffix(".")
    if name in _LOCAL or name in names:
        return bool(name)
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
