"""MariaDB: connections, what only its root may do, and its client programs."""

import getpass
import gzip
import os
import shutil
import subprocess
import sys

from frappe import CommandFailed

# What the driver would load of it is never used here, and takes long to load.
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


def client(conf, dump=False):
    """The command line of MariaDB's client, or of its dump, as the site's user."""
    name, old = ("mariadb-dump", "mysqldump") if dump else ("mariadb", "mysql")
    program = shutil.which(name) or shutil.which(old)
    if not program:
        raise CommandFailed(f"{name} not found in PATH! This is required to {'take a backup' if dump else 'restore the database'}.")
    command = [program, "--user=" + conf["db_name"]]
    if conf.get("db_socket"):
        command.append("--socket=" + conf["db_socket"])
    else:
        command += [f"--host={conf['db_host']}", f"--port={conf['db_port']}"]
    command.append("--password=" + conf["db_password"])
    if dump:
        return command + ["--single-transaction", "--quick", "--lock-tables=false", conf["db_name"]]
    return command + ["--pager=less -SFX", "--safe-updates", "--no-auto-rehash", conf["db_name"]]


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
