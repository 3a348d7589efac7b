"""Settings: every one from the environment, every fault named, and how a client connects."""

from __future__ import annotations

import ssl
from pathlib import Path

import certifi
import pytest
from pydantic import ValidationError

from streams.errors import ConfigurationError
from streams.settings import PREFIX, Settings


def refused(environment: dict[str, str], **overrides: object) -> str:
    """What is said about settings that cannot be."""
    with pytest.raises(ConfigurationError) as error:
        Settings.from_environment(environment, **overrides)
    return str(error.value)


# --- from the environment -----------------------------------------------------------------------------------


def test_an_empty_environment_is_enough() -> None:
    assert Settings.from_environment({}) == Settings()


def test_every_setting_is_read_from_its_variable() -> None:
    given = {
        "app": "other",
        "topic_prefix": "team-a.",
        "broker": "k1:9092,k2:9092",
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": "ann",
        "sasl_password": "secret",
        "ssl_cafile": certifi.where(),
        "data": "/var/lib/paidonce",
        "providers": "providers.toml",
        "partitions": 16,
        "replication": 3,
        "lease_seconds": 12.5,
        "session_seconds": 7.5,
        "grace_seconds": 1.5,
        "stall_seconds": 9.5,
        "broker_seconds": 107.5,
        "publish_seconds": 4.5,
        "inbox_bytes_max": 101,
        "turn_bytes_max": 102,
        "fetch_bytes_max": 100_003,
        "write_buffer_bytes": 2_000_004,
        "block_cache_bytes": 2_000_005,
        "attempts_max": 7,
        "receipt_wait_ms": 108,
        "call_seconds": 8.5,
        "response_bytes_max": 106,
        "receipts_keep_days": 30.5,
        "callers_keep_hours": 2.5,
        "sweep_seconds": 60.5,
        "kill_at": "rows:folded",
        "kill_after": 3,
    }
    assert given.keys() == Settings.model_fields.keys()
    found = Settings.from_environment({PREFIX + name.upper(): str(value) for name, value in given.items()})
    assert {name: str(value) for name, value in found.model_dump().items()} == {name: str(value) for name, value in given.items()}
    for name, value in Settings().model_dump().items():
        assert getattr(found, name) != value, f"{name} has its default: the test would not see that it is not read"


def test_variables_of_others_are_none_of_our_business() -> None:
    assert (
        Settings.from_environment({"PATH": "/bin", "KAFKA_BROKER": "x", "MY_PAIDONCE_APP": "y", "paidonce_app": "z"}) == Settings()
    )


def test_an_override_wins_and_none_is_no_override() -> None:
    environment = {"PAIDONCE_APP": "from-environment", "PAIDONCE_PARTITIONS": "4"}
    found = Settings.from_environment(environment, app="given", partitions=None, data=Path("elsewhere"))
    assert (found.app, found.partitions, found.data) == ("given", 4, Path("elsewhere"))


def test_an_override_replaces_what_would_be_invalid() -> None:
    assert Settings.from_environment({"PAIDONCE_PARTITIONS": "many"}, partitions=2).partitions == 2


# --- faults -------------------------------------------------------------------------------------------------


def test_an_unknown_setting_is_named() -> None:
    """A misspelt limit that changes nothing would be believed to hold."""
    assert refused({"PAIDONCE_LEASE_SECOND": "3"}) == "settings: PAIDONCE_LEASE_SECOND: Extra inputs are not permitted"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PARTITIONS", "0"),
        ("PARTITIONS", "513"),
        ("PARTITIONS", "eight"),
        ("PARTITIONS", ""),
        ("REPLICATION", "0"),
        ("LEASE_SECONDS", "0.2"),
        ("SESSION_SECONDS", "0.5"),
        ("GRACE_SECONDS", "-1"),
        ("STALL_SECONDS", "1"),
        ("ATTEMPTS_MAX", "0"),
        ("CALL_SECONDS", "0"),
        ("TOPIC_PREFIX", "no spaces"),
        ("TURN_BYTES_MAX", "2 MiB"),
    ],
)
def test_an_invalid_setting_is_named_by_its_variable(name: str, value: str) -> None:
    assert refused({PREFIX + name: value}).startswith(f"settings: {PREFIX}{name}: ")


@pytest.mark.parametrize("seconds", ["0", "-1", "", "0.1"])
def test_case_E1_no_claim_can_be_made_without_time_left(seconds: str) -> None:
    assert refused({"PAIDONCE_LEASE_SECONDS": seconds}).startswith("settings: PAIDONCE_LEASE_SECONDS: ")


def test_all_faults_are_named_at_once() -> None:
    text = refused({"PAIDONCE_PARTITIONS": "0", "PAIDONCE_COLOUR": "red", "PAIDONCE_APP": "fine"}, attempts_max=0)
    assert {part.split(":")[0] for part in text.removeprefix("settings: ").split("; ")} == {
        "PAIDONCE_PARTITIONS",
        "PAIDONCE_COLOUR",
        "PAIDONCE_ATTEMPTS_MAX",
    }


def test_a_fault_does_not_tell_the_value() -> None:
    """A secret under a misspelt name must not come into a log."""
    assert "hunter2" not in refused({"PAIDONCE_SASL_PASWORD": "hunter2", "PAIDONCE_PARTITIONS": "hunter2"})


def test_the_password_is_not_shown() -> None:
    assert "hunter2" not in repr(Settings(sasl_password="hunter2"))


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().partitions = 9  # type: ignore[misc]


# --- connecting ---------------------------------------------------------------------------------------------


def test_a_plain_connection_has_nothing_but_its_addresses() -> None:
    assert Settings(broker="k1:9092,k2:9092").connection() == {
        "bootstrap_servers": "k1:9092,k2:9092",
        "security_protocol": "PLAINTEXT",
    }


def test_sasl_is_passed_through() -> None:
    settings = Settings(
        security_protocol="SASL_PLAINTEXT", sasl_mechanism="SCRAM-SHA-256", sasl_username="ann", sasl_password="hunter2"
    )
    assert settings.connection() == {
        "bootstrap_servers": "127.0.0.1:9092",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "ann",
        "sasl_plain_password": "hunter2",
    }


def test_tls_checks_the_broker_against_the_given_authorities() -> None:
    options = Settings(security_protocol="SSL", ssl_cafile=Path(certifi.where())).connection()
    context = options["ssl_context"]
    assert isinstance(context, ssl.SSLContext)
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.get_ca_certs()


def test_tls_without_authorities_takes_those_of_the_system() -> None:
    context = Settings(security_protocol="SSL").connection()["ssl_context"]
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname


@pytest.mark.parametrize(
    ("setting", "others"),
    [
        ("security_protocol", {"security_protocol": "TLS"}),
        ("sasl_mechanism", {"security_protocol": "SASL_PLAINTEXT"}),
        ("sasl_username", {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}),
        ("ssl_cafile", {"security_protocol": "SSL", "ssl_cafile": "/nowhere/ca.pem"}),
    ],
)
def test_a_connection_that_cannot_be_names_its_setting(setting: str, others: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=rf"(?i){setting}"):
        Settings.from_environment({}, **others).connection()


def test_sasl_over_tls_has_both() -> None:
    options = Settings(security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_username="ann", sasl_password="p").connection()
    assert {"ssl_context", "sasl_mechanism", "sasl_plain_username", "sasl_plain_password"} < options.keys()
