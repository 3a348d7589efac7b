"""The work the provider is paid for: checking e-mail addresses and phone numbers.

Pure functions of the item. Each answers with a JSON object without its opening brace, ready to be put
behind an item's id: the same item is asked for again and again, so it is encoded once and memoised.
"""

import re
from functools import lru_cache

import msgspec
import phonenumbers
from email_validator import EmailNotValidError, validate_email
from email_validator.rfc_constants import CASE_INSENSITIVE_MAILBOX_NAMES

ITEMS_MEMOISED_MAX = 100_000
DOMAINS_MEMOISED_MAX = 20_000

# What the short way may take: an ASCII dot-atom before the @, a plain host name after it.
_PLAIN = re.compile(r"([a-zA-Z0-9_+\-]+(?:\.[a-zA-Z0-9_+\-]+)*)@([a-zA-Z0-9.\-]+)\Z")
# Well below the library's 254, so that its length rules, which look at the whole address, never decide.
_PLAIN_LENGTH_MAX = 200


class EmailResult(msgspec.Struct, frozen=True):
    """What is known of one address; `normalized` and `domain` are null when it is not valid."""

    email: str
    verdict: str
    normalized: str | None
    domain: str | None
    reason: str | None


class PhoneResult(msgspec.Struct, frozen=True):
    """What is known of one number; `e164`, `region` and `type` are null when it is not valid."""

    phone: str
    country: str | None
    valid: bool
    e164: str | None
    region: str | None
    type: str | None
    reason: str | None


_encode = msgspec.json.Encoder().encode


def check_email_by_library(email: str) -> EmailResult:
    """Checks one address with email-validator (syntax only, no DNS): about 110 µs."""
    try:
        found = validate_email(email, check_deliverability=False)
    except EmailNotValidError as refusal:
        return EmailResult(email, "invalid", None, None, str(refusal))
    return EmailResult(email, "valid", found.normalized, found.domain, None)


@lru_cache(maxsize=DOMAINS_MEMOISED_MAX)
def _domain_verdict(domain: str) -> EmailResult:
    return check_email_by_library(f"x@{domain}")


def check_email(email: str) -> EmailResult:
    """Checks one address as the library would, asking it once per domain for plain addresses.

    Nearly all of the library's time goes into the domain (IDNA), and contacts share domains.
    """
    plain = _PLAIN.match(email)
    if plain is None or len(email) > _PLAIN_LENGTH_MAX or "xn--" in email.lower():
        return check_email_by_library(email)
    local, domain = plain.groups()
    verdict = _domain_verdict(domain)
    if verdict.domain is None:
        return EmailResult(email, "invalid", None, None, verdict.reason)
    if local.lower() in CASE_INSENSITIVE_MAILBOX_NAMES:
        local = local.lower()
    return EmailResult(email, "valid", f"{local}@{verdict.domain}", verdict.domain, None)


def check_phone(phone: str, country: str | None) -> PhoneResult:
    """Checks one number with phonenumbers; `country` (ISO 3166, two letters) is needed without a +prefix."""
    try:
        number = phonenumbers.parse(phone, country.upper() if country else None)
    except phonenumbers.NumberParseException as refusal:
        return PhoneResult(phone, country, False, None, None, None, str(refusal))
    if not phonenumbers.is_valid_number(number):
        return PhoneResult(phone, country, False, None, None, None, "not a number in use in its region")
    e164 = phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164)
    kind = phonenumbers.PhoneNumberType.to_string(phonenumbers.number_type(number)).lower()
    region = phonenumbers.region_code_for_number(number)
    return PhoneResult(phone, country, True, e164, region, kind, None)


@lru_cache(maxsize=ITEMS_MEMOISED_MAX)
def email_fields(email: str) -> bytes:
    """The fields of an address's result as JSON, after the opening brace."""
    return _encode(check_email(email))[1:]


@lru_cache(maxsize=ITEMS_MEMOISED_MAX)
def phone_fields(phone: str, country: str | None) -> bytes:
    """The fields of a number's result as JSON, after the opening brace."""
    return _encode(check_phone(phone, country))[1:]
