"""Locks between processes: files that stay, held by flock."""

import contextlib
import fcntl
import os
import time

from frappe import LockTimeoutError


@contextlib.contextmanager
def hold(path, timeout):
    """Holds the lock of a file, waiting for it at most timeout seconds."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        end = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    name = os.path.basename(path).removesuffix(".lock")
                    raise LockTimeoutError(
                        f"Failed to aquire lock: {name}. Lock may be held by another process.<br>"
                        f"You can manually remove the lock if you think it's safe: {os.path.abspath(path)}"
                    ) from None
                time.sleep(0.05)
        yield
    finally:
        os.close(fd)
