"""What a providers file is made of: names, references to secrets, origins, paces, and the strictness of all its parts."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, HttpUrl, StringConstraints, TypeAdapter, ValidationError

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
#: ``env:NAME`` or ``file:/path``: where a worker finds a secret. The secret itself never stands in a file or an event.
SecretReference = Annotated[str, StringConstraints(pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)$")]
#: A path into JSON: ``result.items`` or ``result.items.0``; empty for the whole.
Path = Annotated[str, StringConstraints(pattern=r"^$|^[^.\s]+(\.[^.\s]+)*$")]
#: A path below the base URL with a place for a job's name: ``/v1/jobs/{job}``.
JobPath = Annotated[str, StringConstraints(pattern=r"^/[^{}]*\{job\}[^{}]*$")]
#: A name in the entry-point group ``paidonce.tools``, or ``package.module:function``.
EntryPoint = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_. -]*$|^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
]

#: Calls in flight where a provider's pace names no concurrency: batches, and all calls together (B9).
BATCHES_MAX: Final = 4
DIRECT_CALLS_MAX: Final = 50

#: Characters of one label of a name, and of a name (RFC 1035, 2.3.4). Whoever resolves longer ones fails in ways of its own.
_LABEL_MAX: Final = 63
_NAME_MAX: Final = 253

_http_url: TypeAdapter[HttpUrl] = TypeAdapter(HttpUrl)


def _origin(text: str) -> str:
    """``scheme://host:port``, as `origin_of` writes it, of a URL that is nothing but an origin."""
    # The text is not repeated: where it is no origin, a secret may stand in it.
    message = "no origin: expected for example https://api.example.com, without user, path and query"
    try:
        url = _http_url.validate_python(text)
    except ValidationError as error:
        raise ValueError(message) from error
    if url.username or url.password or url.query is not None or url.fragment is not None or url.path not in (None, "/"):
        raise ValueError(message)
    return origin_of(url.scheme, url.host or "", url.port or 0)


def origin_of(scheme: str, host: str, port: int) -> str:
    """The one text of an origin, for comparing; the port is always named."""
    return f"{scheme}://{f'[{host}]' if ':' in host and not host.startswith('[') else host}:{port}".lower()


def name_fault(host: str) -> str | None:
    """Why a host in ASCII is a name that no server can have, to be told before anybody resolves it; ``None`` for any other host."""
    name = host.removesuffix(".")
    if ":" in name:
        return None
    if len(name) > _NAME_MAX:
        return f"its host's name has {len(name):,} characters; a name has at most {_NAME_MAX}"
    labels = name.split(".")
    longest = max(labels, key=len)
    if len(longest) > _LABEL_MAX:
        return f"a part of its host's name has {len(longest)} characters; it may have at most {_LABEL_MAX}"
    return "a part of its host's name is empty" if "" in labels else None


#: Where a server is reached: scheme, host and port.
Origin = Annotated[str, AfterValidator(_origin)]


class Definition(BaseModel):
    """A part of a definition: it cannot be changed, and a field that is not known is a fault."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Pace(Definition):
    """How fast a provider may be called (G1)."""

    requests_per_second: float | None = Field(default=None, gt=0)
    burst: int = Field(default=1, ge=1)
    #: Calls in flight at once, over all workers; absent: 4 batches, and as many calls for one as make 50 in all (B9).
    concurrency: int | None = Field(default=None, ge=1, le=1000)

    @property
    def ceiling(self) -> int:
        """Calls in flight at once, batches included."""
        return self.concurrency or DIRECT_CALLS_MAX

    @property
    def batches(self) -> int:
        """Batches in flight at once."""
        return self.concurrency or BATCHES_MAX
