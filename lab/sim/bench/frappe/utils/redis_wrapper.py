"""Redis: as much of its protocol as is needed, and Frappe's cache over it."""

import pickle
import socket
import threading
import urllib.parse

import frappe


class redis:
    """The names that Frappe's users know of its client for Redis."""

    class exceptions:
        class RedisError(Exception):
            pass

        class ConnectionError(RedisError):
            pass

        class TimeoutError(RedisError):
            pass

        class ResponseError(RedisError):
            pass

        class NoPermissionError(ResponseError):
            pass


class Redis:
    """A connection to the server of a redis://, rediss:// or unix:// address."""

    def __init__(self, url, user=None, password=None, timeout=3):
        parts = urllib.parse.urlsplit(url)
        options = dict(urllib.parse.parse_qsl(parts.query))
        connect_timeout = float(options.get("socket_connect_timeout", timeout))
        if parts.scheme == "unix":
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(connect_timeout)
            self.socket.connect(parts.path)
        else:
            self.socket = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 6379), connect_timeout)
        if parts.scheme == "rediss":
            self.socket = secure(self.socket, parts.hostname, options)
        self.socket.settimeout(float(options.get("socket_timeout", timeout)))
        self.lines = self.socket.makefile("rb")
        password = password or urllib.parse.unquote(parts.password or "")
        user = user or urllib.parse.unquote(parts.username or "")
        if password:
            self.ask("AUTH", *([user] if user else []), password)
        number = parts.path.strip("/") if parts.scheme != "unix" else ""
        if number not in ("", "0"):
            self.ask("SELECT", number)

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


def secure(plain, host, options):
    """TLS as redis-py has it: the chain is checked, the name when that is asked for."""
    import ssl

    context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"))
    context.check_hostname = options.get("ssl_check_hostname", "").lower() in ("true", "1", "yes")
    if options.get("ssl_certfile"):
        context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"))
    return context.wrap_socket(plain, server_hostname=host)


class Pool:
    """The connections of a process to one address, one for each thread."""

    def __init__(self, url):
        self.url = url
        self.own = threading.local()

    def ask(self, *words):
        exceptions = redis.exceptions
        try:
            if not getattr(self.own, "redis", None):
                self.own.redis = Redis(self.url, timeout=1)
            return self.own.redis.ask(*words)
        except TimeoutError as err:
            self.own.redis = None
            raise exceptions.TimeoutError(str(err)) from err
        except (OSError, ValueError) as err:
            text = str(err)
            if "NOPERM" in text:
                raise exceptions.NoPermissionError(text) from err
            if text.startswith("Redis: "):
                raise exceptions.ResponseError(text) from err
            self.own.redis = None
            raise exceptions.ConnectionError(text) from err


class RedisWrapper:
    """The cache of a site: keys begin with the name of its database, unless they are shared."""

    def __init__(self, connection_pool):
        self.connection_pool = connection_pool

    @classmethod
    def from_url(cls, url):
        return cls(connection_pool=Pool(url))

    def execute_command(self, *args, **_):
        return self.connection_pool.ask(*args)

    def make_key(self, key, user=None, shared=False):
        if shared:
            return key
        if user:
            key = f"user:{user}:{key}"
        return f"{frappe.local.conf.get('db_name')}|{key}".encode()

    def get_value(self, key, generator=None, shared=False):
        """A value, which is made when there is none. A cache that is away is no error."""
        key = self.make_key(key, shared=shared)
        try:
            found = self.execute_command("GET", key)
            if found is not None:
                return pickle.loads(found)
        except redis.exceptions.ConnectionError:
            pass
        value = generator() if generator else None
        if value is not None:
            try:
                self.execute_command("SET", key, pickle.dumps(value))
            except redis.exceptions.ConnectionError:
                pass
        return value

    def delete_keys(self, key):
        try:
            for found in self.execute_command("KEYS", self.make_key(key + "*")):
                self.execute_command("DEL", found)
        except redis.exceptions.ConnectionError:
            pass


def setup_cache():
    return RedisWrapper.from_url(frappe.local.conf["redis_cache"])


def answers(url):
    try:
        return Redis(url, timeout=1).ask("PING") == b"PONG"
    except (OSError, ValueError):
        return False
