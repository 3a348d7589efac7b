"""A worker that opens partitions, starts and stops, without a broker: what ends it, and what is of no account."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streams.errors import PaidonceError, StateError, Unreachable
from streams.settings import Settings
from streams.worker import Worker

AHEAD = StateError("a store is ahead of its changelog")


class Opening(Worker):
    """A worker whose partitions cannot be opened; ``meanwhile`` happens before that is known."""

    def meanwhile(self) -> None:
        """What else happens."""

    async def _open_owned(self, *_args: Any) -> None:
        self.meanwhile()
        raise AHEAD


def opening(tmp_path: Path) -> Opening:
    worker = Opening(Settings(data=tmp_path), [])
    app: Any = SimpleNamespace(consumer_generation_id=1, consumer=SimpleNamespace(flow_active=True))
    worker.app = app
    return worker


async def test_S1_what_goes_wrong_while_partitions_are_taken_away_ends_no_worker(tmp_path: Path) -> None:
    """S1: any error of ours ended it, so a rebalance in the middle of a recovery did, with the advice to remove its data."""
    worker = opening(tmp_path)

    def rebalance() -> None:
        worker.app.consumer_generation_id += 1

    worker.meanwhile = rebalance  # type: ignore[method-assign]
    await worker._open("receipts", {0})
    assert worker.failure is None
    assert not worker._stop.is_set()


async def test_S1_what_goes_wrong_while_partitions_are_ours_ends_the_worker(tmp_path: Path) -> None:
    worker = opening(tmp_path)
    await worker._open("receipts", {0})
    assert worker.failure is AHEAD
    assert worker._stop.is_set()


async def test_L7_an_app_that_could_not_start_is_stopped_before_the_folder_is_free(tmp_path: Path) -> None:
    """Its actors went on with their tables, while the next worker could have the folder already."""
    steps: list[str] = []

    class App:
        async def start(self) -> None:
            steps.append("start")
            raise Unreachable("the broker went just now")

        async def stop(self) -> None:
            steps.append("stop")

    worker = Worker(Settings(data=tmp_path), [])
    app: Any = App()
    worker.app = app
    with pytest.raises(PaidonceError, match="went just now"):
        await worker._live()
    assert steps == ["start", "stop"]
