"""The switch that keeps models of other machines out of tests.

``LITTLEGHOST_MODEL_REQUESTS=forbid`` in the environment makes every model of this library refuse a call before anything is sent,
unless the server is on this machine. Servers on the loopback interface, which tests start themselves, are asked as ever.
"""

from __future__ import annotations

import ipaddress
import os

from littleghost.errors import ConfigurationError

__all__ = ["VARIABLE", "check_host", "is_loopback"]

VARIABLE = "LITTLEGHOST_MODEL_REQUESTS"


def check_host(host: str) -> None:
    """Return if a model may be asked at ``host``; called before each request.

    Raises:
        ConfigurationError: Requests are forbidden, or the variable has a value that says neither.
    """
    said = os.environ.get(VARIABLE, "").strip().lower()
    if said not in ("", "allow", "forbid"):
        raise ConfigurationError(f"{VARIABLE} is {said!r}; it can be allow or forbid")
    if said == "forbid" and not is_loopback(host):
        raise ConfigurationError(f"{VARIABLE}=forbid: no model is asked at {host}, only on this machine")


def is_loopback(host: str) -> bool:
    """Return whether ``host``, a name or an address, is this machine by its loopback interface.

    Source: https://www.rfc-editor.org/rfc/rfc6761#section-6.3 for ``localhost``.
    """
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
