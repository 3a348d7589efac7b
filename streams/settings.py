"""All limits and addresses of a worker, in one frozen object that ``app`` and the command line build once.

Nothing else reads the environment. Every queue, batch, retry and wait has its limit here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, FilePath, ValidationError, model_validator

from streams.errors import ConfigurationError

PREFIX = "PAIDONCE_"


class Settings(BaseModel):
    """Settings of one worker; each can be set in the environment as ``PAIDONCE_`` + its name in capitals."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Consumer group, prefix of changelogs and of transactional ids. One name is one system.
    app: str = "paidonce"
    #: Put before every topic's name, so that several systems can share one Kafka cluster.
    topic_prefix: str = Field(default="", pattern=r"^[A-Za-z0-9._-]*$")
    #: ``host:port`` of Kafka brokers, comma-separated.
    broker: str = "127.0.0.1:9092"
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    sasl_username: str | None = None
    sasl_password: str | None = Field(default=None, repr=False)
    ssl_cafile: FilePath | None = None
    #: RocksDB databases, the journal of paid answers, and the worker's stable name.
    data: Path = Path("paidonce-data")
    #: TOML file that describes providers and their tools.
    providers: Path | None = None
    partitions: int = Field(default=8, ge=1, le=512)
    replication: int = Field(default=1, ge=1)

    lease_seconds: float = Field(default=30.0, gt=0.2)
    #: A worker that dies is noticed after this long, a clean restart under the same name at once.
    session_seconds: float = Field(default=6.0, ge=1.0)
    grace_seconds: float = Field(default=20.0, ge=0.0)
    #: A worker ends itself when no broker has answered for this long.
    broker_seconds: float = Field(default=60.0, gt=1.0)
    #: An answer that the broker has not acknowledged for this long stops new provider calls (S6) and is published again.
    publish_seconds: float = Field(default=5.0, gt=0.1)
    #: A worker whose event loop or fetcher is silent for this long ends itself.
    stall_seconds: float = Field(default=30.0, gt=1.0)

    inbox_bytes_max: int = Field(default=8 << 20, ge=1)
    turn_bytes_max: int = Field(default=2 << 20, ge=1)
    fetch_bytes_max: int = Field(default=4 << 20, ge=1 << 16)
    write_buffer_bytes: int = Field(default=96 << 20, ge=1 << 20)
    block_cache_bytes: int = Field(default=64 << 20, ge=1 << 20)

    #: Attempts of one call within a run, ambiguous ones included (P2).
    attempts_max: int = Field(default=5, ge=1)
    #: How long a request waits for a call of another run, where its tool says nothing else (R4).
    receipt_wait_ms: int = Field(default=300_000, ge=1)
    call_seconds: float = Field(default=900.0, gt=0)
    response_bytes_max: int = Field(default=64 << 20, ge=1)

    #: Settled receipts are dropped after this long, so that the same ask is paid again; 0: never.
    receipts_keep_days: float = Field(default=0.0, ge=0)
    #: Callers of settled receipts, and batches, are dropped this long after they were answered, once their runs have ended; what is
    #: kept of a run's rows beside the sheet, this long after its end.
    callers_keep_hours: float = Field(default=24.0, ge=0)
    #: How often a worker looks for what may be dropped.
    sweep_seconds: float = Field(default=3600.0, gt=0)

    #: Name of a step at which this process kills itself: tests only.
    kill_at: str | None = None
    #: How many times the step passes before the kill.
    kill_after: int = 0

    @model_validator(mode="after")
    def _sasl_is_whole(self) -> Self:
        names = ("sasl_mechanism", "sasl_username", "sasl_password")
        lacking = [PREFIX + name.upper() for name in names if getattr(self, name) is None]
        if self.security_protocol.startswith("SASL") and lacking:
            raise ValueError(f"{PREFIX}SECURITY_PROTOCOL is {self.security_protocol}, but {', '.join(lacking)} is not set")
        return self

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], **overrides: Any) -> Settings:
        """Settings from ``PAIDONCE_*`` variables, then ``overrides`` that are not ``None``.

        Raises ``ConfigurationError`` naming every unknown or invalid setting.
        """
        values: dict[str, Any] = {
            name[len(PREFIX) :].lower(): value for name, value in environment.items() if name.startswith(PREFIX)
        }
        values.update({name: value for name, value in overrides.items() if value is not None})
        try:
            return cls(**values)
        except ValidationError as error:
            faults = "; ".join(f"{PREFIX}{'.'.join(map(str, fault['loc'])).upper()}: {fault['msg']}" for fault in error.errors())
            raise ConfigurationError(f"settings: {faults}") from error

    def connection(self) -> dict[str, Any]:
        """Keyword arguments with which every aiokafka client connects."""
        options: dict[str, Any] = {"bootstrap_servers": self.broker, "security_protocol": self.security_protocol}
        if self.sasl_mechanism:
            options |= {
                "sasl_mechanism": self.sasl_mechanism,
                "sasl_plain_username": self.sasl_username,
                "sasl_plain_password": self.sasl_password,
            }
        if self.security_protocol.endswith("SSL"):
            from aiokafka.helpers import create_ssl_context

            options["ssl_context"] = create_ssl_context(cafile=str(self.ssl_cafile) if self.ssl_cafile else None)
        return options
