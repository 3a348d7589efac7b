"""Fetch columns with real parts: rows in, one request for equal asks, receipts that outlive the worker, and no secret anywhere."""

from __future__ import annotations

import json
from typing import Any

from schemas.plays import Play
from streams.broker import topics
from streams.client import Client
from streams.public.publiclog import PublicLog
from tests.support.raw_server import whole
from tests.support.system import KEY, System
from tests.support.web import LOOPBACK, Web, serving, slowly

PROVIDERS = """
[fetch]
allow = ["{home}"]
pace = {{ concurrency = 1 }}

[fetch.secrets.site]
secret = "env:SANDBOX_KEY"
origins = ["{home}"]
"""
SITES = Play.model_validate(
    {
        "name": "sites",
        "key": ["id"],
        "columns": [
            {
                "name": "title",
                "fetch": {"url": "{{ row.url }}", "headers": {"Authorization": {"secret": "site"}}},
                "extract": "json.title",
            },
            {"name": "told", "fetch": {"method": "POST", "url": "{{ row.url }}/told", "body": {"title": "{{ row.title }}"}}},
        ],
    }
)


def rows_of(web: Web) -> list[dict[str, Any]]:
    home = f"http://{LOOPBACK}:{web.port}"
    return [
        *({"id": str(index), "url": f"{home}/{index % 5}"} for index in range(20)),
        {"id": "unsafe", "url": "http://169.254.169.254/latest/meta-data/"},
    ]


async def everything(system: System) -> bytes:
    """All bytes of all topics of this system, journal and changelogs included."""
    log = PublicLog(system.settings)
    tps = log.all(*(name for name in topics.TOPICS))
    return b"".join([(record.key or b"") + (record.value or b"") async for record in log.stored(tps)])


async def test_F1_F4_F5_equal_fetches_are_made_once_and_a_rerun_makes_none(system: System) -> None:
    async with serving() as web:
        home = f"http://{LOOPBACK}:{web.port}"
        for number in range(5):
            said = json.dumps({"title": f"site {number}", "your key": KEY}).encode()
            web.answers[f"/{number}"] = slowly(whole(said, "Content-Type: application/json"), 0.05)
        system.providers.write_text(PROVIDERS.format(home=home))
        worker = system.worker("w1")
        async with Client(system.settings) as client:
            run = await client.submit(SITES, rows_of(web), run="first")
            end, _ = await system.finish(client, run)
            assert end.counts is not None
            assert (end.counts.completed, end.counts.failed, end.counts.unknown) == (20, 1, 0)
            lines = {line.position: line.row async for line in client.rows(run)}
            for position in range(20):
                row = lines[position]
                assert row is not None
                assert row.cells["title"].value == f"site {position % 5}"
                assert row.cells["told"].value["status"] == 200
            unsafe = lines[20]
            assert unsafe is not None
            assert unsafe.cells["title"].code == "unsafe_url"
            asked = sorted(web.seen)
            assert asked == sorted(
                [("GET", f"/{number}") for number in range(5)] + [("POST", f"/{number}/told") for number in range(5)]
            )
            assert {seen.headers.get("authorization") for seen in web.asked if seen.method == "GET"} == {f"Bearer {KEY}"}
            # The pace of the lane is the operator's (G1).
            assert web.busy_max == 1
            # Another worker, with nothing but the topics, and another play's revision: the receipts are all there.
            worker.kill()
            system.worker("w2")
            again = await client.submit(SITES.model_copy(update={"version": "2"}), rows_of(web), run="second")
            end, _ = await system.finish(client, again)
            assert end.counts is not None
            assert end.counts.completed == 20
        assert sorted(web.seen) == asked
    assert KEY.encode() not in await everything(system)
