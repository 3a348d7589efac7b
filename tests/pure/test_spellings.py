"""A secret is one however a text spells it: `streams.tools.spellings`, and the values that are made of such texts (F5, R10)."""

from __future__ import annotations

import html
import json
import time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.tools.pages import Page, outcome_of
from streams.tools.port import Answered, Refused
from streams.tools.results import withheld
from streams.tools.spellings import carries, redact

SECRET = "sk_live/AbC+dEf/1234567890=="
HIDDEN = "[secret]"
JSON = [("content-type", "application/json")]


def escaped(text: str) -> str:
    """JSON's longest spelling: every character by its number."""
    return "".join(f"\\u{ord(character):04X}" for character in text)


SPELLINGS = {
    "plain": SECRET,
    "PHP": SECRET.replace("/", "\\/"),
    ".NET": SECRET.replace("+", "\\u002B"),
    "Gson": SECRET.replace("=", "\\u003d"),
    "one letter by its number": SECRET.replace("k", "\\u006b", 1),
    "all by their numbers": escaped(SECRET),
    "JSON in JSON": json.dumps(SECRET.replace("/", "\\/"))[1:-1],
    "JSON in JSON in JSON": json.dumps(json.dumps(SECRET.replace("k", "\\u006b"))[1:-1])[1:-1],
    "URL": quote(SECRET, safe=""),
    "a path of a URL": quote(SECRET),
    "URL in small letters": SECRET.replace("/", "%2f").replace("+", "%2b").replace("=", "%3d"),
    "URL, letters too": "".join(f"%{ord(character):02X}" for character in SECRET),
    "HTML": SECRET.replace("/", "&#x2F;").replace("+", "&#43;").replace("=", "&#061;"),
    "HTML, letters too": "".join(f"&#{ord(character)};" for character in SECRET),
    "several": SECRET.replace("/", "\\/", 1).replace("+", "%2B").replace("k", "\\u006B"),
}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_F5_V3_a_secret_is_hidden_in_every_spelling(spelling: str) -> None:
    assert redact(f"<{spelling}> and \\{spelling}", ["other-secret", SECRET]) in (
        f"<{HIDDEN}> and \\{HIDDEN}",
        f"<{HIDDEN}> and {HIDDEN}",  # where the secret begins with a sign, a stroke before it is its escape
    )


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_R10_an_output_with_a_secret_in_any_spelling_is_not_kept(spelling: str) -> None:
    """Results of tools had the hole in part: what a text inside of JSON spells otherwise, as a URL or as JSON, was kept."""
    output = json.dumps({"echo": [f"key={spelling}&x"]}).encode()
    assert carries(output, [SECRET])
    assert not carries(output, ["sk_live/AbC+dEf/1234567891=="])
    assert withheld(output, [SECRET]) is not None


@given(secret=st.text("aZ09_-+/=.&%\"'<> ~:\\", min_size=8, max_size=20), around=st.text('aZ0/\\%u&;"\n', max_size=4))
def test_V3_whatever_a_secret_is_made_of_the_usual_writers_cannot_bring_it_past_us(secret: str, around: str) -> None:
    spellings = [secret, json.dumps(secret)[1:-1], quote(secret, safe=""), quote(secret), html.escape(secret)]
    for spelling in [*spellings, json.dumps(spellings[1])[1:-1], secret.replace("/", "\\/")]:
        assert HIDDEN in redact(f"{around} {spelling} {around}", [secret]), spelling
        assert carries(json.dumps(spelling).encode(), [secret]), spelling


@given(text=st.text("sk_live/AbC+dEf1234567890=\\%u06B2F&#;x ", max_size=60))
def test_V3_what_is_no_secret_stays_as_it_is(text: str) -> None:
    assert redact(text, ["quite-another-secret"]) == text


@pytest.mark.parametrize("piece", ["\\", "\\u0061", "%61", "&#97;", "\\\\a", "&", "&#00000", "%2", "sk_live/", "sk_live\\/", "\\u"])
def test_F5_a_strangers_page_takes_no_time_that_grows_with_its_square(piece: str) -> None:
    """Both once in all, and behind an escaped letter, which is the slower way."""
    text = piece * (500_000 // len(piece))
    began = time.process_time()
    assert redact(text + "\\u0061" + text, [SECRET, "another/secret"] * 5) == text + "\\u0061" + text
    assert time.process_time() - began < 5.0  # 0.3 s on a machine of today; quadratic it would be hours


# --- pages --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spelt",
    [SPELLINGS[name] for name in ("PHP", ".NET", "Gson", "one letter by its number", "all by their numbers", "JSON in JSON")],
)
def test_F5_R10_a_page_of_json_keeps_a_secret_neither_as_text_nor_as_value(spelt: str) -> None:
    """The text was redacted and then parsed: PHP's ``\\/`` came out as the secret in clear, and its spelling stayed in the body."""
    body = f'{{"auth": "Bearer {spelt}", "{spelt}": [1, "x{spelt}"]}}'
    outcome = outcome_of(Page(200, "http://a/", JSON, body.encode()), (SECRET,))
    assert isinstance(outcome, Answered)
    assert not carries(outcome.output, [SECRET])
    found = json.loads(outcome.output)
    assert found["json"] == {"auth": f"Bearer {HIDDEN}", HIDDEN: [1, f"x{HIDDEN}"]}
    assert json.loads(found["body"]) == found["json"]


def test_F5_a_spelling_that_only_a_reader_of_json_sees_is_not_left_in_the_body() -> None:
    """A stroke of the secret before an escaped letter: as text the stroke counts as the escape's own."""
    secret = "key\\abcdefgh"
    body = '{"a": "key\\\\\\u0061bcdefgh", "b": 1}'
    assert redact(body, [secret]) == body
    assert json.loads(body)["a"] == secret
    outcome = outcome_of(Page(200, "http://a/", JSON, body.encode()), (secret,))
    assert isinstance(outcome, Answered)
    found = json.loads(outcome.output)
    assert found["json"] == {"a": HIDDEN, "b": 1}
    assert json.loads(found["body"]) == found["json"]


def test_R10_a_page_whose_secret_cannot_be_hidden_is_refused() -> None:
    outcome = outcome_of(Page(200, "http://a/", JSON, b'{"n": 1.2345678e7}'), ("12345678",))
    assert isinstance(outcome, Refused)
    assert (outcome.fault.code, outcome.fault.repairable) == ("secret_in_output", False)
    assert "12345678" not in outcome.fault.message


@pytest.mark.parametrize(
    "body",
    [b"[" * 200 + b"]" * 200, b'{"$bytes":1,"x":0.' + b"0" * 5000 + b"1}", b'{"$bytes":"AA==","x":"' + b"0" * 5000 + b'"}'],
    ids=["nested", "reserved key", "reserved key and text"],
)
def test_F4_M6_json_that_can_stand_alone_but_not_in_the_pages_value_is_kept_as_text(body: bytes) -> None:
    """Nested 200 levels deep it was JSON by itself, and one level too deep inside of the value: that ended the worker."""
    outcome = outcome_of(Page(200, "http://a/", JSON, body), ())
    assert isinstance(outcome, Answered)
    found = json.loads(outcome.output)
    assert found["body"] == body.decode()
    assert "json" not in found


def test_F5_json_one_level_flatter_is_still_kept_as_json() -> None:
    body = b"[" * 199 + b"]" * 199
    outcome = outcome_of(Page(200, "http://a/", JSON, body), ())
    assert isinstance(outcome, Answered)
    assert json.loads(outcome.output)["json"] == json.loads(body)
