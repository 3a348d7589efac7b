"""What the sandbox is started with, and what of it can be changed while it runs."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from streams.sandbox.faults import Fault


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changeable at run time. `rate` is requests per second, 0 for none; `burst` 0 is one second's worth.

    A job is done `job_ms` after it was submitted.
    """

    latency_ms: float = 0.0
    job_ms: float = 0.0
    rate: float = 0.0
    burst: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SandboxConfig:
    """All a sandbox is started with. Without `bill` lines are in memory only; port 0 takes a free one."""

    api_key: str
    bill: Path | None = None
    port: int = 0
    settings: Settings
    faults: tuple[Fault, ...] = ()
    seed: int = 7
