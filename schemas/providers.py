"""A providers file: HTTP providers and their tools, described in TOML, so that adding one needs no code.

What a user writes; validated as a whole, with every fault named by its place in the file. Secrets stand here by reference only.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, HttpUrl, StringConstraints, field_validator, model_validator

from schemas.events import Repeat

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
#: ``env:NAME`` or ``file:/path``: where a worker finds a secret. The secret itself never stands in a file or an event.
SecretReference = Annotated[str, StringConstraints(pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)$")]
#: A path into JSON: ``result.items`` or ``result.items.0``; empty for the whole.
Path = Annotated[str, StringConstraints(pattern=r"^$|^[^.\s]+(\.[^.\s]+)*$")]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Auth(_Model):
    """How a call proves who pays for it."""

    secret: SecretReference
    header: str = "Authorization"
    #: What stands before the secret in the header.
    scheme: str = "Bearer"
    #: The account that the secret belongs to; part of the receipts' identity, unlike the secret (K3).
    account: str | None = Field(default=None, min_length=1)


class Pace(_Model):
    """How fast a provider may be called (G1)."""

    requests_per_second: float | None = Field(default=None, gt=0)
    burst: int = Field(default=1, ge=1)
    #: Calls in flight at once, over all workers.
    concurrency: int = Field(default=4, ge=1, le=1000)


class BatchForm(_Model):
    """How many requests become one call, and one answer becomes many results (B4)."""

    path: str | None = None
    size_max: int = Field(ge=2, le=10_000)
    window_ms: int = Field(default=250, ge=0, le=60_000)
    #: Path of the list of inputs in the call's body.
    list_field: Path = "items"
    #: Path of the list of results in the answer.
    result_list: Path = "results"
    #: Field that carries a member's correlation key in both lists; absent: results are matched by position.
    match_key: str | None = None
    #: Path of one member's output inside its result; empty for the whole result.
    result: Path = ""
    #: Field of a result that tells that this member failed.
    error_field: str = "error"


class Price(_Model):
    """What a call costs. An absent price is unknown, never zero (N1)."""

    per_call: float | None = Field(default=None, ge=0)
    per_result: float | None = Field(default=None, ge=0)
    currency: str = "USD"


class Tool(_Model):
    """One operation of a provider."""

    method: Literal["GET", "POST", "PUT", "PATCH"] = "POST"
    path: str
    version: str = "1"
    #: How the tool may be called again after an answer was lost (U1).
    repeat: Repeat = Repeat.NEVER
    #: Path of the output in the answer; empty for the whole answer.
    result: Path = ""
    batch: BatchForm | None = None
    price: Price = Price()
    timeout_seconds: float = Field(default=60.0, gt=0)
    #: Whether equal asks of different plays share one receipt (K1).
    shared: bool = True


class Provider(_Model):
    """One provider: where it is, how it is paid and paced, and what it offers."""

    base_url: HttpUrl
    auth: Auth | None = None
    idempotency_header: str | None = "Idempotency-Key"
    request_id_header: str = "X-Request-Id"
    pace: Pace = Pace()
    tools: dict[Name, Tool] = Field(min_length=1)

    @property
    def url(self) -> str:
        """The base URL without a slash at its end."""
        return str(self.base_url).rstrip("/")

    @field_validator("base_url")
    @classmethod
    def _base_url_names_a_service(cls, url: HttpUrl) -> HttpUrl:
        # It is part of the receipts' identity, and secrets hide in the rest (K3).
        if url.username or url.password or url.query is not None or url.fragment is not None:
            raise ValueError("must have neither user nor query nor fragment; a secret belongs under auth, by reference")
        return url

    @model_validator(mode="after")
    def _key_needs_header(self) -> Self:
        for name, tool in self.tools.items():
            if tool.repeat is Repeat.WITH_KEY and not self.idempotency_header:
                raise ValueError(f'tool {name!r} has repeat = "with-key", but the provider has no idempotency_header')
            if not re.match(r"^/", tool.path):
                raise ValueError(f"tool {name!r}: path must begin with '/', found {tool.path!r}")
        return self


class Providers(_Model):
    """The whole file: providers by name."""

    providers: dict[Name, Provider] = Field(default_factory=dict)

    def tool(self, name: str) -> tuple[Provider, Tool] | None:
        """Provider and tool of ``provider.tool``, or ``None``."""
        provider_name, _, tool_name = name.partition(".")
        provider = self.providers.get(provider_name)
        tool = None if provider is None else provider.tools.get(tool_name)
        return None if provider is None or tool is None else (provider, tool)

    def tool_names(self) -> list[str]:
        """All names that a play may use."""
        return [f"{provider}.{tool}" for provider, entry in self.providers.items() for tool in entry.tools]
