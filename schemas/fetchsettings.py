"""What an operator allows and forbids the column kind ``fetch``, as it stands in the providers file."""

from __future__ import annotations

import re
from typing import Self

from pydantic import Field, model_validator

from schemas.definitions import Definition, Name, Origin, Pace, SecretReference

_LOOPBACK = re.compile(r"http://(127(\.[0-9]+){3}|\[::1\]|localhost):")


class FetchSecret(Definition):
    """A secret that plays may put into a header of a ``fetch``, and the only origins that it goes to (F5)."""

    secret: SecretReference
    origins: tuple[Origin, ...] = Field(min_length=1)
    #: The account that the secret belongs to; part of the receipts' identity, unlike the secret (K3).
    account: str | None = Field(default=None, min_length=1)


class FetchSettings(Definition):
    """What an operator allows and forbids the column kind ``fetch``."""

    #: Origins beyond the public internet, as ``http://10.0.0.5:8080``; everything else there is refused (F4).
    allow: tuple[Origin, ...] = ()
    secrets: dict[Name, FetchSecret] = Field(default_factory=dict)
    #: For all fetches of an organisation together, whichever servers they go to.
    pace: Pace = Pace(requests_per_second=50, burst=10, concurrency=32)
    #: Limits of a request: until its headers are there, from then until its body is, and of all with tries and redirects (F2).
    headers_seconds: float = Field(default=30.0, gt=0, le=600)
    body_seconds: float = Field(default=30.0, gt=0, le=600)
    total_seconds: float = Field(default=120.0, gt=0, le=600)
    #: Largest body that is kept, once decoded; a receipt has 8 MB in all.
    body_bytes_max: int = Field(default=2 << 20, ge=1, le=5 << 20)

    @model_validator(mode="after")
    def _secrets_stay_private(self) -> Self:
        for name, entry in self.secrets.items():
            for origin in entry.origins:
                if not (origin.startswith("https:") or origin in self.allow or _LOOPBACK.match(origin)):
                    raise ValueError(
                        f"secret {name!r} may not go to {origin}: secrets are sent over TLS; use https, or put it into allow"
                    )
        return self
