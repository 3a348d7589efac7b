"""Contacts that look like a CRM export: repeats, typing errors and gaps, the same for the same seed.

Nobody can be reached by them: domains are below example.com, .net and .org, phone numbers from the
ranges that regulators keep for films.
"""

from collections.abc import Callable, Iterator
from random import Random


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_FIRST = _words(
    "Ada Amir Anna Anton Beatriz Ben Carla Cem Chen Clara Daniel Dara Elif Emma Erik Fatima Felix Freya "
    "Grace Hana Hugo Ines Isaac Jana Jonas Julia Kofi Lars Leila Lena Liam Lucia Magnus Maria Mateo Mei "
    "Mila Nadia Nils Noor Olga Omar Oscar Paula Pavel Priya Ravi Rosa Ruth Samir Sara Sofia Sven Tariq "
    "Tessa Tom Vera Wanjiru Yuki Zoe"
)
_LAST = _words(
    "Abbott Ahmed Almeida Andersson Baker Bauer Becker Berg Bianchi Brandt Campbell Castro Chowdhury "
    "Clarke Costa Dahl Diallo Dubois Eriksen Evans Farah Ferrari Fischer Fontaine Garcia Gupta Haddad "
    "Hansen Hoffmann Hughes Ibrahim Ivanov Jansen Johansson Kaya Keller Khan Kim Kowalski Larsen "
    "Lefevre Lindqvist Lopez Mahmoud Marino Mbeki Meyer Moreau Murphy Nakamura Nguyen Novak Okafor "
    "Olsen Pereira Petrov Quinn Rahman Ramos Reid Rossi Santos Sato Schmidt Silva Singh Smith Tanaka "
    "Taylor Torres Varga Vogel Walsh Weber Wilson Wong Yamada Yilmaz Zhou"
)
_NAMED = _words(
    "Alder Anchor Beacon Birch Bright Cedar Cobalt Copper Crown Delta Ember Falcon Field Granite "
    "Harbour Hazel Juniper Keystone Lantern Linden Maple Meridian North Oak Orchard Pioneer Quarry "
    "River Saffron Summit"
)
_TRADE = _words(
    "Analytics Bakery Capital Ceramics Dental Energy Foods Freight Insurance Labs Legal Logistics Media "
    "Motors Optics Packaging Pharma Robotics Software Textiles Travel Works"
)
_PEOPLE = len(_FIRST) * len(_LAST) * len(_NAMED) * len(_TRADE)
# Without a common factor with the number of people: steps of it visit everyone once, in no visible order.
_STRIDE = 1_000_003

# A company writes all its addresses alike, so name and company make an address that no one else has.
_LOCAL = ("{first}.{last}", "{last}.{first}", "{first}_{last}", "{first}{last}", "{last}-{first}")

_PHONES: tuple[tuple[str, str, int], ...] = (
    ("GB", "020 7946 0{:03}", 1000),
    ("GB", "+44 161 496 0{:03}", 1000),
    ("US", "(212) 555-01{:02}", 100),
    ("US", "415-555-01{:02}", 100),
    ("CA", "+1 613 555 01{:02}", 100),
    ("DE", "030 23125 {:03}", 1000),
    ("FR", "01 99 00 {:02} 17", 100),
    ("AU", "(02) 5550 {:04}", 10000),
    ("SE", "08-465 004 {:02}", 100),
    ("NL", "+31 20 123 {:04}", 10000),
)

# What people and exports do to an address; none of these is one any more.
_MISTAKES: tuple[Callable[[str, str], str], ...] = (
    lambda local, domain: f"{local}.{domain}",
    lambda local, domain: f"{local}@@{domain}",
    lambda local, domain: f"{local}@{domain.replace('.', ',')}",
    lambda local, domain: f"{local}@{domain.split('.')[0]}",
    lambda local, domain: f"{local} @{domain}",
    lambda local, domain: f"{local}..@{domain}",
    lambda local, domain: f"{local}@{domain}.",
    lambda local, domain: f"{local}@-{domain}",
    lambda local, domain: f"{local}(at){domain}",
    lambda local, _domain: f"{local}@",
)


def _person(number: int) -> tuple[str, str, str, str]:
    """Name, company, and the two halves of the address of one of the possible people."""
    rest, first = divmod(number * _STRIDE % _PEOPLE, len(_FIRST))
    rest, last = divmod(rest, len(_LAST))
    named, trade = divmod(rest, len(_TRADE))
    company = f"{_NAMED[named]} {_TRADE[trade]}"
    pattern = _LOCAL[rest % len(_LOCAL)]
    local = pattern.format(first=_FIRST[first].lower(), last=_LAST[last].lower())
    domain = f"{company.lower().replace(' ', '-')}.example.{('com', 'net', 'org')[rest % 3]}"
    return f"{_FIRST[first]} {_LAST[last]}", company, local, domain


def _contact(number: int, mistake: Callable[[str, str], str] | None = None) -> dict[str, str]:
    name, company, local, domain = _person(number)
    email = mistake(local, domain) if mistake else f"{local}@{domain}"
    country, pattern, span = _PHONES[number % len(_PHONES)]
    phone = pattern.format(number // len(_PHONES) * 37 % span)
    return {"name": name, "email": email, "company": company, "phone": phone, "country": country}


def _shouted(contact: dict[str, str], dice: Random) -> dict[str, str]:
    """The same mailbox written with other capitals."""
    local, _, domain = contact["email"].partition("@")
    return contact | {"email": dice.choice((contact["email"].upper(), f"{local.title()}@{domain}"))}


def generate_contacts(rows: int, seed: int = 7) -> Iterator[dict[str, str]]:
    """Yields `rows` contacts with name, email, company, phone and country, the same for the same seed.

    About 12 % repeat an earlier e-mail address (half of them in other capitals), 8 % have a bad one, 3 % have
    none, 3 % have a phone number cut short. Other addresses are unique up to 1.5 million rows.
    """
    dice = Random(seed)
    good = 0
    for row in range(rows):
        chance = dice.random()
        if chance < 0.12 and good:
            # Near ones mostly, as in an export of a system people enter the same contact into twice.
            earlier = _contact(good - 1 - min(good - 1, int(dice.expovariate(1 / 200))))
            contact = earlier if dice.random() < 0.5 else _shouted(earlier, dice)
        elif chance < 0.20:
            contact = _contact(_PEOPLE // 2 + row, dice.choice(_MISTAKES))
        elif chance < 0.23:
            contact = _contact(_PEOPLE // 2 + row) | {"email": ""}
        else:
            contact = _contact(good)
            good += 1
        if dice.random() < 0.03:
            contact = contact | {"phone": contact["phone"][:-2]}
        yield contact
