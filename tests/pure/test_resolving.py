"""Names that rows bring are resolved in threads of their own (F4): slow name servers hold up nobody but other fetches."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from streams.tools.dialing import Dialing
from streams.tools.resolving import THREADS, OwnThreads

FOUND: list[Any] = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.215.14", 443))]


class Watched(ThreadPoolExecutor):
    """The loop's own threads, and how often they were used."""

    used = 0

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        self.used += 1
        return super().submit(*args, **kwargs)


class Slow:
    """Name servers that answer when the test says so."""

    def __init__(self) -> None:
        self.answer = threading.Event()
        self.asked: list[str] = []

    def __call__(self, host: str, port: int, **_how: Any) -> list[Any]:
        self.asked.append(host)
        assert self.answer.wait(30)
        return FOUND


async def test_F4_a_fetch_resolves_names_without_the_loops_own_threads() -> None:
    """Six names with slow servers, and neither a broker nor a provider could be reached: the same threads resolved all."""
    own = Watched(1)
    asyncio.get_running_loop().set_default_executor(own)
    resolver = Dialing(why_not=lambda _: None).resolving()
    (found,) = await resolver.resolve("127.0.0.1", 443)
    await resolver.close()
    assert (found["host"], found["port"], found["family"]) == ("127.0.0.1", 443, socket.AF_INET)
    assert own.used == 0


async def test_F4_slow_name_servers_hold_up_no_other_names_and_what_waits_is_bounded() -> None:
    slow = Slow()
    resolver = OwnThreads(slow, waiting_max=THREADS + 1)
    asking = [asyncio.create_task(resolver.resolve(f"slow{number}.test", 443)) for number in range(THREADS + 1)]
    await asyncio.sleep(0)
    with pytest.raises(OSError, match="other names are being resolved"):
        await resolver.resolve("one-more.test", 443)
    assert await asyncio.get_running_loop().getaddrinfo("127.0.0.1", 443)
    assert len(slow.asked) <= THREADS
    slow.answer.set()
    assert [found[0]["host"] for found in await asyncio.gather(*asking)] == ["93.184.215.14"] * (THREADS + 1)
    await resolver.resolve("again.test", 443)
    await resolver.close()


async def test_F4_a_name_without_an_address_in_time_has_none() -> None:
    slow = Slow()
    resolver = OwnThreads(slow, seconds_max=0.05)
    with pytest.raises(OSError, match="no address within"):
        await resolver.resolve("slow.test", 443)
    slow.answer.set()
    await resolver.close()


async def test_F4_a_name_that_does_not_exist_is_told_as_the_system_tells_it() -> None:
    def none(*_where: Any, **_how: Any) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    resolver = OwnThreads(none)
    with pytest.raises(socket.gaierror, match="not known"):
        await resolver.resolve("nowhere.test", 443)
    await resolver.close()
