"""What goes into a provider's call and what comes out of it: members to one payload, one answer to an outcome per member.

Pure. Numbers pass digit for digit (case_D3), and above all no member gets its neighbour's result (B6). Faults made here hold
the provider's own words; whoever makes them public hides secrets and cuts them (`secrets.excerpt`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import quote, urlencode

import msgspec

from schemas.canonical import NESTED, InvalidJson, JsonValue, UncanonicalValue, dump_json, parse_json
from schemas.envelope import EVENT_BYTES_MAX
from schemas.events import Fault
from schemas.providers import BatchForm
from streams.tools.port import Answered, CallMember, Doubtful, MemberOutcome, NotDone, Refused
from streams.tools.spellings import carries

#: A path into JSON as its steps; empty for the whole.
Steps: TypeAlias = tuple[str, ...]

#: Bytes of a provider's text that are looked at for a message ...
TEXT_BYTES_MAX: Final = 4096
#: ... and for the code of a refusal, which may stand behind or beside a long text.
CODE_BYTES_MAX: Final = 65_536
NO_RESULT: Final = Answered(b"null")
#: Bytes of one result: it must fit into a Kafka message, with what stands around it.
OUTPUT_BYTES_MAX: Final = EVENT_BYTES_MAX - (64 << 10)

#: Bytes of a query: more is no URL to the library that reads it, and few servers take as much.
QUERY_BYTES_MAX: Final = 65_536

# Raw keeps each field's text as it is: a number is never turned into a double and back.
_fields_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def steps_of(path: str) -> Steps:
    """``result.items.0`` as its steps."""
    return tuple(path.split(".")) if path else ()


def value_at(value: JsonValue, steps: Steps) -> JsonValue:
    """What stands at a path; ``None`` where the path leads nowhere. In a list a step is an index from 0."""
    for step in steps:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isascii() and step.isdigit() and len(step) < 10:
            value = value[int(step)] if int(step) < len(value) else None
        else:
            return None
    return value


# --- into the call ------------------------------------------------------------------------------------------


def query_of(member: CallMember, own: str = "") -> str | Refused:
    """The query string of a GET: the fields of a flat input, in their order, behind the path's ``own``; a null field is left out.

    Refused (``bad_input``) where the input is not one object of texts, numbers and truth values, or too large for a URL.
    """
    try:
        fields = parse_json(member.input)
    except InvalidJson as error:
        return _bad_input(str(error))
    if not isinstance(fields, dict):
        return _bad_input("a GET takes its input as a query string: expected an object of fields")
    pairs: list[tuple[str, str | bytes]] = []
    for name, value in fields.items():
        if isinstance(value, dict | list):
            return _bad_input(f"a GET takes its input as a query string: field {name!r:.80} is nested")
        if value is not None:
            pairs.append((name, value if isinstance(value, str) else dump_json(value)))
    query = "&".join(part for part in (own, urlencode(pairs, quote_via=quote)) if part)
    if len(query) > QUERY_BYTES_MAX:
        return _bad_input(
            f"a GET takes its input as a query string: this one has {len(query):,} bytes, at most {QUERY_BYTES_MAX:,}"
        )
    return query


class BatchBody(NamedTuple):
    """The body of a batch's call, and the inputs that could not go into it, by their place among the members."""

    #: ``None`` where no input could.
    body: bytes | None
    refused: dict[int, Refused]


def batch_body(form: BatchForm, members: tuple[CallMember, ...]) -> BatchBody:
    """The body of a batch's call, the same bytes for the same members: the key that it is sent under stands for them.

    With ``match_key`` each input carries its receipt in that field, in place of a field of that name of its own. An input that
    cannot carry it is refused and left out, and its companions go without it: they share nothing with it but the moment.
    """
    inputs: list[object] = []
    refused: dict[int, Refused] = {}
    for place, member in enumerate(members):
        if form.match_key is None:
            inputs.append(msgspec.Raw(member.input))
            continue
        try:
            inputs.append(_fields_of(member.input) | {form.match_key: member.receipt})
        except (msgspec.DecodeError, UnicodeDecodeError):
            refused[place] = _bad_input(f"in a batch an input must be an object, to take the field {form.match_key!r}")
    if not inputs:
        return BatchBody(None, refused)
    body: object = inputs
    for step in reversed(steps_of(form.list_field)):
        body = {step: body}
    return BatchBody(_encode(body), refused)


def _bad_input(message: str) -> Refused:
    return Refused(Fault("bad_input", message))


# --- out of the answer --------------------------------------------------------------------------------------


def single_outcome(body: bytes, result: Steps) -> MemberOutcome:
    """The outcome of a call for one: what stands at ``result``; ``null`` for an empty body or where the path leads nowhere."""
    answer = parsed(body)
    return answer if isinstance(answer, Doubtful) else output_of(value_at(answer, result))


def split(form: BatchForm, members: tuple[CallMember, ...], body: bytes) -> tuple[MemberOutcome, ...]:
    """The outcome of each member of a batch, in order (B4, B6). An empty body (204) is no result for all.

    A batch that was answered was billed, so what cannot be told apart is doubtful and not refused, which says "not billed".

    - By key (``match_key``): a member without a result has no result; results without a member are dropped; a key that comes
      twice makes that one member doubtful (``duplicate_results``), for either result may be the wrong one.
    - By position: with too few or too many results nobody knows which is missing or added, and to take any would risk a
      neighbour's. So all are doubtful (``results_mismatch``).
    """
    answer = parsed(body)
    if isinstance(answer, Doubtful):
        return (answer,) * len(members)
    if answer is None:
        return (NO_RESULT,) * len(members)
    items = value_at(answer, steps_of(form.result_list))
    if not isinstance(items, list):
        fault = Fault("bad_response", f"the answer to a batch has no list at {form.result_list or 'its top'!r}: {_text(body)}")
        return (Doubtful(fault),) * len(members)
    if form.match_key is not None:
        return _by_key(form, form.match_key, members, items)
    if len(items) != len(members):
        return mismatched(len(items), len(members))
    return tuple(_member_outcome(form, item) for item in items)


def withheld(output: bytes, secrets: Iterable[str]) -> Doubtful | None:
    """What becomes of an output that carries a secret, which no receipt may keep (R10); ``None`` for any other.

    It was paid for, and what the next call brought could be kept no better: it is not repeated, whatever its tool allows.
    """
    if not carries(output, secrets):
        return None
    return Doubtful(Fault("secret_in_output", "the result carries a secret"), used_up=True)


def mismatched(results: int, inputs: int) -> tuple[MemberOutcome, ...]:
    """What all inputs get where results come by position, and not as many as inputs."""
    message = f"{results} results for {inputs} inputs, matched by position: which are whose cannot be told"
    return (Doubtful(Fault("results_mismatch", message)),) * inputs


def _by_key(form: BatchForm, match_key: str, members: tuple[CallMember, ...], items: list[JsonValue]) -> tuple[MemberOutcome, ...]:
    found: dict[str, dict[str, JsonValue]] = {}
    repeated: set[str] = set()
    for item in items:
        key = item.get(match_key) if isinstance(item, dict) else None
        if not isinstance(item, dict) or not isinstance(key, str):
            continue
        if key in found:
            repeated.add(key)
        # Without the key, which is ours: one and the same input has one output, called for alone or in a batch.
        del item[match_key]
        found[key] = item

    def outcome(receipt: str) -> MemberOutcome:
        if receipt in repeated:
            return Doubtful(Fault("duplicate_results", f"the answer has several results whose {match_key!r} is {receipt}"))
        return _member_outcome(form, found[receipt]) if receipt in found else NO_RESULT

    return tuple(outcome(member.receipt) for member in members)


def _member_outcome(form: BatchForm, item: JsonValue) -> MemberOutcome:
    error = item.get(form.error_field) if isinstance(item, dict) else None
    if not error:  # many providers send null, false or "" with what went well
        return output_of(value_at(item, steps_of(form.result)))
    if isinstance(error, dict) and error.get("retryable") is True:
        return NotDone(Fault("item_error", _error_text(error), repairable=True))
    return Refused(Fault("item_error", _error_text(error)))


def error_code(body: bytes) -> str | None:
    """The code in the body of a refusal: ``error.code``, ``error`` or ``code``, whichever is a text; empty where none is.

    ``None``: the body cannot be read, or is not all there, so that nobody knows which code it has.
    """
    answer = parsed(body)
    if answer is None or isinstance(answer, Doubtful):
        return None
    found = (value_at(answer, path) for path in (("error", "code"), ("error",), ("code",)))
    return next((code for code in found if isinstance(code, str)), "")


def _error_text(error: JsonValue) -> str:
    if isinstance(error, str):
        return error[:TEXT_BYTES_MAX]
    if isinstance(error, dict):
        words = [word for word in (error.get("code"), error.get("message")) if isinstance(word, str)]
        if words:
            return ": ".join(words)[:TEXT_BYTES_MAX]
    return repr(error)[:TEXT_BYTES_MAX]


def parsed(body: bytes) -> JsonValue | Doubtful:
    """The answer's JSON, ``None`` for an empty body. Junk is doubtful and never completed.

    case_E3 would have it *failed*, to be called again by the next run; but a provider that answers 200 may have billed, and for
    a tool that must not be repeated (U1) that would pay twice. So the tool decides: one that may be repeated is called again,
    any other is unknown. What is nested too deeply is no junk: the next answer would be as deep, and cost as much.
    """
    text = body.removeprefix(_BYTE_ORDER_MARK).strip()  # some servers write the mark; what was paid for is not lost over it
    if not text:
        return None
    try:
        return parse_json(text)
    except InvalidJson as error:
        if error.reason in NESTED:
            return Doubtful(Fault("bad_response", f"the answer cannot be kept: {error.reason}"), used_up=True)
        return Doubtful(Fault("bad_response", f"the answer is not JSON ({error}): {_text(body)}"))


def output_of(value: JsonValue) -> Answered | Doubtful:
    """The outcome with a value as its output; doubtful where no receipt could keep it.

    It is not called for again, whatever its tool allows: each call would be paid for, and bring what cannot be kept either.
    """
    try:
        output = dump_json(value)
    except UncanonicalValue as error:  # nested too deeply, for one: no reader of the receipt could carry it
        fault = Fault("bad_response", f"the answer cannot be kept: {error.reason}")
        return Doubtful(fault, used_up=True)
    if len(output) > OUTPUT_BYTES_MAX:
        fault = Fault("too_large", f"one result has {len(output):,} bytes; a receipt keeps at most {OUTPUT_BYTES_MAX:,}")
        return Doubtful(fault, used_up=True)
    return Answered(output)


def _text(body: bytes) -> str:
    return body[:TEXT_BYTES_MAX].decode("utf-8", "replace")
