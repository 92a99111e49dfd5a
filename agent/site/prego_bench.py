"""What a bench needs for sites whose database and cache are on other servers.

prego-agent writes this file into the bench's sites/, from where Frappe's programs run, and
names configure() in extra_config of common_site_config.json. Frappe calls it for each site
that it opens, before it makes its cache (frappe/__init__.py, get_site_config).

It mends what Frappe 15 can't be configured to do; contributing/frappe.md says where that was read.
"""

import os
import re
import subprocess
import sys

# A row of a dump whose text is longer than this, in bytes, is not one statement: the server might refuse it.
_LARGE_ROW = 8 << 20
_LARGE_VALUE = 64 << 10

_INSERT = re.compile(rb"INSERT INTO `(?:[^`]|``)*` VALUES\s*")


def load(program, *args):
    """Runs MariaDB's client on the dump in the standard input.

    As text a value has up to twice its size, and a row all of its values: mariadb-dump writes rows that the server,
    which had stored them, takes in no statement. The values of such a row go in pieces.
    """
    if sys.stdin.isatty():
        os.execv(program, [program, *args])
    client = subprocess.Popen([program, *args], stdin=subprocess.PIPE, bufsize=1 << 20)
    try:
        with client:
            _feed(sys.stdin.buffer, client.stdin)
    except BrokenPipeError:
        pass  # it has ended, and stated why
    return client.returncode


def _feed(dump, to):
    insert = b""  # how a statement begins whose first row follows in the next line
    while line := dump.readline(_LARGE_ROW):
        whole, line, insert = line.endswith(b"\n"), insert + line, b""
        if not whole and len(line) >= _LARGE_ROW and _INSERT.match(line):
            _large_row(line, dump, to)
        elif whole and line.endswith(b" VALUES\n"):
            insert = line
        else:
            to.write(line)
    to.write(insert)


def _large_row(text, dump, to):
    """A statement with one row, as mariadb-dump writes a large one: its large values are in variables."""
    start = _INSERT.match(text).end()
    statement, text, variables = [text[:start]], text[start:], 0
    while True:
        before, quote, text = text.partition(b"'")
        statement.append(before)
        if not quote:
            if before.endswith(b"\n"):
                break
            text = _more(dump)
            continue
        pieces, length, ended = [], 0, False
        while not ended:
            # The mask has no escape sequences: each quote in it is the last one.
            mask = text.replace(b"\\\\", b"--").replace(b"\\'", b"--")
            end = mask.find(b"'")
            ended = end >= 0
            if not ended:
                end = len(text) - mask.endswith(b"\\")
            piece, text = text[:end], text[end + ended :]
            length += len(piece) - piece.count(b"\\") + piece.count(b"\\\\")
            if ended and not pieces and len(piece) <= _LARGE_VALUE:
                statement.append(b"'" + piece + b"'")
                break
            variables += 1
            pieces.append(b"@prego_%d" % variables)
            to.write(b"SET %s = '%s';\n" % (pieces[-1], piece))
            if not ended:
                text += _more(dump)
        else:
            value = b"CONCAT(" + b",".join(pieces) + b")"
            # Without this a value above max_allowed_packet would become NULL, and that only a warning.
            to.write(b"DO IF(LENGTH(%s) = %d, 0, (SELECT 1 UNION ALL SELECT 2));\n" % (value, length))
            statement.append(value)
    to.write(b"".join(statement))
    for n in range(1, variables + 1):
        to.write(b"SET @prego_%d = NULL;\n" % n)


def _more(dump):
    text = dump.readline(_LARGE_ROW)
    if not text:
        raise SystemExit("the dump ends in a row")
    return text


if __name__ == "__main__":
    raise SystemExit(load(*sys.argv[1:]))

import frappe  # noqa: E402
import frappe.database  # noqa: E402
from frappe.utils import redis_wrapper  # noqa: E402

_pools = {}


class SiteCache(redis_wrapper.RedisWrapper):
    """The cache of the site that is open.

    Frappe makes one for the whole process, of the first site's redis_cache. A tenant's user
    in Redis may use keys only that begin with its database's name: those that Frappe leaves
    without a prefix get it.
    """

    @property
    def connection_pool(self):
        conf = getattr(frappe.local, "conf", None)
        url = conf and conf.get("redis_cache")
        if not url:
            return self._first
        if url not in _pools:
            _pools.setdefault(url, redis_wrapper.RedisWrapper.from_url(url).connection_pool)
        return _pools[url]

    @connection_pool.setter
    def connection_pool(self, pool):
        self._first = pool

    def make_key(self, key, user=None, shared=False):
        return super().make_key(key, user)

    def execute_command(self, *args, **options):
        args = _prefixed(args)
        try:
            return super().execute_command(*args, **options)
        except redis_wrapper.redis.exceptions.TimeoutError as err:
            # What Frappe does without a cache, it does for a lost connection.
            raise redis_wrapper.redis.exceptions.ConnectionError(str(err)) from err


_OF_ONE_KEY = ("GET", "SET", "SETEX", "EXPIRE", "TTL", "INCRBY", "DEL", "EXISTS")


def _prefixed(args):
    """Two-factor logins use keys without a prefix (frappe/twofactor.py)."""
    name = getattr(frappe.local, "conf", None) and frappe.local.conf.get("db_name")
    if not name or len(args) < 2 or args[0] not in _OF_ONE_KEY:
        return args
    prefix = f"{name}|".encode()
    last = len(args) if args[0] in ("DEL", "EXISTS") else 2
    keys = [k if isinstance(k, bytes) else str(k).encode() for k in args[1:last]]
    return (args[0], *(k if k.startswith(prefix) else prefix + k for k in keys), *args[last:])


def _elsewhere():
    """Whether the open site's database is on another server."""
    conf = getattr(frappe.local, "conf", None) or {}
    return bool(conf.get("db_ssl_ca") and conf.get("db_ssl_cert") and conf.get("db_ssl_key")) and not conf.get("db_socket")


_setup_cache = redis_wrapper.setup_cache
_get_command = frappe.database.get_command
_setup_database = frappe.database.setup_database


def setup_cache():
    return SiteCache(connection_pool=_setup_cache().connection_pool)


def get_command(*args, **kwargs):
    """MariaDB's programs read rows of at most 24 MiB (mariadb-dump) and write 16 MiB (mariadb) by themselves: they get
    their largest limit, and load() runs the latter. They get the certificates that Frappe's own connections use."""
    program, command, name = _get_command(*args, **kwargs)
    command.insert(1, "--max-allowed-packet=2G")
    if _elsewhere():
        conf = frappe.local.conf
        tls = [f"--ssl-{key}={conf['db_ssl_' + key]}" for key in ("ca", "cert", "key")]
        command = [*tls, "--ssl-verify-server-cert", *command]
    if program and not kwargs.get("dump"):
        program, command = sys.executable, [os.path.abspath(__file__), program, *command]
    return program, command, name


def setup_database(force, verbose=None, mariadb_user_host_login_scope=None):
    """A restore empties the site's database with the site's own rights: nobody here is root
    where it is."""
    if not _elsewhere():
        return _setup_database(force, verbose, mariadb_user_host_login_scope)
    conf = frappe.local.conf
    db = frappe.database.get_db(
        host=conf["db_host"], port=conf["db_port"], user=conf["db_name"], password=conf["db_password"], cur_db_name=None
    )
    for statement in (
        f"DROP DATABASE IF EXISTS `{conf['db_name']}`",
        f"CREATE DATABASE `{conf['db_name']}` CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci",
    ):
        db.sql_ddl(statement)
    db.close()


redis_wrapper.setup_cache = setup_cache
frappe.database.get_command = get_command
frappe.database.setup_database = setup_database


def configure():
    """Adds nothing to the configuration: what it does was done when this was loaded."""
    if frappe.cache is not None and not isinstance(frappe.cache, SiteCache) and isinstance(frappe.cache, redis_wrapper.RedisWrapper):
        frappe.cache = setup_cache()
    return {}
