"""Records that stand beside a receipt or a row's task, so that those stay small however often they are met again.

Part of ``states``, which knows them by their prefixes. This module holds no behaviour.
"""

from __future__ import annotations

from typing import Final

import msgspec

#: Input lines that one ``DuplicateLines`` tells of.
LINES_A_PAGE: Final = 1024


class DuplicateLines(msgspec.Struct, array_like=True):
    """Which of ``LINES_A_PAGE`` consecutive input lines have the key of one row (M5): a bit each, the lowest of a byte first.

    Under the run, the row's key and the page's number, which is that of its first line divided by ``LINES_A_PAGE``.
    """

    bits: bytes


class LastAnswer(msgspec.Struct, array_like=True):
    """When the callers of a receipt were answered last, as far as a sweep knows, and where the index has it; in Unix milliseconds.

    There is one where the receipt stands among those that wait for the day on which receipts themselves go.
    """

    at_ms: int
    #: Time of its one entry there.
    indexed_ms: int


LAST_ANSWER: Final = b"l"
DUPLICATES: Final = b"m"
