"""The newest status of runs, folded from ``map-progress`` and ``run-events``: what lists and pages show.

Pure, for the client. It judges nothing: what it shows was decided by the worker.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from schemas.progress import Counts, FailedRow, MapProgress, RunEvent

TERMINAL = ("completed", "failed", "cancelled", "refused")


class RunView(BaseModel):
    """A run as it was last told of; times are Unix time in milliseconds."""

    model_config = ConfigDict(frozen=True)

    run: str
    #: ``submitted``, ``running``, ``closing``, or one of the ends in ``TERMINAL``.
    status: str
    play: str = ""
    dataset: str = ""
    code: str = ""
    message: str = ""
    counts: Counts | None = None
    started_ms: int | None = None
    updated_ms: int | None = None
    ended_ms: int | None = None
    faults: tuple[str, ...] = ()
    failed_samples: tuple[FailedRow, ...] = ()
    #: How many requests under this id were refused, and why others were rejected.
    refused: int = 0
    rejections: tuple[str, ...] = ()

    @property
    def ended(self) -> bool:
        """Nothing more will happen to it."""
        return self.status in TERMINAL


class Views:
    """Views of many runs, made of messages in any order between the two topics."""

    def __init__(self) -> None:
        self._views: dict[str, RunView] = {}

    def take(self, topic: str, value: bytes | None) -> None:
        """Fold one message; what is neither progress nor a run event changes nothing."""
        if value is None:
            return
        try:
            if topic == "map-progress":
                self._sampled(MapProgress.model_validate_json(value))
            else:
                self._told(RunEvent.model_validate_json(value))
        except ValidationError:
            return  # anyone may publish there

    def get(self, run: str) -> RunView | None:
        """One run."""
        return self._views.get(run)

    def runs(self) -> list[RunView]:
        """All runs, oldest first."""
        return sorted(self._views.values(), key=lambda view: (view.started_ms or view.updated_ms or 0, view.run))

    def _change(self, run: str, **changes: Any) -> None:
        view = self._views.get(run) or RunView(run=run, status="running")
        self._views[run] = view.model_copy(update=changes)

    def _sampled(self, sample: MapProgress) -> None:
        view = self._views.get(sample.run)
        if view is not None and view.status in TERMINAL and view.status != "refused":
            self._change(sample.run, started_ms=sample.started_ms)  # the ledger has the last word
            return
        self._change(
            sample.run,
            status=sample.status,
            counts=sample.counts,
            message=sample.message,
            started_ms=sample.started_ms,
            updated_ms=sample.updated_ms,
            ended_ms=sample.ended_ms,
        )

    def _told(self, event: RunEvent) -> None:
        view = self._views.get(event.run)
        if event.type == "run.rejected":
            told = () if view is None else view.rejections
            self._change(event.run, rejections=(*told, event.message))
            return
        if event.type == "run.refused":
            refused = 1 if view is None else view.refused + 1
            if view is not None and view.play:  # refused once, but another request under this id was accepted
                self._change(event.run, refused=refused)
                return
            self._change(event.run, refused=refused, faults=event.faults)
        started = event.type == "run.started"
        changes: dict[str, Any] = {"play": event.play, "dataset": event.dataset} if event.play else {}
        if event.counts is not None and (not started or view is None or view.counts is None):
            changes["counts"] = event.counts
        if started:
            changes |= {"started_ms": event.at_ms, "faults": (), "code": ""}
            if view is None or view.status in ("submitted", "refused"):
                changes |= {"status": "running", "ended_ms": None, "message": ""}
        if event.terminal:
            changes |= {
                "status": event.type.removeprefix("run."),
                "code": event.code,
                "message": event.message,
                "ended_ms": event.at_ms,
                "failed_samples": event.failed_samples,
            }
        self._change(event.run, **changes, updated_ms=event.at_ms)
