"""The paid endpoints as a table: how a body is read, what an item is, whether keys are honoured.

Adding an endpoint is adding a row; the provider treats them all alike.
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from streams.sandbox.checks import email_fields, phone_fields

BATCH_ITEMS_MAX = 100


class Item(msgspec.Struct, frozen=True):
    """One thing to work for: its id as JSON text ("" for a single), what the bill shows, and the work."""

    id: str
    content: str
    work: Callable[[], bytes]


class _Email(msgspec.Struct, frozen=True):
    email: str

    def item(self, item_id: str) -> Item:
        return Item(item_id, self.email, lambda: email_fields(self.email))


class _Phone(msgspec.Struct, frozen=True):
    phone: str
    country: str | None = None

    def item(self, item_id: str) -> Item:
        content = f"{self.phone}|{self.country}" if self.country else self.phone
        return Item(item_id, content, lambda: phone_fields(self.phone, self.country))


class _EmailMember(_Email, frozen=True, kw_only=True):
    id: msgspec.Raw


class _PhoneMember(_Phone, frozen=True, kw_only=True):
    id: msgspec.Raw


class _EmailBatch(msgspec.Struct, frozen=True):
    items: list[_EmailMember]


class _PhoneBatch(msgspec.Struct, frozen=True):
    items: list[_PhoneMember]


_Body = _Email | _Phone | _EmailBatch | _PhoneBatch


class BadRequest(Exception):
    """The caller's fault: the body cannot be worked on. `status` and `code` are the answer's."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(frozen=True)
class Work:
    """A request's body, read: its items, and a digest that tells two bodies under one key apart."""

    items: list[Item]
    digest: bytes


@dataclass(frozen=True)
class Endpoint:
    """One paid path."""

    path: str
    body: type[_Body]
    batch: bool
    honours_keys: bool
    #: The work is a job: it is paid for at once, and its result is asked for later.
    job: bool = False

    def read(self, body: bytes) -> Work:
        """Decodes a body; raises BadRequest with 422 for a malformed one and 413 for too many items."""
        try:
            decoded = msgspec.json.decode(body, type=self.body)
        except (msgspec.DecodeError, UnicodeDecodeError) as fault:
            raise BadRequest(422, "malformed", str(fault)) from fault
        items = _items(decoded)
        if not items:
            raise BadRequest(422, "malformed", "items is empty: expected 1 to 100")
        if len(items) > BATCH_ITEMS_MAX:
            raise BadRequest(413, "too_many_items", f"{len(items)} items: at most {BATCH_ITEMS_MAX} in a batch")
        # What was understood rather than the bytes, so that white space or a new field order is no conflict.
        understood = "\0".join([self.path, *(f"{item.id}\1{item.content}" for item in items)])
        return Work(items, blake2b(understood.encode(), digest_size=16).digest())

    def answer(self, items: list[Item], outcomes: list[bytes]) -> bytes:
        """Joins the items' outcomes (JSON fields after the opening brace) into the response body."""
        if not self.batch:
            return b"{" + outcomes[0]
        parts = [b'{"id":%s,%s' % (item.id.encode(), done) for item, done in zip(items, outcomes, strict=True)]
        return b'{"results":[' + b",".join(parts) + b"]}"


def _items(body: _Body) -> list[Item]:
    match body:
        case _EmailBatch() | _PhoneBatch():
            # Raw points into the request's buffer; text of its own lets that buffer go.
            return [member.item(bytes(member.id).decode()) for member in body.items]
        case _Email() | _Phone():
            return [body.item("")]


def service_of(path: str) -> str:
    """`email` or `phone`: one item asked for singly and in a batch is the same item on the bill."""
    return path.split("/")[2]


ENDPOINTS = {
    endpoint.path: endpoint
    for endpoint in (
        Endpoint("/v1/email/check", _Email, batch=False, honours_keys=True),
        Endpoint("/v1/email/jobs", _Email, batch=False, honours_keys=False, job=True),
        Endpoint("/v1/email/check/batch", _EmailBatch, batch=True, honours_keys=True),
        Endpoint("/v1/phone/check", _Phone, batch=False, honours_keys=False),
        Endpoint("/v1/phone/check/batch", _PhoneBatch, batch=True, honours_keys=False),
    )
}
