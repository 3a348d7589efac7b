"""A worker's data folder: whose it is, and what a kill may leave in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.datafolder import DataFolder
from streams.errors import ConfigurationError


def test_a_folder_is_one_workers_at_a_time(tmp_path: Path) -> None:
    first, second = DataFolder(tmp_path / "w"), DataFolder(tmp_path / "w")
    first.lock()
    with pytest.raises(ConfigurationError, match=r"data folder .*/w is in use by another worker"):
        second.lock()
    first.release()
    second.lock()
    second.release()


def test_a_folder_is_one_systems_for_life_and_a_kill_in_the_middle_of_claiming_it_claims_nothing(tmp_path: Path) -> None:
    """It was written in place: a kill in between left an empty file, and every later start was refused."""
    (tmp_path / "belongs-to.4711").write_text("")
    DataFolder(tmp_path).claim("mine on cluster A")
    DataFolder(tmp_path).claim("mine on cluster A")
    with pytest.raises(ConfigurationError, match="belongs to mine on cluster A, this worker to mine on cluster B"):
        DataFolder(tmp_path).claim("mine on cluster B")


def test_the_name_of_a_worker_stays(tmp_path: Path) -> None:
    name = DataFolder(tmp_path).instance_id()
    assert name.startswith("worker-")
    assert DataFolder(tmp_path).instance_id() == name
