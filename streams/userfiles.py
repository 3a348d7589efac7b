"""Plays and providers files: read, validated, every fault named with file and field.

Reads only. Whether the rows fit the play is judged by the client, when they are read.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from schemas.fetch import FETCH
from schemas.plays import Play
from schemas.providers import Providers
from streams.errors import ConfigurationError, InputError
from streams.public.submission import faults_of
from streams.tools.secrets import resolve


def load_play(path: Path) -> Play:
    """A play; raises ``InputError`` naming file and field."""
    try:
        return Play.model_validate(_toml(path))
    except _BadFile as error:
        raise InputError(str(error)) from error
    except ValidationError as error:
        raise InputError(faults_of(error, str(path))) from error


def load_providers(path: Path) -> Providers:
    """A providers file; raises ``ConfigurationError`` naming file and field."""
    try:
        return Providers.model_validate(_toml(path))
    except _BadFile as error:
        raise ConfigurationError(str(error)) from error
    except ValidationError as error:
        raise ConfigurationError(faults_of(error, str(path))) from error


def check_tools(play: Play, play_path: Path, providers: Providers, providers_path: Path, environment: Mapping[str, str]) -> None:
    """Raise ``ConfigurationError`` naming every tool that is unknown, and secrets that are not set."""
    faults: list[str] = []
    used: dict[str, None] = {}
    for index, column in enumerate(play.columns):
        if providers.tool(column.tool_name) is None:
            known = ", ".join(providers.tool_names()) or "none"
            place = f"{play_path}: columns.{index}.tool"
            faults.append(f"{place}: unknown tool {column.tool_name!r}; known in {providers_path}: {known}")
        else:
            used[column.tool_name.partition(".")[0]] = None
    faults += secret_faults(providers, providers_path, environment, list(used))
    if faults:
        raise ConfigurationError("; ".join(faults))


def secret_faults(providers: Providers, path: Path, environment: Mapping[str, str], names: list[str]) -> list[str]:
    """What is wrong with the secrets of these providers (``fetch`` is one), never the secrets themselves."""
    faults = []
    for name in names:
        for place, reference in _references(providers, name).items():
            try:
                resolve(reference, environment)
            except ConfigurationError as error:
                faults.append(f"{path}: {place}: {error}")
    return faults


def _references(providers: Providers, name: str) -> dict[str, str]:
    """Where secrets of a provider stand in the file, and what they refer to."""
    if name == FETCH:
        return {f"fetch.secrets.{secret}.secret": entry.secret for secret, entry in providers.fetch.secrets.items()}
    references = providers.providers[name].secret_references()
    return {f"providers.{name}.{place}": reference for place, reference in references.items()}


class _BadFile(ValueError):
    """A file that is not there, or is no TOML."""


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise _BadFile(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _BadFile(f"{path}: byte {error.start + 1} is not UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise _BadFile(f"{path}: not TOML: {error}") from error
