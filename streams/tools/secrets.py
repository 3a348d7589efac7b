"""Secrets: from the references of a providers file to their values, and out of every text that people read.

Read once, by whoever builds the callers. A value never stands in an error, a log or an event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from schemas.providers import Provider, Providers
from streams.errors import ConfigurationError
from streams.tools.spellings import redact

#: A provider's own words in a message: enough to understand, too little to fill a log.
EXCERPT_CHARACTERS: Final = 200


def resolve(reference: str, environment: Mapping[str, str]) -> str:
    """The secret behind ``env:NAME`` or ``file:/path``, without white space around it.

    Raises ``ConfigurationError`` naming the reference, never the value, where it is unset, unreadable, empty or more than a
    header can hold.
    """
    kind, _, name = reference.partition(":")
    if kind == "env":
        found = environment.get(name)
        if found is None:
            raise ConfigurationError(f"secret {reference}: the environment has no {name}; set it for the worker")
    elif kind == "file":
        found = _read(reference, Path(name))
    else:
        raise ConfigurationError("a secret's reference is neither env:NAME nor file:/path")
    secret = found.strip()
    if not secret:
        raise ConfigurationError(f"secret {reference}: is empty")
    if not (secret.isascii() and secret.isprintable()):
        raise ConfigurationError(f"secret {reference}: holds a line break or another character that no HTTP header can carry")
    return secret


def _read(reference: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"secret {reference}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        # Its own text quotes the byte that it did not like, so it is not passed on.
        raise ConfigurationError(f"secret {reference}: is not UTF-8 text") from None


def resolve_all(providers: Providers, environment: Mapping[str, str]) -> dict[str, str]:
    """All secrets of a providers file: an HTTP provider's by its name, any other by its place in the file, which is no name.

    An answer of whoever is called may repeat any secret that the process knows, so each caller looks for all of them (R10).
    Raises ``ConfigurationError`` as `resolve` does.
    """
    found: dict[str, str] = {}
    for name, provider in providers.providers.items():
        if isinstance(provider, Provider):
            if provider.auth is not None:
                found[name] = resolve(provider.auth.secret, environment)
            continue
        for place, reference in provider.secret_references().items():
            found[f"providers.{name}.{place}"] = resolve(reference, environment)
    for name, entry in providers.fetch.secrets.items():
        found[f"fetch.secrets.{name}"] = resolve(entry.secret, environment)
    return found


def excerpt(text: str, secrets: Iterable[str]) -> str:
    """The beginning of a text from outside as one printable line without secrets, fit for a message."""
    # First hidden, then cut: the other way round would leave the half of a secret that the cut spared.
    line = " ".join(redact(text, secrets).split())
    line = "".join(character if character.isprintable() else "?" for character in line[: EXCERPT_CHARACTERS + 1])
    return line if len(line) <= EXCERPT_CHARACTERS else line[: EXCERPT_CHARACTERS - 1] + "…"
