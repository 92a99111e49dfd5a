"""MariaDB: connections, what only its root may do, and its client programs."""

import getpass
import gzip
import os
import shutil
import subprocess
import sys

import frappe
from frappe import CommandFailed

# What the driver would load of it is never used here, and takes long to load. passwords.fernet loads it.
sys.modules.setdefault("cryptography", None)


def connect(conf, user, password, database=None):
    """Connects by the socket where one is configured, else by host and port."""
    import pymysql

    settings = {"user": user, "charset": "utf8mb4", "autocommit": True}
    if database:
        settings["database"] = database
    if conf.get("db_socket"):
        settings["unix_socket"] = conf["db_socket"]
    else:
        settings["host"], settings["port"] = conf["db_host"], int(conf["db_port"])
    if password:
        settings["password"] = password
    if conf.get("db_ssl_ca") and conf.get("db_ssl_cert") and conf.get("db_ssl_key"):
        settings["ssl"] = {"ca": conf["db_ssl_ca"], "cert": conf["db_ssl_cert"], "key": conf["db_ssl_key"]}
    return pymysql.connect(**settings)


def query(db, text, *args):
    """Runs a statement and returns its rows."""
    with db.cursor() as cursor:
        cursor.execute(text, args or None)
        return cursor.fetchall()


class Root:
    """What is done as MariaDB's root. Without a password one is asked for."""

    def __init__(self, conf, user, password):
        password = password or conf.get("root_password") or getpass.getpass("MySQL root password: ")
        self.db = connect(conf, user or "root", password)

    def close(self):
        self.db.close()

    def databases(self):
        return [row[0] for row in query(self.db, "SHOW DATABASES")]

    def current_host(self):
        """The host that the server sees this connection come from."""
        return query(self.db, "SELECT USER()")[0][0].split("@")[1]

    def drop_user(self, name, host=None):
        query(self.db, f"DROP USER IF EXISTS '{name}'@'{host or self.current_host()}'")

    def drop_database(self, name):
        query(self.db, f"DROP DATABASE IF EXISTS `{name}`")

    def create(self, name, password, host=None):
        """Makes a user and a database of the same name that is all the user's."""
        host = host or self.current_host()
        query(self.db, f"CREATE USER '{name}'@'{host}' IDENTIFIED BY '{password}'")
        query(self.db, f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci")
        query(self.db, f"GRANT ALL PRIVILEGES ON `{name}`.* TO '{name}'@'{host}'")
        query(self.db, "FLUSH PRIVILEGES")


def get_command(host=None, port=None, user=None, password=None, db_name=None, extra=None, dump=False, socket=None):
    """A client program of MariaDB, its options and its name. No option is about TLS."""
    name, old = ("mariadb-dump", "mysqldump") if dump else ("mariadb", "mysql")
    command = ["--user=" + user]
    if socket:
        command.append("--socket=" + socket)
    else:
        command += [f"--host={host}", f"--port={port}"]
    if password:
        command.append("--password=" + password)
    command += ["--single-transaction", "--quick", "--lock-tables=false"] if dump else ["--pager=less -SFX", "--safe-updates", "--no-auto-rehash"]
    return shutil.which(name) or shutil.which(old), [*command, db_name, *(extra or [])], name


def client(conf, dump=False):
    """The command line of MariaDB's client, or of its dump, as the site's user."""
    program, command, name = get_command(
        socket=conf.get("db_socket"), host=conf["db_host"], port=conf["db_port"], user=conf["db_name"], password=conf["db_password"],
        db_name=conf["db_name"], dump=dump)
    if not program:
        raise CommandFailed(f"{name} not found in PATH! This is required to {'take a backup' if dump else 'restore the database'}.")
    return [program, *command]


class Connection:
    """What get_db returns."""

    def __init__(self, db):
        self.db = db

    def sql_ddl(self, statement):
        query(self.db, statement)

    def close(self):
        self.db.close()


def get_db(host=None, user=None, password=None, port=None, cur_db_name=None, socket=None):
    conf = dict(frappe.local.conf, db_host=host, db_port=port, db_socket=socket)
    return Connection(connect(conf, user, password, cur_db_name))


def setup_database(force, verbose=None, mariadb_user_host_login_scope=None):
    """Makes the open site's database and its user, as root."""
    conf = frappe.local.conf
    name, scope = conf["db_name"], mariadb_user_host_login_scope
    root = Root(conf, *frappe.local.root_login)
    if not force and name in root.databases():
        raise Exception(f"Database {name} already exists")
    root.drop_user(name, scope)
    root.drop_database(name)
    root.create(name, conf["db_password"], scope)
    root.close()


def bootstrap(conf):
    """Frappe's first tables come through MariaDB's client."""
    if not conf.get("db_socket"):
        pipeline(["echo", "SELECT 1;"], client(conf))


def pipeline(*commands, stdin=None, stdout=None):
    """Runs commands, each with the output of the one before; the failure of any is one."""
    processes, before = [], stdin
    for i, command in enumerate(commands):
        last = i == len(commands) - 1
        out = stdout if last and stdout else subprocess.PIPE
        processes.append(subprocess.Popen(command, stdin=before or subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE))
        if i > 0:
            before.close()
        before = processes[-1].stdout
    out = before.read() if before else b""
    errors = b"".join(p.stderr.read() for p in processes)
    if any([p.wait() for p in processes]):
        if errors:
            print(errors)
        if out:
            print(out)
        raise CommandFailed("Command failed")


def dump(conf, header, path, verbose=False):
    """Writes the header and the whole database into a gzip file."""
    with gzip.open(path, "wt") as f:
        f.write(header)
    command, packer = client(conf, dump=True), shutil.which("gzip") or "gzip"
    if verbose:
        shown = " ".join(command).replace(conf["db_password"], "*" * 10)
        print(f"set -o pipefail; {shown} | {packer} >> {path}\n")
    with open(path, "ab") as f:
        pipeline(command, [packer], stdout=f)


def load(conf, path):
    """Runs the statements of a file, or gzip file, in the site's database."""
    read = ["gzip", "-cd", path] if path.endswith(".gz") else ["cat", path]
    # The first line of newer dumps stops older clients.
    pipeline(read, ["sed", r"/\/\*M\{0,1\}!999999\\- enable the sandbox mode \*\//d"], client(conf))


def warn_about_version(db):
    import click

    version = query(db, "SELECT VERSION()")[0][0].split("-", 1)[0].rsplit(".", 1)
    number = tuple(int(part) for part in version[0].split("."))
    if number < (10, 6):
        click.secho(f"Warning: MariaDB version {version} is less than 10.6 which is not supported by Frappe", fg="yellow")
    elif number >= (10, 9):
        click.secho(f"Warning: MariaDB version {version} is more than 10.8 which is not yet tested with Frappe Framework.", fg="yellow")


def random_text(length):
    import string

    letters = string.ascii_letters + string.digits
    return "".join(letters[b % len(letters)] for b in os.urandom(length))
