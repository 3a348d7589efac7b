"""The column kind ``fetch`` as a play writes it: one HTTP request a row, without a provider (docs/fetch.md).

What an operator allows of it stands in the providers file (``schemas.providers.FetchSettings``).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_serializer, model_validator

from schemas.canonical import normalize

#: The name under which plays, lanes and callers know the built-in kind; no provider may have it.
FETCH: Final = "fetch"
Method = Literal["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"]
#: Methods that change nothing where they arrive, so that they may be sent again (RFC 9110, 9.2.1).
SAFE_METHODS: Final[frozenset[str]] = frozenset(("GET", "HEAD", "OPTIONS"))
METHODS: Final[tuple[str, ...]] = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")
#: Headers by which a request would be cut or routed otherwise than it looks, or which are the connection's own.
_OURS: Final = frozenset(
    (
        *("host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade", "expect"),
        *("accept-encoding", "proxy-authorization", "proxy-connection"),
    )
)

HeaderName = Annotated[str, StringConstraints(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}$", to_lower=True)]
SecretName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SecretHeader(_Model):
    """A header whose value is a secret of the providers file, named and never written out."""

    secret: SecretName
    #: What stands before the secret in the header; empty for nothing.
    scheme: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z_-]{0,40}$")] = "Bearer"


class Fetch(_Model):
    """One request; URL, headers and body are templates over the row."""

    method: Method = "GET"
    url: str = Field(min_length=1)
    headers: dict[HeaderName, str | SecretHeader] = Field(default_factory=dict)
    #: Text is sent as it is, any other value as JSON; absent or null: no body.
    body: Any = None

    @model_validator(mode="after")
    def _can_be_sent(self) -> Self:
        if self.body is not None and self.method in SAFE_METHODS:
            raise ValueError(f"a {self.method} has no body; use POST, or leave body out")
        ours = sorted(_OURS.intersection(self.headers))
        if ours:
            raise ValueError(f"headers that are not a play's to set: {', '.join(ours)}")
        if not self.url.lower().startswith(("http://", "https://", "{{")):
            raise ValueError("url must begin with http://, https:// or a placeholder")
        return self

    @field_serializer("body", when_used="json")
    def _as_rows_are(self, value: Any) -> Any:
        return normalize(value)

    @property
    def tool(self) -> str:
        """Name of the tool that makes this request."""
        return f"{FETCH}.{self.method.lower()}"

    @property
    def secrets(self) -> dict[str, SecretHeader]:
        """The headers that carry secrets."""
        return {name: value for name, value in self.headers.items() if isinstance(value, SecretHeader)}

    @property
    def input(self) -> dict[str, Any]:
        """The request as a tool's input, which is what its receipt digests (F1).

        Secrets stand apart from the rendered headers, so that no row can name one.
        """
        parts: dict[str, Any] = {"method": self.method, "url": self.url}
        plain = {name: value for name, value in self.headers.items() if isinstance(value, str)}
        if plain:
            parts["headers"] = plain
        if self.secrets:
            parts["secrets"] = {name: value.model_dump() for name, value in self.secrets.items()}
        if self.body is not None:
            parts["body"] = self.body
        return parts
