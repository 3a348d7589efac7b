"""Parts of names for tests of addresses: one ask, one scope, one child, and texts that look alike."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from schemas import address
from schemas.address import (
    RowScope,
)

# Texts made of what a joining of fields could stumble over.
texts = st.text(st.sampled_from('ab:|,"[]%25A\\ 0'), max_size=6)
names = texts.filter(bool)

ASK: dict[str, Any] = {
    "org": "org",
    "scope": "play",
    "tool": "acme.verify",
    "input": {"email": "ada@example.com"},
    "auth_scope": "592ac73911dd397da1553134dd4e62016cd25d87",
    "action_version": "1",
    "window": None,
}
SCOPE: dict[str, Any] = {
    "provider": "acme",
    "base_url": "https://api.acme.test/v2",
    "secret_reference": "env:ACME_KEY",
    "account": None,
}
CHILD: dict[str, Any] = {
    "parent_run": "run",
    "parent_play": "p",
    "call_key": "k",
    "child_play": "c",
    "child_revision": "rev",
    "input": {"n": 1},
    "row_scope": RowScope("f", "0", "rk", "ns"),
}


def is_digest(name: str) -> bool:
    return len(name) == address.DIGEST_CHARS and set(name) <= set("0123456789abcdef")


def all_differ(names: list[str]) -> bool:
    return len(set(names)) == len(names)
