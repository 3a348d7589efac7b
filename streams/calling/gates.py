"""Until when providers want their lanes to wait (P3), as this process knows: also of lanes that are another's for a moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Gates:
    """Pauses of lanes by name, on the dispatcher's clock; what is over is forgotten."""

    clock: Callable[[], float]
    _until: dict[str, float] = field(default_factory=dict)

    def until(self, lane: str) -> float:
        """When a lane may call again; 0 where it may."""
        return self._until.get(lane, 0.0)

    def pause(self, lane: str, seconds: float) -> float:
        """A lane waits for so long from now, or longer where that was said before; returns until when."""
        now = self.clock()
        until = max(now + seconds, self.until(lane))
        self._until = {name: end for name, end in self._until.items() if end > now} | {lane: until}
        return until
