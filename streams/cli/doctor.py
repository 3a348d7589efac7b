"""``paidonce doctor``: whether everything a worker needs is there, a line each.

It looks and asks; it changes nothing and calls no provider, beyond opening a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import typer

from schemas.fetch import FETCH
from schemas.providers import Provider, Providers
from streams.broker import topics
from streams.broker.faults import known_fault
from streams.cli.options import options_of
from streams.cli.terminal import put
from streams.cli.topics import reached
from streams.errors import ConfigurationError, PaidonceError, Unreachable
from streams.public.publiclog import CONNECT_SECONDS
from streams.settings import Settings
from streams.tools.entrypoints import functions_of
from streams.userfiles import load_providers, secret_faults

DIALS_MAX = 16
FREE_BYTES_MIN = 1 << 30
CLOCK_SECONDS_MAX = 0.05


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one thing; ``code`` is the exit code that it calls for."""

    what: str
    text: str
    code: int = 0
    #: Nothing that stops a worker, but something to know.
    doubtful: bool = False

    def __str__(self) -> str:
        return f"{'FAIL' if self.code else 'warn' if self.doubtful else 'ok  '}  {self.what:<10}  {self.text}"


def doctor(context: typer.Context) -> int:
    """Check broker, topics, providers, secrets, clocks and disk; a line each."""
    options = options_of(context)
    settings = options.settings()
    findings = []
    for finding in _look(settings, options.environment):
        put(str(finding))
        findings.append(finding)
    codes = {finding.code for finding in findings}
    return next((code for code in (Unreachable.exit_code, ConfigurationError.exit_code) if code in codes), 0)


def _look(settings: Settings, environment: Mapping[str, str]) -> Iterator[Finding]:
    yield from _broker(settings)
    yield from _providers(settings, environment)
    yield _clocks()
    yield _disk(settings.data)


def _broker(settings: Settings) -> Iterator[Finding]:
    try:
        inspected = topics.inspect(settings.connection(), settings.app, settings.partitions, settings.topic_prefix)
        states = reached(settings, inspected, CONNECT_SECONDS)
        fault = reached(settings, known_fault(settings.connection()), CONNECT_SECONDS)
    except PaidonceError as error:
        yield Finding("broker", str(error), error.exit_code)
        yield Finding("topics", "not looked at, since the broker does not answer", error.exit_code)
        return
    yield Finding("broker", f"{settings.broker} answers" + (f"; {fault}" if fault else ""), doubtful=fault is not None)
    wrong = [str(state) for state in states if not state.right]
    if not wrong:
        yield Finding("topics", f"{len(states)} topics with {settings.partitions} partitions each")
    elif len(wrong) == len(states):
        yield Finding("topics", "none is there; run paidonce topics apply", ConfigurationError.exit_code)
    else:
        yield Finding("topics", f"{'; '.join(wrong)}; run paidonce topics apply", ConfigurationError.exit_code)


def _providers(settings: Settings, environment: Mapping[str, str]) -> Iterator[Finding]:
    path = settings.providers
    if path is None:
        # No fault: only a worker needs one.
        text = "no file is named (--providers or PAIDONCE_PROVIDERS); a worker without one refuses every play"
        yield Finding("providers", text)
        return
    try:
        providers = load_providers(path)
    except ConfigurationError as error:
        yield Finding("providers", str(error), error.exit_code)
        return
    yield Finding("providers", f"{path}: {', '.join(providers.tool_names()) or 'no tools'}")
    faults = secret_faults(providers, path, environment, [*providers.providers, FETCH])
    for fault in faults:
        yield Finding("secrets", fault, ConfigurationError.exit_code)
    if not faults:
        asked = sum(bool(provider.secret_references()) for provider in providers.providers.values()) + len(providers.fetch.secrets)
        yield Finding("secrets", f"{asked} set")
    for fault in functions_of(providers)[1]:
        yield Finding("tools", f"{path}: {fault}", ConfigurationError.exit_code)
    yield from asyncio.run(_dial_all(providers))


async def _dial_all(providers: Providers) -> list[Finding]:
    slots = asyncio.Semaphore(DIALS_MAX)

    async def dial(name: str, provider: Provider) -> Finding:
        async with slots:
            return await _dial(name, provider)

    return await asyncio.gather(
        *(dial(name, provider) for name, provider in providers.providers.items() if isinstance(provider, Provider))
    )


async def _dial(name: str, provider: Provider) -> Finding:
    """Open a connection and close it: no request, so nothing that could be billed."""
    host, port = provider.base_url.host or "", provider.base_url.port or 443
    try:
        connecting = asyncio.open_connection(host.strip("[]"), port)
        _, writer = await asyncio.wait_for(connecting, CONNECT_SECONDS)
    except (OSError, TimeoutError, UnicodeError) as error:  # the last by a name that nobody can resolve
        said = str(error) or f"no answer within {CONNECT_SECONDS:g} s"
        return Finding("provider", f"{name}: {host}:{port} cannot be reached: {said}", Unreachable.exit_code)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return Finding("provider", f"{name}: {host}:{port} accepts connections")


def _clocks() -> Finding:
    """Leases are judged by a clock that goes on while a machine sleeps and that nobody can set."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        text = f"{socket.gethostname()} has no CLOCK_BOOTTIME, by which leases are judged"
        return Finding("clocks", text, ConfigurationError.exit_code)
    before, monotonic = time.clock_gettime(time.CLOCK_BOOTTIME), time.monotonic()
    time.sleep(CLOCK_SECONDS_MAX)
    gone, expected = time.clock_gettime(time.CLOCK_BOOTTIME) - before, time.monotonic() - monotonic
    if abs(gone - expected) > CLOCK_SECONDS_MAX:
        text = f"CLOCK_BOOTTIME went {gone:.3f} s in {expected:.3f} s"
        return Finding("clocks", text, ConfigurationError.exit_code)
    return Finding("clocks", "CLOCK_BOOTTIME goes; the wall clock may be wrong without harm to leases")


def _disk(data: Path) -> Finding:
    there = next(folder for folder in (data.absolute(), *data.absolute().parents) if folder.exists())
    free = shutil.disk_usage(there).free
    text = f"{there}: {free / (1 << 30):,.1f} GiB free"
    if not os.access(there, os.W_OK | os.X_OK):
        return Finding("disk", f"{there} cannot be written", ConfigurationError.exit_code)
    if free < FREE_BYTES_MIN:
        return Finding("disk", f"{text}, fewer than 1", ConfigurationError.exit_code)
    return Finding("disk", text)
