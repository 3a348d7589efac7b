"""What needs no socket in the sandbox: its checks, its dice, and the contacts of the demo."""

import pytest

from streams.sandbox import Fault, FaultKind, generate_contacts
from streams.sandbox.checks import check_email, check_email_by_library
from streams.sandbox.endpoints import Item
from streams.sandbox.faults import FaultPlan

EMAIL = "/v1/email/check"


@pytest.mark.parametrize(
    "email",
    [
        "plain@example.com",
        "Postmaster@EXAMPLE.com",
        "SALES@example.com",
        "a@localhost",
        "a@host.test",
        "a@-bad.example.com",
        "a@bad-.example.com",
        "a@two..dots.com",
        "a@dot.",
        "a@.dot",
        "a@",
        "@b.com",
        ".a@b.com",
        "a.@b.com",
        "a..b@b.com",
        "a b@b.com",
        " a@b.com",
        "a@b.com\n",
        "a@b.com ",
        "o'neil@b.com",
        "a@1.2.3.4",
        "a@ab--cd.com",
        "a@xn--bcher-kva.example.com",
        "a@bücher.example.com",
        "jürgen@example.com",
        '"quoted"@example.com',
        "Name <a@example.com>",
        "a@[127.0.0.1]",
        "l" * 65 + "@example.com",
        "l" * 250 + "@example.com",
        "a@" + "d" * 64 + ".com",
        "a@" + ".".join(["d" * 60] * 4) + ".com",
    ],
)
def test_the_short_way_agrees_with_the_library(email: str) -> None:
    assert check_email(email) == check_email_by_library(email)


def test_chance_follows_the_seed() -> None:
    def struck(seed: int) -> list[bool]:
        plan = FaultPlan([Fault(kind=FaultKind.HANG, probability=0.3)], seed)
        item = Item("", "a@example.com", bytes)
        return [plan.for_request(EMAIL, [item]) is not None for _ in range(1000)]

    assert struck(1) == struck(1) != struck(2)
    assert 240 < sum(struck(1)) < 360


# --- the contacts ---


def test_contacts_are_the_same_for_the_same_seed_with_the_stated_shares() -> None:
    contacts = list(generate_contacts(5000))
    assert contacts == list(generate_contacts(5000))
    assert contacts[:1000] == list(generate_contacts(1000))
    assert contacts != list(generate_contacts(5000, seed=8))
    emails = [contact["email"] for contact in contacts if contact["email"]]
    bad = sum(check_email(email).verdict == "invalid" for email in emails)
    assert all(set(contact) == {"name", "email", "company", "phone", "country"} for contact in contacts)
    assert 0.10 < 1 - len({email.lower() for email in emails}) / len(emails) < 0.14
    assert 0.04 < (len(set(emails)) - len({email.lower() for email in emails})) / len(emails) < 0.08
    assert 0.06 < bad / len(contacts) < 0.10
    assert 0.02 < 1 - len(emails) / len(contacts) < 0.04
