"""What the user gave, and the settings that follow from it: options over environment over the local broker.

With ``app`` the only place that looks at the environment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import typer

from streams.errors import ConfigurationError, Unreachable
from streams.settings import PREFIX, Settings

GLOBAL_OPTIONS = ("--broker", "--data", "--providers", "--app")
_ADDRESSES = re.compile(r"[^\s,:/]+:\d{1,5}(,[^\s,:/]+:\d{1,5})*|(\[[0-9a-fA-F:]+\]:\d{1,5},?)+")


@dataclass(frozen=True)
class Options:
    """The global options and the environment of one invocation."""

    broker: str | None
    data: Path | None
    providers: Path | None
    app: str | None
    environment: Mapping[str, str]

    def settings(self, *, find_broker: bool = True) -> Settings:
        """The settings; raises ``ConfigurationError`` naming what is wrong with them.

        With ``find_broker``, where no broker is named, the local one of the data folder is taken if it runs.
        """
        settings = Settings.from_environment(
            self.environment, broker=self.broker, data=self.data, providers=self.providers, app=self.app
        )
        if not _ADDRESSES.fullmatch(settings.broker):
            raise ConfigurationError(f"broker: {settings.broker!r} is not host:port")
        named = self.broker is not None or f"{PREFIX}BROKER" in self.environment
        if find_broker and not named and (address := _local_address(broker_folder(settings))):
            settings = settings.model_copy(update={"broker": address})
        return settings


def options_of(context: typer.Context) -> Options:
    """The options of this invocation."""
    options = context.obj
    assert isinstance(options, Options)
    return options


def settings_of(context: typer.Context) -> Settings:
    """The settings of this invocation."""
    return options_of(context).settings()


def broker_folder(settings: Settings) -> Path:
    """Where the local broker's data is, unless the user says otherwise."""
    return settings.data / "broker"


def _local_address(folder: Path) -> str | None:
    if not (folder / "broker.json").exists():
        return None
    from streams.broker.local import LocalBroker

    try:
        running = LocalBroker(folder).status()
    except Unreachable:  # installed without the extra for a local broker
        return None
    return None if running is None else running.bootstrap
