"""A worker process that runs the tally engine: ``python -m tests.support.tally_worker``; settings from the environment.

``kill_at`` names a step at which it kills itself, or, as ``pause:STEP``, stops itself as a SIGSTOP from outside would.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys

from streams.settings import Settings
from streams.worker import Worker
from tests.support.tally import SOURCES, SPEC

PAUSE = "pause:"


async def main() -> int:
    """Run until SIGTERM."""
    settings = Settings.from_environment(os.environ)
    wanted = settings.kill_at or ""
    number = signal.SIGSTOP if wanted.startswith(PAUSE) else signal.SIGKILL
    passes = 0

    def checkpoint(step: str) -> None:
        nonlocal passes
        if step == wanted.removeprefix(PAUSE):
            passes += 1
            if passes == settings.kill_after + 1:
                os.kill(os.getpid(), number)

    worker = Worker(settings, [SPEC], checkpoint=checkpoint)

    def report() -> None:
        placed = worker.app.consumer.assignment() if worker.actors else set()
        state = {
            "partitions": sorted(partition for _, partition in worker.actors),
            "recovered": worker.recovered_records,
            "assigned": {
                topic: sorted(tp.partition for tp in placed if tp.topic == settings.topic_prefix + topic) for topic in SOURCES
            },
        }
        print("state", json.dumps(state), flush=True)

    worker.on_change = report
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    return await worker.run()


if __name__ == "__main__":
    logging.basicConfig(level=os.environ.get("LOG", "WARNING"), stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    sys.exit(asyncio.run(main()))
