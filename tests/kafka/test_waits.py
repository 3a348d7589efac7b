"""Who follows a call of another run waits for a bounded time, with real parts: the timer of a worker, and what its run says."""

from __future__ import annotations

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
