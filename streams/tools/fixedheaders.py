"""The headers that all calls to a provider over HTTP have in common, checked before any call is made. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from schemas.providers import Provider
from streams.engine.compile import scope_of
from streams.errors import ConfigurationError

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e]*")
_HEADERS: Final[dict[str, str]] = {
    "Accept": "application/json",
    # Nothing but gzip: the only packing that is opened under a limit here.
    "Accept-Encoding": "gzip",
    "User-Agent": "paidonce",
}


def fixed_headers(name: str, provider: Provider, secrets: Mapping[str, str]) -> dict[str, str]:
    """The headers that all calls to a provider have in common, after a check that all of them can be sent."""
    if provider.base_url.username or provider.base_url.password:
        raise ConfigurationError(f"provider {name}: base_url holds a user or password; use auth instead")
    if provider.base_url.query or provider.base_url.fragment:
        raise ConfigurationError(f"provider {name}: base_url ends in a query or fragment; put a query into the tools' paths")
    headers = dict(_HEADERS)
    told = (provider.idempotency_header, provider.run_header, provider.receipt_header, provider.auth_scope_header)
    names = [provider.request_id_header, *(header for header in told if header)]
    if provider.auth_scope_header:
        headers[provider.auth_scope_header] = scope_of(name, provider)
    if provider.auth is not None:
        auth = provider.auth
        value = f"{auth.scheme} {secrets[name]}" if auth.scheme else secrets[name]
        if not _HEADER_VALUE.fullmatch(value):
            raise ConfigurationError(f"provider {name}: auth holds a character that no HTTP header can carry")
        names.append(auth.header)
        headers[auth.header] = value
    for header in names:
        if not _HEADER_NAME.fullmatch(header):
            raise ConfigurationError(f"provider {name}: {header!r} is no name for an HTTP header")
    return headers
