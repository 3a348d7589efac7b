"""Jobs of the sandbox: work that was paid for at its submission, and whose result is to be asked for until it is there.

Asking is free and takes no key. Jobs live in memory: a sandbox that is started again knows none of the old ones.
"""

import msgspec

RESULT = "/result"


class _Job(msgspec.Struct, frozen=True):
    id: str
    status: str
    result: msgspec.Raw | None = None


class _Submitted(msgspec.Struct, frozen=True):
    job: _Job


class Jobs:
    """What was submitted, and from when on it is done, in the event loop's time."""

    def __init__(self) -> None:
        self._jobs: dict[str, tuple[float, bytes]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def submit(self, result: bytes, done_at: float) -> str:
        """Takes a job whose result will be this JSON, and names it."""
        name = f"job-{len(self._jobs) + 1}"
        self._jobs[name] = done_at, result
        return name

    def submitted(self, name: str) -> bytes:
        """The answer to a submission."""
        return msgspec.json.encode(_Submitted(_Job(name, "queued")))

    def ask(self, rest: str, now: float) -> tuple[int, bytes]:
        """Status and body of the answer to `name`, or to `name/result`, which is there once the job is done."""
        name, wants_result = rest.removesuffix(RESULT), rest.endswith(RESULT)
        found = self._jobs.get(name)
        if found is None:
            return 404, b'{"error":{"code":"no_such_job","message":"no job of that name"}}'
        done_at, result = found
        if now < done_at:
            return (
                (409, b'{"error":{"code":"not_done","message":"the job is not done"}}')
                if wants_result
                else (
                    200,
                    msgspec.json.encode(_Job(name, "running")),
                )
            )
        return 200, result if wants_result else msgspec.json.encode(_Job(name, "done", msgspec.Raw(result)))
