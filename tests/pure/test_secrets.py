"""Where secrets are found, and that no text shows them: `streams.tools.secrets`."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from schemas.providers import Providers
from streams.errors import ConfigurationError
from streams.tools.secrets import EXCERPT_CHARACTERS, excerpt, resolve, resolve_all
from streams.tools.spellings import carries, redact


def test_a_secret_comes_from_the_environment_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-1\n")
    assert resolve("env:KEY", {"KEY": " sk-0 "}) == "sk-0"
    assert resolve(f"file:{tmp_path / 'key'}", {}) == "sk-1"


@pytest.mark.parametrize(
    ("reference", "content"),
    [
        ("env:ABSENT", None),
        ("env:EMPTY", None),
        ("env:BROKEN", None),
        ("file:{}/absent", None),
        ("file:{}", None),
        ("file:{}/key", b" \n"),
        ("file:{}/key", b"hidden\xff"),
        ("file:{}/key", "hidden-ä".encode()),
        ("hidden", None),
    ],
)
def test_V3_a_missing_secret_is_named_by_its_reference_never_by_its_value(
    tmp_path: Path, reference: str, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    reference = reference.format(tmp_path)
    with pytest.raises(ConfigurationError) as caught:
        resolve(reference, {"EMPTY": "", "BROKEN": "hidden\nX-Evil: 1"})
    assert "hidden" not in str(caught.value)
    assert reference == "hidden" or reference in str(caught.value)


def test_only_providers_with_auth_have_a_secret() -> None:
    tool = {"check": {"path": "/check"}}
    providers = {
        "open": {"base_url": "http://a", "tools": tool},
        "paid": {"base_url": "http://b", "auth": {"secret": "env:K"}, "tools": tool},
    }
    assert resolve_all(Providers.model_validate({"providers": providers}), {"K": "v"}) == {"paid": "v"}


def test_V3_a_secret_is_hidden_in_every_spelling() -> None:
    text = redact('a k/1+"z b k%2F1%2B%22z c k/1%2B%22z d k/1+\\"z e', ["k/1", 'k/1+"z', ""])
    assert text == "a [secret] b [secret] c [secret] d [secret] e"


def test_an_excerpt_is_short_printable_and_hides_before_it_cuts() -> None:
    assert excerpt(" a\n\tb\x00\u202e ", []) == "a b??"
    text = excerpt("x" * (EXCERPT_CHARACTERS - 5) + "secret-value", ["secret-value"])
    assert "secre" not in text.replace("[secr", "")
    assert len(text) == EXCERPT_CHARACTERS


def test_R10_a_secret_is_found_in_json_however_json_spells_it() -> None:
    secret = 'a"b\\c-long-enough'
    output = msgspec.json.encode({"x": [f"<{secret}>"]})
    assert carries(output, ["another-secret", secret])
    assert not carries(output, ["another-secret"])
    # By chance such a text is in many an answer.
    assert not carries(b'"demo"', ["demo"])
