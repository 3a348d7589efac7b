"""docker-compose.yml, for those who have Docker: it parses, and stands on no machine in particular."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from streams.broker.jars import KAFKA_VERSION

FILE = Path(__file__).parents[2] / "docker-compose.yml"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def test_it_has_the_kafka_of_the_local_broker_and_a_worker_of_this_project(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert services["kafka"]["image"] == f"apache/kafka:{KAFKA_VERSION}"
    assert services["worker"]["command"] == ["paidonce", "worker"]
    assert services["worker"]["environment"]["PAIDONCE_BROKER"] == "kafka:29092"


def test_what_is_depended_on_and_mounted_is_declared(compose: dict[str, Any]) -> None:
    services, volumes = compose["services"], compose["volumes"]
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            assert source.startswith("./") or source in volumes, f"{name}: {mount}"


def test_it_names_no_path_of_any_machine(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for mount in service.get("volumes", ()):
            assert not mount.startswith(("/", "~")), mount
    text = FILE.read_text(encoding="utf-8")
    assert not re.search(r"(/home/|/Users/|[A-Z]:\\)", text)


def test_its_ports_are_bound_to_loopback(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_settings_that_it_sets_exist(compose: dict[str, Any]) -> None:
    from streams.settings import PREFIX, Settings

    for service in compose["services"].values():
        ours = {name: str(value) for name, value in service.get("environment", {}).items() if name.startswith(PREFIX)}
        Settings.from_environment(ours)
