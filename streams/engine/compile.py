"""Bind a play to the providers' definitions: what a run needs to know of its tools, fixed when the run is accepted.

Pure. Its result travels in ``RunOpened`` and is written into the turn record, so a later change of the providers file changes no
run that has begun: what a run asks for carries version and scope, and a worker whose file has others does not call for it
(``streams.calling.terms``).
"""

from __future__ import annotations

import msgspec

from schemas import address
from schemas.canonical import UncanonicalValue, canonical
from schemas.events import CompiledColumn, CompiledPlay
from schemas.fetch import FETCH, Fetch
from schemas.fetchsettings import FetchSettings
from schemas.plays import Column, Play
from schemas.providers import AnyProvider, AnyTool, Providers, PythonProvider
from streams.engine.budgets import shares
from streams.engine.getters import extraction_of
from streams.engine.program import TemplateError, fields_of


def lane_of(org: str, provider: str) -> str:
    """The lane that coalesces, batches and paces the calls of an organisation to a provider."""
    return f"{org}/{provider}"


def scope_of(name: str, provider: AnyProvider) -> str:
    """Auth-scope digest of a provider's tools (K3)."""
    if isinstance(provider, PythonProvider):
        references = ",".join(f"{place}={reference}" for place, reference in sorted(provider.secret_references().items()))
        return address.auth_scope_digest(
            provider=name, base_url=provider.url, secret_reference=references or None, account=provider.account
        )
    auth = provider.auth
    return address.auth_scope_digest(
        provider=name,
        base_url=provider.url,
        secret_reference=None if auth is None else auth.secret,
        account="anonymous" if auth is None else auth.account,
    )


def secret_faults(fetch: Fetch, settings: FetchSettings, place: str) -> list[str]:
    """A fault for each secret that a request names and the providers file does not."""
    known = ", ".join(settings.secrets) or "none"
    return [
        f"{place}.headers.{header}: unknown secret {use.secret!r}; known under fetch.secrets are: {known}"
        for header, use in fetch.secrets.items()
        if use.secret not in settings.secrets
    ]


def fetch_scope(fetch: Fetch, settings: FetchSettings) -> str:
    """Auth-scope digest of a request: whose secrets it carries, wherever it goes (K3)."""
    return scope_of_secrets({use.secret for use in fetch.secrets.values()}, settings)


def scope_of_secrets(names: set[str], settings: FetchSettings) -> str:
    """The same by the names of the secrets, all of which the settings know."""
    used = sorted(names)
    scopes = [[name, settings.secrets[name].secret, settings.secrets[name].account] for name in used]
    return address.auth_scope_digest(
        provider=FETCH,
        base_url=f"{FETCH}://any",
        secret_reference=canonical(scopes).decode() if scopes else None,
        account=None if scopes else "anonymous",
    )


def reuse_of(column: Column, tool: AnyTool, now_seconds: int | None) -> tuple[int | None, bool]:
    """For how long a column's results are reused: the window that ``now_seconds`` is in, and whether nothing is (K4, K8)."""
    if not tool.cacheable:
        return None, True
    seconds = tool.stale_after_seconds if column.stale_after_seconds is None else column.stale_after_seconds
    if not seconds:
        return None, seconds == 0
    assert now_seconds is not None, "a window is pinned by the moment at which the run is accepted"
    return address.window_index(now_seconds, seconds), False


def compile_play(
    play: Play, providers: Providers, org: str, now_seconds: int | None = None
) -> tuple[CompiledPlay | None, list[str]]:
    """The bound play, or ``None`` with every fault that forbids it.

    ``now_seconds`` is the moment of acceptance (Unix time), which pins the windows of results that expire (K4).
    """
    faults: list[str] = []
    columns: list[CompiledColumn] = []
    for index, column in enumerate(play.columns):
        place = f"play.columns.{index}"
        found = providers.tool(column.tool_name)
        if found is None:
            known = ", ".join(providers.tool_names()) or "none; the worker has no providers file"
            faults.append(f"{place}.tool: unknown tool {column.tool_name!r}; known are: {known}")
            continue
        unknown = [] if column.fetch is None else secret_faults(column.fetch, providers.fetch, f"{place}.fetch")
        if unknown:
            faults += unknown
            continue
        try:
            template = canonical(column.tool_input).decode()
            fields_of(column.tool_input, f"{place}.{column.input_field}")
        except TemplateError as error:
            faults.append(str(error))
            continue
        except UncanonicalValue as error:
            faults.append(f"{place}.{column.input_field}{error.path[1:]}: {error.reason}")
            continue
        provider, tool = found
        if column.receipt_wait_ms is not None and tool.receipts == "completed-cache":
            faults.append(
                f'{place}.receipt_wait_ms: {column.tool_name} has receipts = "completed-cache" in the providers file, so no '
                "request waits for another's call; leave it out"
            )
            continue
        extract = extraction_of(column)
        bound = _bound(play, column.name, column.needs, extract, template, column.tool_name, provider, tool, org)
        window, fresh = reuse_of(column, tool, now_seconds)
        if window is not None or fresh:
            bound = msgspec.structs.replace(bound, window=window, fresh=fresh)
        cached = tool.receipts == "completed-cache" and not fresh
        if cached or column.receipt_wait_ms is not None:
            bound = msgspec.structs.replace(bound, completed_cache=cached, receipt_wait_ms=column.receipt_wait_ms)
        if column.fetch is not None:
            bound = msgspec.structs.replace(bound, scope=fetch_scope(column.fetch, providers.fetch))
        columns.append(bound)
    if faults:
        return None, faults
    if play.retries_max is not None:
        budgets = shares(play.retries_max, (column.lane for column in columns))
        columns = [msgspec.structs.replace(column, retries=budgets[column.lane]) for column in columns]
    return (
        CompiledPlay(
            name=play.name,
            dataset=play.dataset_name,
            # What a run may spend on repeats changes no result: rows stand whatever it was.
            revision=address.revision(play.model_dump(mode="json", exclude={"retries_max"})),
            key_columns=play.key,
            columns=tuple(columns),
        ),
        [],
    )


def _bound(
    play: Play,
    name: str,
    needs: tuple[str, ...],
    extract: str | None,
    template: str,
    tool_name: str,
    provider: AnyProvider,
    tool: AnyTool,
    org: str,
) -> CompiledColumn:
    provider_name = tool_name.partition(".")[0]
    return CompiledColumn(
        name=name,
        tool=tool_name,
        lane=lane_of(org, provider_name),
        version=tool.version,
        scope=scope_of(provider_name, provider),
        repeat=tool.repeat,
        template=template,
        needs=needs,
        extract=extract,
        private_to=None if tool.shared else play.dataset_name,
        bucket=None if tool.batch is None else tool.batch.bucket,
        calls=calls_of(provider, tool),
    )


def calls_of(provider: AnyProvider, tool: AnyTool) -> int:
    """Requests of a tool that its provider takes at a time."""
    pace = provider.pace
    return pace.ceiling if tool.batch is None else pace.batches * tool.batch.size_max
