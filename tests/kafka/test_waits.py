"""What bounds waiting and trying again, with real parts: timers of followers, who waits for nobody, and a run's retry budget."""

from __future__ import annotations

from schemas.plays import Play
from streams.client import Client
from tests.support.scripted_http import ScriptedProvider
from tests.support.system import System, people, play
from tests.support.wait import until


async def test_R4_a_run_whose_wait_is_over_fails_its_row_and_the_call_goes_on_for_the_run_that_made_it(system: System) -> None:
    rows = people(1, tag="wait")
    owner, follower = play("email", name="owner", provider="slow"), play("email", name="follower", provider="slow")
    with ScriptedProvider() as provider:
        provider.hold()
        system.add_provider("slow", provider.url)
        system.worker("w1", receipt_wait_ms=1_500)
        async with Client(system.settings) as client:
            first = await client.submit(owner, rows)

            async def one_call() -> bool:
                return len(provider.requests) == 1

            await until("the call is under way", one_call)
            second = await client.submit(follower, rows)
            late, _ = await system.finish(client, second)
            assert [event.type for event in await system.ledger(client, first)] == ["run.started"]
            provider.let_go()
            paid, _ = await system.finish(client, first)
            # What failed so is asked for again by the next run, and found.
            third = await client.submit(follower, rows)
            found, _ = await system.finish(client, third)
            lines = [line async for line in client.rows(third)]
    assert late.type == "run.failed"
    (sample,) = late.failed_samples
    assert sample.message.startswith("wait timed out: after 1.")
    assert sample.message.endswith("it still met running, attempt 1 of another run")
    assert (paid.type, found.type) == ("run.completed", "run.completed")
    assert [line.row.cells["check"].mark for line in lines if line.row is not None] == ["cache"]
    assert len(provider.requests) == 1


PROVIDERS = """
[providers.quick]
base_url = "{url}"
pace = {{ concurrency = 4 }}

[providers.quick.tools.look]
path = "/look"
receipts = "completed-cache"
"""


async def test_Y2_every_run_that_finds_no_value_calls_for_itself_and_the_first_value_is_there_for_the_next(system: System) -> None:
    columns = [{"name": "c", "tool": "quick.look", "input": {"id": "{{ row.id }}"}, "extract": "answer"}]
    plays = [Play.model_validate({"name": name, "key": ["id"], "columns": columns}) for name in ("one", "two", "three")]
    with ScriptedProvider() as provider:
        provider.answer = lambda asked: (200, b'{"answer":%d}' % asked.number)
        provider.hold()
        system.providers.write_text(PROVIDERS.format(url=provider.url))
        system.worker("w1")
        async with Client(system.settings) as client:
            runs = [await client.submit(play, [{"id": "x"}]) for play in plays[:2]]

            async def both_call() -> bool:
                return len(provider.requests) == 2

            await until("both runs call, and neither waits for the other", both_call)
            provider.let_go()
            ends = [(await system.finish(client, run))[0].type for run in runs]
            runs.append(await client.submit(plays[2], [{"id": "x"}]))
            ends.append((await system.finish(client, runs[2]))[0].type)
            cells = [line.row.cells["c"] for run in runs async for line in client.rows(run) if line.row is not None]
    assert ends == ["run.completed"] * 3
    assert len({asked.key for asked in provider.requests}) == len(provider.requests) == 2
    assert [cell.mark for cell in cells] == ["live", "live", "cache"]
    assert sorted(cell.value for cell in cells[:2]) == [0, 1]
    assert cells[2].value in (0, 1)
    assert len({cell.receipt for cell in cells}) == 3


async def test_P2_G3_a_run_ends_by_its_retry_budget_and_the_next_one_asks_again(system: System) -> None:
    rows = people(6, tag="busy")
    with ScriptedProvider() as provider:
        provider.answer = lambda _asked: (429, b"{}")
        system.add_provider("busy", provider.url)
        system.worker("w1")
        async with Client(system.settings) as client:
            run = await client.submit(play("email", provider="busy"), rows, retries_max=3)
            end, samples = await system.finish(client, run)
            made = len(provider.requests)
            provider.answer = lambda _asked: (200, b"{}")
            again = await client.submit(play("email", provider="busy"), rows)
            found, _ = await system.finish(client, again)
    assert (end.type, end.code, made) == ("run.failed", "all_rows_failed", 6 + 3)
    assert {sample.message.partition(";")[0] for sample in end.failed_samples} == {"retry budget of 3 spent"}
    assert end.counts is not None
    assert end.counts.retries == 3
    assert [sample.counts.retries for sample in samples] == sorted(sample.counts.retries for sample in samples)
    assert found.counts is not None
    assert (found.type, found.counts.completed, found.counts.retries) == ("run.completed", 6, 0)
    assert len(provider.requests) == made + 6
