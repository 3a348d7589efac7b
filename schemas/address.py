"""Names made from what they name: receipt keys (K1), auth scopes (K3), idempotency keys (K5, K6), ids (K7).

Everybody who holds the same facts gets the same name, in any process, at any time; so nothing here reads a
clock or draws a random number, and no secret may come in. Changing one byte of a preimage orphans every
receipt ever stored: the golden values in the tests guard that.

Every digest is BLAKE2b of 20 bytes, written as 40 hex digits, over the canonical JSON array `[kind, field,
...]`. The kind keeps the sorts of names apart, and JSON keeps the fields apart, so no two different tuples of
fields share a preimage.
"""

import hashlib
import struct
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

from schemas.canonical import canonical

DIGEST_BYTES = 20
DIGEST_CHARS = 2 * DIGEST_BYTES
BATCH_PREFIX = "batch:"
_KEYS_CACHED = 16_384
_DATASETS_CACHED = 256
_PORTS = {"http": 80, "https": 443}


class Unaddressable(ValueError):
    """A name cannot be made, because the fact `field` is missing or not fit; the caller must supply it."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class RowScope(NamedTuple):
    """The row on whose behalf a child run is started (K7)."""

    field: str
    row_id: str
    row_key: str
    namespace: str


class ReceiptAddresser:
    """Makes the receipt keys of one tool of one run: what is constant is digested once, here.

    Fields as in `receipt_key`. Raises Unaddressable for an empty one.
    """

    __slots__ = ("_start",)

    def __init__(
        self,
        *,
        org: str,
        scope: str | None,
        tool: str,
        auth_scope: str,
        action_version: str,
        window: int | None,
    ) -> None:
        _require(org=org, tool=tool, auth_scope=auth_scope, action_version=action_version)
        if scope == "":
            raise Unaddressable("scope", "empty; a shared tool has None, any other the scope of its play")
        constant = canonical(["receipt", org, scope, tool, auth_scope, action_version, window])
        self._start = _blake(constant[:-1] + b",")

    def key(self, canonical_input: bytes) -> str:
        """Give the receipt key of an input that `canonical` has written; 40 hex digits."""
        state = self._start.copy()
        state.update(canonical_input + b"]")
        return state.hexdigest()


def receipt_key(
    *,
    org: str,
    scope: str | None,
    tool: str,
    input: object,  # the word for it everywhere; nothing here reads standard input
    auth_scope: str,
    action_version: str,
    window: int | None,
) -> str:
    """Give the content address of a call's outcome, made of what was asked and never of who asked (K1).

    scope: the play's scope, None for a tool that plays share. input: a value, or bytes that `canonical` has
    written. auth_scope: of `auth_scope_digest`. window: of `window_index`, pinned once per run. 40 hex
    digits. Raises Unaddressable for an empty field and UncanonicalValue for an input that JSON cannot carry.
    Use ReceiptAddresser for many inputs.
    """
    text = input if isinstance(input, bytes) else canonical(input)
    return ReceiptAddresser(
        org=org, scope=scope, tool=tool, auth_scope=auth_scope, action_version=action_version, window=window
    ).key(text)


def fresh_receipt_key(receipt: str, call: str) -> str:
    """Name the receipt of one call that reuses nothing: by what is asked and by the call that asks (K8, P7).

    A replay of the call finds it again, and no other call ever does. 40 hex digits.
    """
    return _digest("fresh-receipt", receipt, call)


def auth_scope_digest(*, provider: str, base_url: str, secret_reference: str | None, account: str | None) -> str:
    """Name the credentials that a tool would use, never the secret: a rotated secret keeps the name (K3).

    secret_reference: where the secret is kept (`env:ACME_KEY`), not what it is. account: the tenant at the
    provider, where it is known. One of the two must be there; a provider that wants no credentials says so by
    an account such as `anonymous`. The base URL counts with its scheme and host in lower case and without
    default port and closing slash. Raises Unaddressable when the scope is unknown, or the base URL could hold
    a secret.
    """
    _require(provider=provider)
    if not secret_reference and not account:
        raise Unaddressable("auth_scope", f"unknown: provider {provider!r} names neither secret nor account")
    for field, text in (("secret_reference", secret_reference), ("account", account)):
        if text == "":
            raise Unaddressable(field, "empty; leave it out instead")
    return _digest("auth-scope", provider, _service(base_url), secret_reference, account)


def window_index(epoch_seconds: int, stale_after_seconds: int | None) -> int | None:
    """Give the index of the staleness window that an instant is in; None for results that never expire (K4).

    A result expires by the key changing with the window. Raises Unaddressable below 1: with `0` a call is
    always fresh and has no receipt, so it has no window either.
    """
    if stale_after_seconds is None:
        return None
    if stale_after_seconds < 1:
        raise Unaddressable("stale_after_seconds", f"{stale_after_seconds}; expected 1 or more (0 has no receipt)")
    return epoch_seconds // stale_after_seconds


def provider_key(receipt: str, epoch: int, op: int, *, invocation: tuple[str, str] | None = None) -> str:
    """Give the idempotency key that a provider sees for one operation of a receipt (K5; protocol.md).

    epoch: refreshes asked for before. op: the number of the operation, the same on every redelivery and
    reclaim as long as a call under it has no definite answer. invocation: of a forced call, which is its run
    and call, or (`refresh`, refresh id) where one demand serves many calls; else None. 40 hex digits.
    """
    if invocation is None and receipt.isalnum() and receipt.isascii():
        # The same canonical text, written out: every member of every call needs one.
        return _blake(f'["provider","{receipt}",{epoch:d},{op:d},null,null]'.encode()).hexdigest()
    run, call = (None, None) if invocation is None else invocation
    return _digest("provider", receipt, epoch, op, run, call)


def batch_key(operation: str, members: Sequence[str]) -> str:
    """Name a batch by its operation and its members' receipt keys in order (K6): `batch:`, 40 hex digits."""
    return BATCH_PREFIX + _digest("batch", operation, _some(members))


def batch_provider_key(batch_key: str, member_provider_keys: Sequence[str], payload_digest: str) -> str:
    """Give the idempotency key of a batch's call, of its name, its members' keys and its payload (K6)."""
    return _digest("batch-provider", batch_key, _some(member_provider_keys), payload_digest)


def payload_digest(payload: bytes) -> str:
    """Digest the bytes of a provider call's payload (K6); 40 hex digits."""
    return _blake(b'["payload"]' + payload).hexdigest()


def child_run_id(
    *,
    parent_run: str,
    parent_play: str,
    call_key: str,
    child_play: str,
    child_revision: str,
    input: object,  # the word for it everywhere
    row_scope: RowScope | None,
) -> str:
    """Name a child run by its place in the parent and its task, so that a replay names the same one (K7).

    child_revision: of `revision`. row_scope: the row that asks, None for a child of the run itself. 40 hex
    digits.
    """
    scope = None if row_scope is None else list(row_scope)
    return _digest("child-run", parent_run, parent_play, call_key, child_play, child_revision, input, scope)


def revision(artifact: object) -> str:
    """Digest a play's artifact, its compiled definition as a JSON value (K7); 40 hex digits."""
    return _digest("revision", artifact)


def request_id(idempotency_key: str) -> str:
    """Give the request id that a provider sees beside its idempotency key (K7, P1); 40 hex digits."""
    if idempotency_key.isalnum() and idempotency_key.isascii():
        return _blake(f'["request","{idempotency_key}"]'.encode()).hexdigest()
    return _digest("request", idempotency_key)


def request_id_without_receipt(run: str, tool: str, call: str, attempt: int) -> str:
    """Give the request id, and operation identity, of a call that has no receipt (K7, P7); 40 hex digits."""
    return _digest("request-without-receipt", run, tool, call, attempt)


def call_id(run: str, position: int, column: str) -> str:
    """Name the call of one cell, `run:position:column`, the same on every replay and redelivery.

    position: of the row in the run's input, from 0. `%` and `:` in the run id are written `%25` and `%3A`, so
    that the first two colons are always ours and no two cells share a name. Raises Unaddressable for a
    negative position.
    """
    if position < 0:
        raise Unaddressable("position", f"{position}; expected 0 or more")
    if ":" in run or "%" in run:
        run = run.replace("%", "%25").replace(":", "%3A")
    return f"{run}:{position}:{column}"


def refresh_id(*, run: str, call: str | None = None, number: int = 0) -> str:
    """Name one demand for a fresh outcome, whose order of first appearance makes the epochs (protocol.md).

    Without a call it is the demand of a whole forced run, which its rows share. With one it is that call's
    own, and number (1, 2, ...) tells its repeats after repairable failures apart. 40 hex digits.
    """
    return _digest("refresh", run, call, number)


def row_key(dataset: str, key_columns: Sequence[str], row: Mapping[str, object]) -> str:
    """Give a row's identity in its dataset: digest of its key columns, or of the whole row if there are none.

    The key columns' names count, their order does not; text `1` and number 1 differ. 40 hex digits. Raises
    Unaddressable with the name of a key column that the row lacks or has null, and UncanonicalValue with the
    path of a value that JSON lacks.
    """
    if not key_columns:
        return _digest_of("row", dataset, canonical(dict(row)))
    explicit: dict[str, object] = {}
    for column in key_columns:
        value = row.get(column)
        if value is None:
            what = "null" if column in row else "missing"
            raise Unaddressable(column, f"{what} in the row, though it is a key column of dataset {dataset!r}")
        explicit[column] = value
    return _digest_of("row-key", dataset, canonical(explicit))


def partition_of(key: bytes | str, partitions: int) -> int:
    """Give the partition that Kafka's default partitioner picks for a key, text taken as UTF-8.

    For public topics, where other clients must agree; internal routing has `spread`. Source: murmur2 in
    org.apache.kafka.common.utils.Utils and BuiltInPartitioner. Raises Unaddressable below one partition.
    """
    return (_murmur2(key.encode() if isinstance(key, str) else key) & 0x7FFF_FFFF) % _at_least_one(partitions)


def spread(key: str, partitions: int) -> int:
    """Pick a partition for internal routing by CRC-32 of the key's UTF-8: fast, and alike in any process."""
    return zlib.crc32(key.encode()) % _at_least_one(partitions)


def _digest(kind: str, *fields: object) -> str:
    return _blake(canonical([kind, *fields])).hexdigest()


def _digest_of(kind: str, name: str, canonical_value: bytes) -> str:
    """Digest `[kind, name, value]` of a canonical value, whose refusals so keep the caller's own paths."""
    return _blake(_opening(kind, name) + canonical_value + b"]").hexdigest()


@lru_cache(maxsize=_DATASETS_CACHED)
def _opening(kind: str, name: str) -> bytes:
    return canonical([kind, name])[:-1] + b","


def _blake(data: bytes) -> "hashlib.blake2b":
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES)


def _require(**fields: str) -> None:
    for field, text in fields.items():
        if not text:
            raise Unaddressable(field, "empty, though it is a part of the name")


def _some(members: Sequence[str]) -> list[str]:
    if not members:
        raise Unaddressable("members", "a batch has at least one")
    return list(members)


def _at_least_one(partitions: int) -> int:
    if partitions < 1:
        raise Unaddressable("partitions", f"{partitions}; expected 1 or more")
    return partitions


def _service(base_url: str) -> str:
    """Give the one form of a base URL. Messages do not repeat the URL: it may hold a secret."""
    try:
        parts = urlsplit(base_url)
        port = parts.port
    except ValueError:
        raise Unaddressable("base_url", "is no URL; expected for example https://api.example.com/v2") from None
    if not parts.scheme or (parts.scheme in _PORTS and not parts.hostname):
        raise Unaddressable("base_url", "has no scheme or no host; expected for example https://api.example.com")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise Unaddressable("base_url", "has a user, a query or a fragment, where secrets hide")
    host = parts.netloc.lower()
    if port is not None and port == _PORTS.get(parts.scheme):
        host = host.removesuffix(f":{port}")
    return f"{parts.scheme}://{host}{parts.path.rstrip('/')}"


@lru_cache(maxsize=_KEYS_CACHED)
def _murmur2(data: bytes) -> int:
    length = len(data)
    whole = length & ~3
    h = 0x9747B28C ^ length
    for k in struct.unpack_from(f"<{whole >> 2}I", data):
        k = k * 0x5BD1E995 & 0xFFFF_FFFF
        h = (h * 0x5BD1E995 ^ (k ^ k >> 24) * 0x5BD1E995) & 0xFFFF_FFFF
    if length > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * 0x5BD1E995 & 0xFFFF_FFFF
    h = (h ^ h >> 13) * 0x5BD1E995 & 0xFFFF_FFFF
    return h ^ h >> 15
