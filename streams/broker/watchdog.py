"""Stops a local broker when the process it was started for is gone, however that one ended (kill -9 too).

Run as a script by `broker.local`, in a process of its own that outlives the parent; its functions serve
`broker.local` too. It imports nothing of ours, and touches no process but the one broker it was given.
"""

import os
import signal
import sys
import time

import psutil

POLL_SECONDS = 0.2  # the parent is looked at this often, as long as the broker runs
END_POLL_SECONDS = 0.02


def find(pid: int, created: float) -> psutil.Process | None:
    """The process that had this pid at that create time, or None when it is gone."""
    try:
        process = psutil.Process(pid)
        return process if abs(process.create_time() - created) < 1 else None
    except psutil.NoSuchProcess:
        return None


def is_alive(process: psutil.Process) -> bool:
    """A zombie counts as gone, since its own parent may never collect it; but not while threads of it remain.

    The first thread of a killed Java is a zombie while the others still hold its port and its locks.
    """
    try:
        if not process.is_running():
            return False
        return bool(process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1)
    except psutil.NoSuchProcess:
        return False


def end(process: psutil.Process, grace_seconds: float) -> bool:
    """End a process of ours, back when it is gone. False: it had to be killed."""
    deadline = time.monotonic() + grace_seconds
    clean = True
    try:
        # psutil looks once more whether the pid is still that process, here and in kill()
        process.send_signal(signal.SIGTERM if grace_seconds > 0 else signal.SIGKILL)
        while not collect(process.pid) and is_alive(process):
            if clean and time.monotonic() >= deadline:
                process.kill()
                clean = False
            time.sleep(END_POLL_SECONDS)
    except psutil.NoSuchProcess:
        pass
    return clean


def collect(pid: int) -> bool:
    """If it was our own child and has ended, take its exit code: else it stays a zombie while we live."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False


def watch(parent: psutil.Process | None, broker: psutil.Process, grace_seconds: float) -> None:
    """Wait for the end of either; if the parent went first, stop the broker, at last by force."""
    while parent is not None and is_alive(parent):
        if not is_alive(broker):
            return
        time.sleep(POLL_SECONDS)
    end(broker, grace_seconds)


def main() -> None:
    """Arguments: pid and create time of the parent, the same of the broker, grace in seconds."""
    parent_pid, parent_created, broker_pid, broker_created, grace_seconds = sys.argv[1:]
    broker = find(int(broker_pid), float(broker_created))
    parent = find(int(parent_pid), float(parent_created))
    # The starter waits for the first process only; the second is nobody's child, so it leaves no zombie.
    if broker is None or os.fork() > 0:
        return
    os.setsid()  # a Ctrl-C at the parent's terminal must not reach it
    watch(parent, broker, float(grace_seconds))


if __name__ == "__main__":
    main()
