"""``paidonce worker``: one worker in this process, until it is told to stop.

Only starts what ``streams.app`` builds.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from typing import Annotated

import typer

from streams.cli.options import settings_of

PARENT_CHECK_SECONDS = 0.5
ORPHAN_GRACE_SECONDS = 30.0


def worker(
    context: typer.Context,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log what libraries say, too.")] = False,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
) -> int:
    """Run a worker until SIGTERM or Ctrl-C; several may run, each with its own --data."""
    settings = settings_of(context)
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.DEBUG if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("streams").setLevel(logging.DEBUG if verbose else logging.INFO)
    logging.getLogger("aiokafka").setLevel(logging.NOTSET)
    if with_parent:
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    # Here, because it brings Faust and RocksDB, which no other command should wait for.
    from streams.app import run_worker

    return run_worker(settings)


def _end_with(parent: int) -> None:
    """Stop once the parent has gone: nobody else would, after a SIGKILL of the demo."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_GRACE_SECONDS)
    os._exit(1)
