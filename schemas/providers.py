"""A providers file: providers and their tools, described in TOML, so that adding one over HTTP needs no code.

What a user writes; validated as a whole, with every fault named by its place in the file. Secrets stand here by reference only.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated, Final, Literal, Self, TypeAlias

from pydantic import (
    BeforeValidator,
    Field,
    HttpUrl,
    StringConstraints,
    field_validator,
    model_validator,
)

from schemas.definitions import Definition, EntryPoint, JobPath, Name, Pace, Path, SecretReference, name_fault
from schemas.events import Repeat
from schemas.fetch import FETCH, METHODS, SAFE_METHODS
from schemas.fetchsettings import FetchSettings


class Auth(Definition):
    """How a call proves who pays for it."""

    secret: SecretReference
    header: str = "Authorization"
    #: What stands before the secret in the header.
    scheme: str = "Bearer"
    #: The account that the secret belongs to; part of the receipts' identity, unlike the secret (K3).
    account: str | None = Field(default=None, min_length=1)


class BatchForm(Definition):
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
    #: Path into the input: only requests with the same value there may share a call; absent: all may.
    bucket: Path | None = None
    #: Path of one member's output inside its result; empty for the whole result.
    result: Path = ""
    #: Field of a result that tells that this member failed.
    error_field: str = "error"


class JobForm(Definition):
    """A call that the provider takes as a job: submitted once, asked for until it ends, and then fetched (P10).

    The submission is the call that is paid for; asking is free. ``{job}`` in a path stands for the job's name.
    """

    #: Path of the job's name in the answer to the submission.
    id: Annotated[Path, StringConstraints(min_length=1)] = "id"
    #: Asked with GET for the job's state.
    poll_path: JobPath
    interval_seconds: float = Field(default=2.0, gt=0, le=3600)
    #: Path of the state in that answer.
    state: Annotated[Path, StringConstraints(min_length=1)] = "status"
    done: tuple[str, ...] = Field(default=("done",), min_length=1)
    #: States in which the provider has given up and billed nothing.
    failed: tuple[str, ...] = ("failed",)
    #: States in which it still works; absent: all that are neither done nor failed.
    pending: tuple[str, ...] = ()
    #: Path of the provider's words about a failed job.
    error: Path = "error"
    #: Asked with GET for the result of a done job; absent: the answer that says *done* holds it, under the tool's ``result``.
    fetch_path: JobPath | None = None
    #: A job that has not ended by then is unknown; counted anew by whoever goes on asking after a restart.
    deadline_seconds: float = Field(default=3600.0, gt=0)

    @model_validator(mode="after")
    def _states_are_disjoint(self) -> Self:
        states = [*self.done, *self.failed, *self.pending]
        if twice := sorted({state for state in states if states.count(state) > 1}):
            raise ValueError(f"job: each state means one thing; these stand twice: {', '.join(twice)}")
        return self


class Price(Definition):
    """What a call costs. An absent price is unknown, never zero (N1)."""

    per_call: float | None = Field(default=None, ge=0)
    per_result: float | None = Field(default=None, ge=0)
    currency: str = "USD"


class Reconcile(Definition):
    """A tool's look-up by idempotency key: what became of a call whose answer was lost (U3). It is asked for free, by GET."""

    #: ``{key}`` in it becomes the key; without it the key goes into the provider's ``idempotency_header``.
    path: str
    #: Path of the word in the answer that says how the call stands.
    status: Path = "status"
    #: Words that mean: done, and the answer is here; still under way; never heard of. A 404 means the last, too.
    found: tuple[str, ...] = ("done",)
    pending: tuple[str, ...] = ("pending",)
    absent: tuple[str, ...] = ("absent",)
    #: Path of the call's own answer in the look-up's; the tool's ``result`` or ``batch`` then applies to it. With ``job`` it is the
    #: submission's answer, in which ``job.id`` names the job; that is then asked for, and has the result.
    answer: Path = "answer"
    #: What it means that the provider never heard of a call: ``unpaid`` calls again, ``unknown`` leaves it to a person.
    absent_means: Literal["unknown", "unpaid"] = "unknown"
    #: Only after this long is *never heard of* believed: the lost call itself may still be on its way.
    absent_after_seconds: float = Field(default=60.0, ge=0)
    timeout_seconds: float = Field(default=30.0, gt=0)

    @field_validator("path")
    @classmethod
    def _path_begins_with_a_slash(cls, path: str) -> str:
        if not path.startswith("/"):
            raise ValueError(f"must begin with '/', found {path!r}")
        return path


class _Terms(Definition):
    """What every tool states, however it is called."""

    version: str = "1"
    #: How the tool may be called again after an answer was lost (U1).
    repeat: Repeat = Repeat.NEVER
    price: Price = Price()
    timeout_seconds: float = Field(default=60.0, gt=0)
    #: *Leased*: equal requests share one call, and wait for it (Y1). *Completed-cache*: every request that finds no value calls
    #: under an identity of its own, nobody waits for anybody, and the first value is kept for later ones (Y2).
    receipts: Literal["leased", "completed-cache"] = "leased"
    #: How long a request waits for the same call of another run before its own cell fails (R4); absent: the worker's setting.
    max_wait_ms: int | None = Field(default=None, ge=1)
    #: Whether equal asks of different plays share one receipt (K1).
    shared: bool = True
    #: Results are reused within windows of so many seconds of Unix time, alike for all runs; 0: never; absent: for ever (K4).
    stale_after_seconds: int | None = Field(default=None, ge=0)
    #: False for reads that page through a result: they are never reused, as with ``stale_after_seconds = 0`` (K8).
    cacheable: bool = True
    #: An unsafe write: it may never be sent twice without its key (P6).
    requires_execution_fence: bool = False

    @model_validator(mode="after")
    def _fence_holds(self) -> Self:
        if self.requires_execution_fence and self.repeat is Repeat.FREELY:
            raise ValueError('requires_execution_fence forbids repeat = "freely": say "never", or "with-key"')
        if not self.cacheable and self.stale_after_seconds:
            raise ValueError("cacheable = false reuses nothing, so stale_after_seconds has no meaning; leave one of them out")
        return self

    @model_validator(mode="after")
    def _cache_has_a_meaning(self) -> Self:
        if self.receipts == "leased":
            return self
        policy = 'receipts = "completed-cache"'
        if not self.cacheable or self.stale_after_seconds == 0:
            raise ValueError(f"{policy} keeps the first value for later requests, but this tool reuses nothing; leave receipts out")
        if self.max_wait_ms is not None:
            raise ValueError(f"{policy}: no request waits for another's call, so max_wait_ms has no meaning; leave one of them out")
        if self.requires_execution_fence:
            raise ValueError(f'{policy} calls again for every request without a value: requires_execution_fence needs "leased"')
        return self


class Tool(_Terms):
    """One operation of a provider over HTTP."""

    method: Literal["GET", "POST", "PUT", "PATCH"] = "POST"
    path: str
    #: Path of the output in the answer; empty for the whole answer.
    result: Path = ""
    batch: BatchForm | None = None
    reconcile: Reconcile | None = None
    job: JobForm | None = None
    #: Limits of a request's phases (P5): until its headers are there, and from then until its body is. Absent: only
    #: ``timeout_seconds`` limits them, which always limits them together.
    headers_seconds: float | None = Field(default=None, gt=0)
    body_seconds: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _job_is_of_one(self) -> Self:
        if self.job is not None and self.batch is not None:
            raise ValueError("a tool has a batch form or a job form, not both: a job is one request's")
        return self


class Provider(Definition):
    """One provider over HTTP: where it is, how it is paid and paced, and what it offers."""

    kind: Literal["http"] = "http"
    base_url: HttpUrl
    auth: Auth | None = None
    idempotency_header: str | None = "Idempotency-Key"
    request_id_header: str = "X-Request-Id"
    #: Names of headers in which a provider wants to be told on whose behalf it is called (P1): the runs that ask, comma-separated;
    #: the receipt, or the batch of receipts; the digest of the credentials' scope. Absent: not sent.
    run_header: str | None = None
    receipt_header: str | None = None
    auth_scope_header: str | None = None
    #: Code in the body of a 409 by which the provider says that the credentials now belong to another account (P4).
    auth_scope_changed_code: str | None = None
    pace: Pace = Pace()
    tools: dict[Name, Tool] = Field(min_length=1)

    @property
    def url(self) -> str:
        """The base URL without a slash at its end."""
        return str(self.base_url).rstrip("/")

    def secret_references(self) -> dict[str, str]:
        """References of its secrets, by their place in its description."""
        return {} if self.auth is None else {"auth.secret": self.auth.secret}

    @field_validator("base_url")
    @classmethod
    def _base_url_names_a_service(cls, url: HttpUrl) -> HttpUrl:
        # It is part of the receipts' identity, and secrets hide in the rest (K3).
        if url.username or url.password or url.query is not None or url.fragment is not None:
            raise ValueError("must have neither user nor query nor fragment; a secret belongs under auth, by reference")
        if (fault := name_fault(url.host or "")) is not None:
            raise ValueError(f"no such server can be: {fault}")
        return url

    @model_validator(mode="after")
    def _key_needs_header(self) -> Self:
        for name, tool in self.tools.items():
            if tool.repeat is Repeat.WITH_KEY and not self.idempotency_header:
                raise ValueError(f'tool {name!r} has repeat = "with-key", but the provider has no idempotency_header')
            if tool.reconcile is not None and "{key}" not in tool.reconcile.path and not self.idempotency_header:
                raise ValueError(f"tool {name!r}: reconcile.path has no {{key}}, and the provider has no idempotency_header")
            if not re.match(r"^/", tool.path):
                raise ValueError(f"tool {name!r}: path must begin with '/', found {tool.path!r}")
        return self


class PythonBatch(Definition):
    """The function that takes many inputs at once, and how its results are told apart (B4)."""

    entry_point: EntryPoint
    size_max: int = Field(ge=2, le=10_000)
    window_ms: int = Field(default=250, ge=0, le=60_000)
    #: Path into the input: only requests with the same value there may share a call; absent: all may.
    bucket: Path | None = None
    #: Results are a list in the order of the inputs, or a mapping by the inputs' keys.
    match: Literal["position", "key"] = "position"


class PythonTool(_Terms):
    """One operation as an async function. Which function it is, is no part of a receipt's identity: ``version`` is."""

    entry_point: EntryPoint
    batch: PythonBatch | None = None


class PythonProvider(Definition):
    """A provider that is called by async Python functions in the worker's process."""

    kind: Literal["python"]
    #: Who pays at the provider; part of the receipts' identity (K3).
    account: str | None = Field(default=None, min_length=1)
    #: What the functions are given, by name; references here, as everywhere.
    secrets: dict[Name, SecretReference] = Field(default_factory=dict)
    pace: Pace = Pace()
    tools: dict[Name, PythonTool] = Field(min_length=1)

    @property
    def url(self) -> str:
        """What stands for a base URL in the receipts' identity: where a function sends its requests is its own matter."""
        return "python://"

    def secret_references(self) -> dict[str, str]:
        """References of its secrets, by their place in its description."""
        return {f"secrets.{name}": reference for name, reference in self.secrets.items()}

    @model_validator(mode="after")
    def _payer_is_known(self) -> Self:
        # A function may find credentials by itself. Receipts of accounts that nobody named would be shared between them (K3).
        if self.account is None and not self.secrets:
            raise ValueError('names neither account nor secrets; where no credentials are needed, say account = "anonymous"')
        return self


_KINDS: Final[dict[str, type[Provider] | type[PythonProvider]]] = {"http": Provider, "python": PythonProvider}


def _by_kind(value: object) -> object:
    """Read a provider by its ``kind``. A tagged union would put the tag into the place that a fault is reported at."""
    if isinstance(value, Provider | PythonProvider):
        return value
    kind = value.get("kind", "http") if isinstance(value, dict) else "http"
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"kind is {kind!r}; known are {', '.join(_KINDS)}")
    return _KINDS[kind].model_validate(value)


AnyProvider: TypeAlias = Provider | PythonProvider
AnyTool: TypeAlias = Tool | PythonTool


class Providers(Definition):
    """The whole file: providers by name, and what ``fetch`` may do."""

    providers: dict[Name, Annotated[AnyProvider, BeforeValidator(_by_kind)]] = Field(default_factory=dict)
    fetch: FetchSettings = FetchSettings()

    @field_validator("providers")
    @classmethod
    def _no_name_is_taken(cls, providers: dict[str, AnyProvider]) -> dict[str, AnyProvider]:
        if FETCH in providers:
            raise ValueError(f"{FETCH!r} is the name of the built-in column kind; give this provider another name")
        return providers

    @cached_property
    def _fetch(self) -> Provider:
        # To lanes, calls and receipts a fetch is a provider like any other; its address is never dialled.
        tools = {
            method.lower(): Tool(path="/", repeat=Repeat.FREELY if method in SAFE_METHODS else Repeat.NEVER) for method in METHODS
        }
        return Provider(base_url=HttpUrl("https://fetch.invalid"), idempotency_header=None, pace=self.fetch.pace, tools=tools)

    def provider(self, name: str) -> AnyProvider | None:
        """The provider of a lane or tool, the built-in one included, or ``None``."""
        return self._fetch if name == FETCH else self.providers.get(name)

    def tool(self, name: str) -> tuple[AnyProvider, AnyTool] | None:
        """Provider and tool of ``provider.tool``, or ``None``."""
        provider_name, _, tool_name = name.partition(".")
        provider = self.provider(provider_name)
        tool = None if provider is None else provider.tools.get(tool_name)
        return None if provider is None or tool is None else (provider, tool)

    def tool_names(self) -> list[str]:
        """All names that a play may use as ``tool``."""
        return [f"{provider}.{tool}" for provider, entry in self.providers.items() for tool in entry.tools]
