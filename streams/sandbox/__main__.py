"""`python -m streams.sandbox`: the sandbox as a process of its own, as the demo and the kill tests need it.

Prints one JSON line, {"url": ..., "pid": ...}, once it listens, and goes when its parent has gone.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

import msgspec

from streams.sandbox.faults import Fault, FaultKind
from streams.sandbox.server import Sandbox

PARENT_CHECK_SECONDS = 0.5


def read_fault(text: str) -> Fault:
    """Reads `kind=probability`, or a whole fault as a JSON object."""
    if text.startswith("{"):
        try:
            return msgspec.json.decode(text, type=Fault)
        except msgspec.DecodeError as fault:
            raise argparse.ArgumentTypeError(f"{text}: {fault}") from fault
    kind, _, probability = text.partition("=")
    try:
        return Fault(kind=FaultKind(kind), probability=float(probability))
    except ValueError as fault:
        kinds = ", ".join(FaultKind)
        raise argparse.ArgumentTypeError(f"{text}: expected kind=probability with kind in {kinds}") from fault


def read_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m streams.sandbox", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free port")
    parser.add_argument("--api-key", required=True)
    parser.add_argument("--bill", required=True, help="CSV file the bill is appended to")
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--rate", type=float, default=0.0, help="requests per second; 0 for no limit")
    parser.add_argument("--burst", type=float, default=0.0, help="0 means one second's worth")
    parser.add_argument("--fault", type=read_fault, action="append", default=[], dest="faults")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--parent-pid", type=int, default=None)
    return parser.parse_args(arguments)


def _is_gone(pid: int, was_parent: bool) -> bool:
    # A parent that died but was not yet reaped still answers to signals; that we were handed on shows it.
    if was_parent:
        return os.getppid() != pid
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


async def _wait_for_end(parent_pid: int | None) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, ended.set)
    was_parent = os.getppid() == parent_pid
    while not ended.is_set():
        if parent_pid is not None and _is_gone(parent_pid, was_parent):
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), PARENT_CHECK_SECONDS)


async def _serve(options: argparse.Namespace) -> None:
    sandbox = Sandbox(
        api_key=options.api_key,
        bill=options.bill,
        port=options.port,
        latency_ms=options.latency_ms,
        rate=options.rate,
        burst=options.burst,
        faults=options.faults,
        seed=options.seed,
    )
    async with sandbox:
        print(json.dumps({"url": sandbox.url, "pid": os.getpid()}), flush=True)
        await _wait_for_end(options.parent_pid)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def main() -> int:
    """Serves until told to stop or orphaned."""
    options = read_arguments()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
