"""From the entry points of a providers file to async functions, each checked before a worker does anything.

Importing a tool runs its module: the one place where code that is not ours runs at a worker's start.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from importlib import metadata
from typing import Any, Final, NamedTuple, TypeAlias

from schemas.providers import Providers, PythonProvider
from streams.errors import ConfigurationError

GROUP: Final = "paidonce.tools"
#: Names of the types that a function may say it takes: ``ToolCall`` for one input, ``BatchCall`` for many.
SINGLE, BATCH = "ToolCall", "BatchCall"

Function: TypeAlias = Callable[[Any], Awaitable[object]]


class Functions(NamedTuple):
    """The functions of one tool."""

    single: Function
    many: Function | None


def functions_of(providers: Providers) -> tuple[dict[str, Functions], list[str]]:
    """The functions of all Python tools by ``provider.tool``, and what is wrong with the others, each fault with its place."""
    found: dict[str, Functions] = {}
    faults: list[str] = []
    for provider_name, provider in providers.providers.items():
        if not isinstance(provider, PythonProvider):
            continue
        for tool_name, tool in provider.tools.items():
            place = f"providers.{provider_name}.tools.{tool_name}"
            try:
                single = _function(f"{place}.entry_point", tool.entry_point, SINGLE)
                many = None if tool.batch is None else _function(f"{place}.batch.entry_point", tool.batch.entry_point, BATCH)
            except ConfigurationError as error:
                faults.append(str(error))
            else:
                found[f"{provider_name}.{tool_name}"] = Functions(single, many)
    return found, faults


def _function(place: str, reference: str, takes: str) -> Function:
    entry = _entry_point(place, reference)
    try:
        function = entry.load()
    except (Exception, SystemExit) as error:
        # A module may fail with anything while it is imported, and whatever it is, the worker does not start.
        raise ConfigurationError(f"{place}: {reference!r} cannot be loaded: {type(error).__name__}: {error}") from error
    fault = _fault_of(function, takes)
    if fault is not None:
        raise ConfigurationError(f"{place}: {reference!r} {fault}")
    checked: Function = function
    return checked


def _entry_point(place: str, reference: str) -> metadata.EntryPoint:
    if ":" in reference:
        return metadata.EntryPoint(reference, reference, GROUP)
    # The same function is offered twice where a package is found in two places.
    offered = {entry.value: entry for entry in metadata.entry_points(group=GROUP, name=reference)}
    match list(offered.values()):
        case [entry]:
            return entry
        case []:
            known = ", ".join(sorted(entry.name for entry in metadata.entry_points(group=GROUP))) or "none"
            raise ConfigurationError(
                f"{place}: no installed package has an entry point {reference!r} in {GROUP}; known are: {known}"
            )
        case _:
            raise ConfigurationError(f"{place}: entry point {reference!r} stands for {' and for '.join(sorted(offered))}")


def _fault_of(function: object, takes: str) -> str | None:
    """What is wrong with a function that is to be awaited with one ``takes``."""
    if not callable(function):
        return f"is no function, but {type(function).__name__}"
    if inspect.isasyncgenfunction(function):
        return "is an async generator; expected an async function that returns its result"
    # Of an object that can be called it is its class that says how.
    if not (inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)):
        return "is not an async function; declare it with `async def`, and put what blocks into asyncio.to_thread"
    signature = inspect.signature(function)
    try:
        bound = signature.bind(None)
    except TypeError as error:
        return f"has the signature {signature}, but is called with one argument, a {takes}: {error}"
    annotation = signature.parameters[next(iter(bound.arguments))].annotation
    named = str(getattr(annotation, "__name__", annotation)).rpartition(".")[2]
    if named in {SINGLE, BATCH} - {takes}:
        return f"takes a {named}, but is called with a {takes} here"
    return None
