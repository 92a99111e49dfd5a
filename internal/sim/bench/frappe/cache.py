"""Redis: as much of its protocol as is needed."""

import socket
import urllib.parse


class Redis:
    """A connection to the server of a redis:// or unix:// address."""

    def __init__(self, url, user=None, password=None, timeout=3):
        parts = urllib.parse.urlsplit(url)
        if parts.scheme == "unix":
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(timeout)
            self.socket.connect(parts.path)
        else:
            self.socket = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 6379), timeout)
        self.lines = self.socket.makefile("rb")
        password = password or parts.password
        if password:
            self.ask("AUTH", *([user or parts.username] if user or parts.username else []), password)

    def ask(self, *words):
        """Sends a command and returns the answer."""
        raw = [w if isinstance(w, bytes) else str(w).encode() for w in words]
        self.socket.sendall(b"*%d\r\n" % len(raw) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in raw))
        return self.answer()

    def answer(self):
        line = self.lines.readline()
        if not line:
            raise ConnectionError("Redis closed the connection")
        kind, rest = line[:1], line[1:].strip()
        if kind == b"-":
            raise OSError("Redis: " + rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.lines.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self.answer() for _ in range(int(rest))]
        return rest


def answers(url):
    try:
        return Redis(url, timeout=1).ask("PING") == b"PONG"
    except (OSError, ValueError):
        return False


def clear(site):
    """Deletes the site's keys. A cache that is away is no error."""
    try:
        redis = Redis(site.conf["redis_cache"], timeout=1)
        for key in redis.ask("KEYS", site.conf["db_name"] + "|*"):
            redis.ask("DEL", key)
    except (OSError, ValueError):
        pass
