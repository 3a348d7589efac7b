"""Names that tests may resolve: each has the addresses that the test says, in turn where it says several times; no DNS is asked."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

from aiohttp.abc import AbstractResolver, ResolveResult


class Scripted(AbstractResolver):
    """A name's addresses; where they are lists of lists, each question has the next one's answer, and the last one stays."""

    def __init__(self, names: Mapping[str, Sequence[str] | Sequence[Sequence[str]]]) -> None:
        self._names = names
        self.questions: list[str] = []

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[ResolveResult]:
        self.questions.append(host)
        if host not in self._names:
            raise OSError(None, "no such name")
        answers = self._names[host]
        now = answers[min(self.questions.count(host), len(answers)) - 1]
        addresses = [answer for answer in answers if isinstance(answer, str)] if isinstance(now, str) else now
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        """Nothing to release."""
