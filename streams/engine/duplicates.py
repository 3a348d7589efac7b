"""Input lines that have the key of an earlier one (M5): which of them were met, so that one that comes twice counts once.

Pure. The first few stand with the row's task; further ones in records of their own, a bit each, so that neither a look nor a
change depends on how many there are.
"""

from __future__ import annotations

from schemas.beside import DUPLICATES, LINES_A_PAGE, DuplicateLines
from schemas.states import Task
from streams.engine.port import Records

#: Lines that are kept inside the task; more of them get records of their own.
INLINE_MAX = 32


def added(records: Records, name: bytes, task: Task, position: int) -> bool:
    """Write down that this line has the key of a row whose task stands under ``name``; false where that is known."""
    known = task.duplicates
    if len(known) > INLINE_MAX:
        # A task of before: all its lines stood in it.
        for line in known[INLINE_MAX:]:
            _noted(records, name, line)
        known = task.duplicates = known[:INLINE_MAX]
        records.put(name, task)
    if position in known:
        return False
    if len(known) == INLINE_MAX:
        return _noted(records, name, position)
    task.duplicates = (*known, position)
    records.put(name, task)
    return True


def dropped(records: Records, name: bytes, task: Task) -> None:
    """The task goes, and all that tells of its lines."""
    if len(task.duplicates) >= INLINE_MAX:
        for key, _ in list(records.scan(_page(name, ""), DuplicateLines)):
            records.delete(key)


def _noted(records: Records, name: bytes, position: int) -> bool:
    """Set a line's bit; false where it was set."""
    number, line = divmod(position, LINES_A_PAGE)
    byte, bit = divmod(line, 8)
    key = _page(name, str(number))
    page = records.get(key, DuplicateLines)
    if page is None:
        page = DuplicateLines(bytes(LINES_A_PAGE // 8))
    elif page.bits[byte] >> bit & 1:
        return False
    bits = bytearray(page.bits)
    bits[byte] |= 1 << bit
    page.bits = bytes(bits)
    records.put(key, page)
    return True


def _page(name: bytes, number: str) -> bytes:
    """Key of a page; with no number, what all of a task's begin with."""
    return DUPLICATES + name[1:] + b"\x00" + number.encode()
