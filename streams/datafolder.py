"""A worker's data folder: one worker at a time, one system for life, and a name that stays.

Beside ``worker``, which keeps its tables in it. A small file is written aside and renamed, so that a kill leaves all of it or none.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from pathlib import Path
from typing import IO

from streams.errors import ConfigurationError


class DataFolder:
    """The folder at ``path``, made where it is missing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    def lock(self) -> None:
        """Keep other workers out until ``release``. Raises ``ConfigurationError`` where one is in it."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = (self.path / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise ConfigurationError(
                f"data folder {self.path} is in use by another worker; give each its own with --data"
            ) from error
        self._lock = lock

    def release(self) -> None:
        """Let others in."""
        if self._lock is not None:
            self._lock.close()

    def claim(self, mine: str) -> None:
        """A folder belongs to one system on one cluster: tables of another would be mixed up, and calls paid again.

        Raises ``ConfigurationError`` naming both.
        """
        theirs = self._kept("belongs-to", mine)
        if theirs != mine:
            raise ConfigurationError(
                f"data folder {self.path} belongs to {theirs}, this worker to {mine}; give it another folder with --data"
            )

    def instance_id(self) -> str:
        """The worker's stable name (static group membership)."""
        return self._kept("instance-id", f"worker-{uuid.uuid4().hex[:12]}\n").strip()

    def _kept(self, name: str, text: str) -> str:
        path = self.path / name
        if not path.exists():
            temporary = self.path / f"{name}.{os.getpid()}"
            temporary.write_text(text)
            temporary.replace(path)
        return path.read_text()
