"""Which requests are let in at all: pure rules about their headers.

A name in `Host` must be one of ours.  A foreign name that was made to point at this machine (DNS
rebinding) would else let a foreign page read everything, because for the browser it is its own
server.  An address is always fine: nobody can make an address point elsewhere.

A request that changes something, or reads the queue, must not come from a page of somebody else.
It could not carry a token or see the answer anyway; this refuses it before anything is looked at,
so that no foreign page keeps the reader busy either.
"""

import ipaddress
from collections.abc import Mapping
from typing import Final

#: A request's body is a few words.
BODY_BYTES_MAX: Final = 16_384

#: Scripts from here alone, no HTML made of text, nobody may put the page into a frame.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
#: What every answer carries.
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}


def refusal(
    method: str, path: str, headers: Mapping[str, str], hosts: frozenset[str]
) -> tuple[int, str] | None:
    """Return the status and the line with which a request is refused, or None.

    Args:
        method: in upper case.
        path: of the address.
        headers: names in lower case.
        hosts: names of this server, beside `localhost` and plain addresses.
    """
    host = headers.get("host", "")
    name = hostname(host)
    if name is None or not (name == "localhost" or name in hosts or is_address(name)):
        return 421, (
            f"{host[:100]!r} is no name of this server: use its address, "
            "or start it with --allow-host NAME"
        )
    is_reading = method in ("GET", "HEAD")
    is_foreign = headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
    if is_foreign and (path.startswith("/api/") or not is_reading):
        return 403, "this request was made by a page of somebody else: open the page itself"
    if is_reading:
        return None
    length = headers.get("content-length", "0")
    if "transfer-encoding" in headers or not (length.isascii() and length.isdecimal()):
        return 411, "a request needs its Content-Length: send the body in one piece"
    if len(length) > 10 or int(length) > BODY_BYTES_MAX:
        return 413, f"a body of {length[:20]} bytes is over the limit of {BODY_BYTES_MAX}"
    return None


def hostname(host: str) -> str | None:
    """Return the name in a Host header, without the port; None if it is none.

    >>> hostname("localhost:8420"), hostname("[::1]:8420"), hostname("a b")
    ('localhost', '::1', None)
    """
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        name, port = host, ""
    if port and not (port.isascii() and port.isdecimal()):
        return None
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
        return name if is_address(name) else None
    name = name.lower().rstrip(".")
    fits = name and all(char.isascii() and (char.isalnum() or char in "-._") for char in name)
    return name if fits else None


def is_address(name: str) -> bool:
    """Whether this is an IP address.

    >>> is_address("127.0.0.1"), is_address("::1"), is_address("evil.example")
    (True, True, False)
    """
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
