"""How texts spell a secret: as it is, or escaped as a URL, JSON, or HTML, also JSON inside of JSON; found and hidden alike. Pure.

Each writer escapes other characters (PHP every ``/``, .NET every ``+``), and some server may escape any. Texts are large and come
from strangers, so the careful look is only for a secret that a quick one, linear for all of them together, could not rule out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from html.entities import codepoint2name, name2codepoint
from typing import Final

#: A shorter secret is found in answers by chance.
SECRET_CHARACTERS_MIN: Final = 8
_HIDDEN: Final = "[secret]"

#: Letters and digits that are escaped, which hardly any writer does.
_HEX: Final = "(?:3[0-9]|[46][1-9a-fA-F]|[57][0-9aA])"
_DECIMAL: Final = "(?:4[89]|5[0-7]|6[5-9]|[78][0-9]|9[07-9]|1[01][0-9]|12[0-2])"
_ESCAPED_LETTERS: Final = tuple(  # one pattern for all would be looked for ten times slower
    re.compile(pattern) for pattern in (rf"\\u00{_HEX}", f"%{_HEX}", rf"&#(?:[xX]0{{0,5}}{_HEX}|0{{0,5}}{_DECIMAL});")
)
#: One escaped character of any writer. Each branch that has begun matches something, so that no text is looked at twice.
_ESCAPED: Final = re.compile(
    r"\\+(?:u00([0-7][0-9a-fA-F])|(?=[^0-9A-Za-z])|)|%([2-7][0-9a-fA-F])"
    r"|&(?:#(?:[xX]0{0,5}([2-7][0-9a-fA-F])|0{0,5}([0-9]{2,3}))|([a-z]{2,6}));"
)
_RUN: Final = re.compile("[0-9A-Za-z]+")


def carries(output: bytes, secrets: Iterable[str]) -> bool:
    """Whether a secret stands in exact JSON, in any spelling (R10). Short ones are not looked for: they are in everything."""
    text = output.decode("utf-8", "replace")
    return any(pattern.search(text) for pattern in _patterns(text, [one for one in secrets if len(one) >= SECRET_CHARACTERS_MIN]))


def redact(text: str, secrets: Iterable[str]) -> str:
    """The text with every secret hidden, in any spelling."""
    for pattern in _patterns(text, sorted(filter(None, secrets), key=len, reverse=True)):  # one may be the beginning of another
        text = pattern.sub(_HIDDEN, text)
    return text


def _patterns(text: str, secrets: list[str]) -> list[re.Pattern[str]]:
    """Patterns of the secrets that may stand in a text, in order."""
    if not any(escaped.search(text) for escaped in _ESCAPED_LETTERS):
        # Then letters stand as they are, whatever is escaped.
        return [_pattern(secret, False) for secret in secrets if _longest_run(secret) in text]
    plain = _ESCAPED.sub(_meant, text)
    return [_pattern(secret, True) for secret in secrets if secret in text or _ESCAPED.sub(_meant, secret) in plain]


@lru_cache(maxsize=256)
def _longest_run(secret: str) -> str:
    return max(_RUN.findall(secret), key=len, default="")


def _meant(found: re.Match[str]) -> str:
    """What an escape stands for; of backslashes alone, none before a sign, where they are an escape, and one before a letter."""
    json, percent, html, decimal, name = found.groups()
    if digits := json or percent or html:
        return chr(int(digits, 16))
    if decimal:
        return chr(int(decimal))
    if name:
        return chr(name2codepoint[name]) if name in name2codepoint else found[0]
    return "\\" if found.string[found.end() : found.end() + 1].isalnum() else ""


@lru_cache(maxsize=256)
def _pattern(secret: str, letters: bool) -> re.Pattern[str]:
    """All spellings of a secret; ``letters``: also with letters and digits escaped."""
    return re.compile("".join([_spelt(character, letters) for character in secret]))


def _spelt(character: str, letters: bool) -> str:
    number = ord(character)
    plain = re.escape(character)
    if number > 0x7F or (not letters and _RUN.fullmatch(character)):
        return plain
    digits = "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in f"{number:02x}")
    # Repetitions are bounded: a page of nothing but backslashes is not to take a time that grows with its square.
    ways = [plain, f"%{digits}", rf"\\{{1,8}}u00{digits}", f"&#(?:[xX]0{{0,5}}{digits}|0{{0,5}}{number});"]
    if not character.isalnum():
        ways.append(rf"\\{{1,8}}{plain}")
    if number in codepoint2name:
        ways.append(f"&{codepoint2name[number]};")
    if character == " ":
        ways.append(r"\+")
    return f"(?:{'|'.join(ways)})"
