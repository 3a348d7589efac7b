"""The one tree of errors: each class says who is at fault and what to do next.

A call that failed at a provider is no error but a value (``schemas.events.Outcome``).
"""

from __future__ import annotations

from typing import ClassVar


class PaidonceError(Exception):
    """Base of all errors of this project. ``exit_code`` is what the command line ends with."""

    exit_code: ClassVar[int] = 70


class UsageError(PaidonceError):
    """The caller asked for something that cannot be: change the request or the arguments."""

    exit_code = 2


class InputError(UsageError):
    """A file or a field in it is wrong: the message names file, line or field."""


class ConfigurationError(PaidonceError):
    """Settings, a providers file or a secret are wrong: change them, then start again."""

    exit_code = 78


class Unreachable(PaidonceError):
    """A broker or a provider does not answer: start it, or correct its address."""

    exit_code = 69


class TopicsError(ConfigurationError):
    """Topics are missing or have other partition counts than expected: run ``paidonce topics apply``."""


class StateError(PaidonceError):
    """The durable state contradicts itself: a defect of this program or a damaged data folder; never go on."""


class Fenced(PaidonceError):
    """Another worker owns this partition now: drop it, nothing else."""
