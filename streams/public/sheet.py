"""The join of a run's input with the sheet: N lines in, N lines out, in input order.

Under ``client``, which feeds it messages of ``run-requests`` and ``map-rows``. It keeps rows as bytes in a
temporary file, and in memory only a digest and two offsets a row: a million rows fit. It knows no Kafka.
"""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from pydantic import ValidationError

from schemas.address import DIGEST_BYTES, Unaddressable, row_key
from schemas.canonical import InvalidJson, UncanonicalValue, parse_json
from schemas.plays import Play
from schemas.progress import MapRow

_LENGTH_BYTES = 4
#: Stands for the digest of an input line that has no row key; such a run was refused.
_NO_KEY = bytes(DIGEST_BYTES)
_NO_STATE = -1


class _Request(msgspec.Struct, frozen=True):
    """What is needed of a message on ``run-requests``; its rows stay bytes."""

    type: str
    play: msgspec.Raw = msgspec.Raw(b"null")
    org: str = "default"
    first: int = 0
    rows: list[msgspec.Raw] | None = None


@dataclass(frozen=True, slots=True)
class SheetLine:
    """One input line of a run: its fields, and the newest state of its row, if it was settled."""

    position: int
    fields: dict[str, Any]
    row: MapRow | None


class RunSheet:
    """A run's input and the states of its rows; close it, or use it as a context manager.

    ``refused`` is the number of requests for this run id that were refused before one was accepted: a refused
    id may be used again. Without ``with_rows`` only the request is looked for.
    """

    def __init__(self, run: str, *, refused: int = 0, with_rows: bool = True) -> None:
        self.run = run
        #: The message that the run came from.
        self.request: bytes | None = None
        self._with_rows = with_rows
        self.play: Play | None = None
        self.org = ""
        #: Names of the input's fields, in the order in which they first came.
        self.fields: dict[str, None] = {}
        self._refused = refused
        self._requests = 0
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        self._end = 0
        self._inputs = array("q")
        self._states: dict[bytes, int] = {}
        self._decoder = msgspec.json.Decoder(_Request)

    def __enter__(self) -> RunSheet:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._inputs)

    def close(self) -> None:
        """Let the temporary file go."""
        self._file.close()

    @property
    def computed(self) -> list[str]:
        """Names of the computed columns."""
        return [] if self.play is None else [column.name for column in self.play.columns]

    @property
    def prefix(self) -> bytes:
        """What the keys of this run's rows on ``map-rows`` begin with."""
        return b"" if self.play is None else f"{self.org}/{self.play.dataset_name}/".encode()

    def take_request(self, value: bytes) -> None:
        """Take a message of this run from ``run-requests``; one that comes twice changes nothing."""
        try:
            request = self._decoder.decode(value)
            if request.type == "run_requested":
                self._begin(request, value)
            elif request.type == "rows_appended" and request.first == len(self._inputs):
                self._add(request.rows or [])
        except (msgspec.ValidationError, ValidationError):
            return  # anyone may publish there; the worker has parked or refused it
        except msgspec.DecodeError:
            self._requests += 1  # what is no JSON is refused under its key

    def _begin(self, request: _Request, value: bytes) -> None:
        self._requests += 1
        if self._requests > self._refused + 1:
            return  # another request under an id in use: it was rejected
        self.play, self.org, self.request = Play.model_validate_json(bytes(request.play)), request.org, value
        self.fields, self._inputs, self._states = {}, array("q"), {}
        self._add(request.rows or [])

    def _add(self, rows: list[msgspec.Raw]) -> None:
        play = self.play
        if play is None or not self._with_rows:
            return
        names: Any = None
        for raw in rows:
            text = bytes(raw)
            digest = _NO_KEY
            try:
                row = parse_json(text)
                if isinstance(row, dict):
                    if row.keys() != names:
                        names = row.keys()
                        self.fields |= dict.fromkeys(row)
                    digest = bytes.fromhex(row_key(play.dataset_name, play.key, row))
                    self._states[digest] = _NO_STATE
            except (InvalidJson, Unaddressable, UncanonicalValue):
                pass  # the run was refused for it; its line is exported all the same
            self._inputs.append(self._keep(digest + text))

    def __contains__(self, key: str) -> bool:
        return bytes.fromhex(key) in self._states

    def key_at(self, position: int) -> str:
        """Row key of an input line, in hex."""
        self._file.flush()
        return self._kept(self._inputs[position])[:DIGEST_BYTES].hex()

    def take_state(self, key: bytes, value: bytes | None) -> None:
        """Take a message of ``map-rows``; other runs' rows change nothing."""
        if not key.startswith(self.prefix):
            return
        try:
            digest = bytes.fromhex(key[len(self.prefix) :].decode())
        except ValueError:
            return
        if digest in self._states:
            self._states[digest] = _NO_STATE if value is None else self._keep(value)

    def _keep(self, data: bytes) -> int:
        offset = self._end
        self._file.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
        self._end += _LENGTH_BYTES + len(data)
        return offset

    def _kept(self, offset: int) -> bytes:
        descriptor = self._file.fileno()
        size = int.from_bytes(os.pread(descriptor, _LENGTH_BYTES, offset), "big")
        return os.pread(descriptor, size, offset + _LENGTH_BYTES)

    def __iter__(self) -> Iterator[SheetLine]:
        self._file.flush()
        for position, offset in enumerate(self._inputs):
            kept = self._kept(offset)
            state = self._states.get(kept[:DIGEST_BYTES], _NO_STATE)
            fields = parse_json(kept[DIGEST_BYTES:])
            row = None if state == _NO_STATE else _map_row(self._kept(state))
            yield SheetLine(position, fields if isinstance(fields, dict) else {}, row)


def _map_row(value: bytes) -> MapRow | None:
    try:
        return MapRow.model_validate(parse_json(value))
    except (InvalidJson, ValidationError):
        return None
