"""A worker process that runs the tally engine: ``python -m tests.support.tally_worker``; settings from the environment."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

from streams.settings import Settings
from streams.worker import Worker
from tests.support.tally import SPEC


async def main() -> int:
    """Run until SIGTERM."""
    settings = Settings.from_environment(os.environ)
    passes = 0

    def checkpoint(step: str) -> None:
        nonlocal passes
        if step == settings.kill_at:
            passes += 1
            if passes > settings.kill_after:
                os.kill(os.getpid(), signal.SIGKILL)

    worker = Worker(settings, [SPEC], checkpoint=checkpoint)
    worker.on_change = lambda: print("partitions", sorted(p for _, p in worker.actors), worker.recovered_records, flush=True)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, worker.stop)
    return await worker.run()


if __name__ == "__main__":
    logging.basicConfig(level=os.environ.get("LOG", "WARNING"), stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    sys.exit(asyncio.run(main()))
