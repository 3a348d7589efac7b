"""The life of one attempt as a diagram: drawn from the engine's own fold and verdict, into ``docs/protocol.md``.

    python -m tests.attempt_diagram           write it there
    python -m tests.attempt_diagram --check   say whether it is what the engine does, and write nothing

Every order of events that can befall an attempt is folded by ``streams.engine.protocol``; an arrow is drawn where one of them
changes the verdict. ``tests/pure/test_documents.py`` fails when the diagram in the document is another one.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from schemas.events import Repeat
from schemas.states import Out, Receipt
from streams.engine import protocol
from streams.engine.protocol import Verdict

DOCUMENT: Final = Path(__file__).resolve().parent.parent / "docs" / "protocol.md"
BEGIN: Final = "<!-- drawn by python -m tests.attempt_diagram -->\n"
END: Final = "<!-- end of the drawing -->\n"

LEASE: Final = "lease"
EVENTS: Final[Mapping[str, Callable[[Receipt], object]]] = {
    "value": lambda receipt: protocol.complete(receipt, 1, 0, "value"),
    "failed": lambda receipt: protocol.end(receipt, 1, Out.FAILED),
    "retry": lambda receipt: protocol.end(receipt, 1, Out.RETRY),
    "ambiguous": lambda receipt: protocol.end(receipt, 1, Out.AMBIGUOUS),
    "unpaid": lambda receipt: protocol.end(receipt, 1, Out.UNPAID),
    "released": lambda receipt: protocol.release(receipt, 1, LEASE),
    "expired": lambda receipt: protocol.expire(receipt, 1, LEASE),
}
#: What a tool allows, in the words of the drawing; with its key and freely the verdicts are the same (tested).
KINDS: Final = {"never": Repeat.NEVER, "repeatable": Repeat.WITH_KEY}

#: From a verdict by an event to another verdict.
Arrow = tuple[str, str, str]


def arrows(repeat: Repeat) -> set[Arrow]:
    """All changes of verdict that events can bring to a claimed attempt, whatever came before them."""
    first = Receipt(repeat=repeat)
    protocol.claim(first, 1, LEASE, 1, 0, 1, "")
    found: set[Arrow] = set()
    seen: set[str] = set()
    left = [first]
    while left:
        receipt = left.pop()
        before = protocol.verdict(receipt.attempts[1], repeat)
        for name, fold in EVENTS.items():
            later = copy.deepcopy(receipt)
            fold(later)
            after = protocol.verdict(later.attempts[1], repeat)
            if after is not before:
                found.add((before.value, name, after.value))
            if (state := repr(later)) not in seen:
                seen.add(state)
                left.append(later)
    return found


def drawing() -> str:
    """The diagram, as Mermaid."""
    by_kind = {kind: arrows(repeat) for kind, repeat in KINDS.items()}
    labels: dict[tuple[str, str], dict[str, list[str]]] = {}
    for arrow in sorted(set().union(*by_kind.values()), key=lambda arrow: list(EVENTS).index(arrow[1])):
        start, event, end = arrow
        kinds = [kind for kind, drawn in by_kind.items() if arrow in drawn]
        possible = [kind for kind, drawn in by_kind.items() if start == "live" or any(start == reached for _, _, reached in drawn)]
        kind = "" if kinds == possible else kinds[0]
        labels.setdefault((start, end), {}).setdefault(kind, []).append(event)
    order = [verdict.value for verdict in Verdict]
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> live: claimed"]
    for (start, end), words in sorted(labels.items(), key=lambda edge: tuple(map(order.index, edge[0]))):
        label = "; ".join(", ".join(events) + (f" ({kind})" if kind else "") for kind, events in words.items())
        lines.append(f"    {start} --> {end}: {label}")
    return "\n".join([*lines, "```", ""])


def with_drawing(document: str) -> str:
    """The document with today's diagram between its marks."""
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + drawing() + END + after


def main(arguments: list[str]) -> int:
    """Draw it, or with ``--check`` only compare; the exit code."""
    document = DOCUMENT.read_text()
    text = with_drawing(document)
    if "--check" in arguments:
        return int(text != document)
    DOCUMENT.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
