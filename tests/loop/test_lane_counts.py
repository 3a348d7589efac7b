"""A lane's counts return to nothing, however its calls end (B9, G1)."""

from __future__ import annotations

from schemas.states import BATCH
from tests.support.dispatch import World, story, told
from tests.support.scripted_caller import doubtful


@story(pace={"concurrency": 2})
async def test_B9_a_batch_of_which_the_record_is_gone_gives_its_place_back(it: World) -> None:
    """B9: it was counted as a batch when it left and as a call for one when it ended, so that each took a place of the lane's
    batches for ever, and after a few of them no batch left any more.
    """
    for number in range(4):
        it.caller.scripts.append(doubtful)
        names = [f"{letter}{number}" for letter in "ab"]
        for name in names:
            await it.asks([name], "batch")  # type: ignore[arg-type]  # names of more than one letter
        for _ in range(80):
            await it.turns(0.005)
            if len(it.caller.calls) > number:
                break
        for key in [key for key in it.table.reader.data if key[:1] == BATCH]:
            del it.table.reader.data[key]
        await it.turns(10.0, every=0.05)
        assert [answer for receipt, answer in told(it) if receipt in names] == ["unknown"] * 2
    (lane,) = it.dispatcher._partitions[0].lanes.values()
    assert (lane.in_flight, lane.claimed, lane.batches, lane.batches_in_flight) == (0, 0, 0, 0)
    await it.asks("cd", "batch")
    await it.turns(2.0)
    assert told(it)[-2:] == [("c", "completed"), ("d", "completed")]
