"""What was said of operations and of whom, for tests of unknown outcomes."""

from __future__ import annotations

import json
from typing import Any

from schemas.events import (
    Event,
)
from streams.agents.runs import judged
from streams.engine.port import Outbox
from streams.kafka.inbox import Delivery

KEY = "c4" * 20


def events(outbox: Outbox, kind: type[Event]) -> list[Any]:
    return [event for queue in outbox.events.values() for event in queue if isinstance(event, kind)]


def judge(text: str | dict[str, Any], **settings: Any) -> Event:
    value = (text if isinstance(text, str) else json.dumps(text)).encode()
    (event,) = judged(Delivery("operations", 1, b"run", value, ()), None, 8, settings.get("providers"))  # type: ignore[arg-type]
    return event


ASKED = {"type": "cell_resolved", "run": "run", "row": KEY, "column": "check", "operation": "op", "who": "ann", "reason": "bill"}
