"""``paidonce topics``: what a system needs on Kafka, making it, and checking it.

The rules are in ``streams.broker.topics``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import typer

from streams.broker import topics
from streams.cli.options import settings_of
from streams.cli.terminal import put, say
from streams.public.publiclog import CONNECT_SECONDS, broker_errors
from streams.settings import Settings

CREATE_SECONDS = 60.0

app = typer.Typer(help="The topics of the system.", no_args_is_help=True)
_T = TypeVar("_T")


def reached(settings: Settings, work: Coroutine[Any, Any, _T], seconds: float) -> _T:
    """Run something that asks the broker, within a time."""

    async def within() -> _T:
        with broker_errors(settings.broker):
            return await asyncio.wait_for(work, seconds)

    return asyncio.run(within())


def _states(settings: Settings) -> list[topics.TopicState]:
    inspected = topics.inspect(settings.connection(), settings.app, settings.partitions, settings.topic_prefix)
    return reached(settings, inspected, CONNECT_SECONDS)


@app.command()
def plan(context: typer.Context) -> int:
    """Say what `apply` would do; changes nothing."""
    settings = settings_of(context)
    for state in _states(settings):
        if state.found is None:
            put(f"create  {state.name}  {state.expected} partitions, {settings.replication} replicas")
        else:
            put(f"{'keep' if state.right else 'WRONG'}    {state}")
    return 0


@app.command()
def apply(context: typer.Context) -> int:
    """Create what is missing; prints the names. Never changes a topic that is there."""
    settings = settings_of(context)
    applied = topics.apply(
        settings.connection(),
        settings.app,
        settings.partitions,
        settings.replication,
        settings.topic_prefix,
    )
    created = reached(settings, applied, CREATE_SECONDS)
    for name in created:
        put(name)
    say(f"{len(created)} topics created" if created else "all topics are there already")
    return 0


@app.command()
def check(context: typer.Context) -> int:
    """End with 78 and name every topic that is missing or has another partition count."""
    settings = settings_of(context)
    checked = topics.check(settings.connection(), settings.app, settings.partitions, settings.topic_prefix)
    reached(settings, checked, CONNECT_SECONDS)
    say("all topics are as they must be")
    return 0
