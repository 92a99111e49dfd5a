"""A site: its directory, its configuration and its database."""

import importlib
import json
import os
import traceback

import frappe
from frappe import IncorrectSitePath, locks


class Site:
    """A site of the bench whose directory sites/ is the current one."""

    def __init__(self, name, new=False):
        self.name = name
        self.path = os.path.join(".", name)
        self.conf = {}
        self._db = None
        self.reload(new)

    def reload(self, new=False):
        """Reads the configuration: the site's over the bench's, the environment over both."""
        conf = read_json("common_site_config.json", "common_site_config.json")
        if os.path.exists(self.config_file):
            conf.update(read_json(self.config_file, self.name + "/site_config.json"))
        elif self.name and not new:
            raise IncorrectSitePath(self.name + " does not exist")
        for key, otherwise in (
            ("redis_queue", "redis://127.0.0.1:11311"),
            ("redis_cache", "redis://127.0.0.1:13311"),
            ("db_type", "mariadb"),
            ("db_socket", None),
            ("db_host", "127.0.0.1"),
            ("db_port", 3306),
        ):
            conf[key] = os.environ.get("FRAPPE_" + key.upper()) or conf.get(key) or otherwise
        extend(conf)
        self.conf = conf
        self.use()

    def use(self):
        """Makes it the site that this thread has open."""
        frappe.local.conf = self.conf
        frappe.setup_redis_cache_connection()

    @property
    def config_file(self):
        return os.path.join(self.path, "site_config.json")

    def file(self, *parts):
        return os.path.join(self.path, *parts)

    def connect(self):
        """Checks that there is something to connect with. The first statement connects."""
        if not self.conf.get("db_name"):
            raise AssertionError("site must be fully initialized, db_name missing")
        if not self.conf.get("db_password"):
            raise AssertionError("site must be fully initialized, db_password missing")

    @property
    def db(self):
        """The connection to the site's database, as the site's own user."""
        if not self._db:
            from frappe import database

            self._db = database.connect(self.conf, self.conf["db_name"], self.conf["db_password"], self.conf["db_name"])
        return self._db

    def close(self):
        if self._db:
            self._db.close()
            self._db = None

    def lock(self, name, timeout=30):
        return locks.hold(self.file("locks", name + ".lock"), timeout)

    def set_config(self, key, value):
        with self.lock("site_config"):
            update_json(self.config_file, key, value)


def extend(conf):
    """Calls the hooks that may extend the configuration. One that fails is told about."""
    hooks = conf.get("extra_config") or []
    for hook in [hooks] if isinstance(hooks, str) else hooks:
        try:
            module, method = hook.rsplit(".", 1)
            conf.update(getattr(importlib.import_module(module), method)())
        except Exception:
            print(f"Config hook {hook} failed")
            traceback.print_exc()


def bench_path(*parts):
    return os.path.join(os.environ.get("FRAPPE_BENCH_ROOT") or os.path.abspath(".."), *parts)


def apps():
    """The apps of the bench: the lines of apps.txt, Frappe first."""
    try:
        with open("apps.txt", encoding="utf-8") as f:
            names = f.read().split()
    except OSError:
        names = []
    return ["frappe"] + [n for n in names if n != "frappe"]


def sites():
    """The sites of the bench by name: directories, not links, that have a configuration."""
    found = []
    for name in os.listdir("."):
        if os.path.isdir(name) and not os.path.islink(name) and os.path.exists(os.path.join(name, "site_config.json")):
            found.append(name)
    return sorted(found)


def read_json(path, shown):
    """Reads a configuration. One that can't be read is told about, and counts as empty."""
    try:
        with open(path, encoding="utf-8") as f:
            return dict(json.load(f))
    except FileNotFoundError:
        return {}
    except Exception as err:
        import click

        click.secho(shown + " is invalid", fg="red")
        print(err)
        return {}


def write_json(path, conf):
    with open(path, "w", encoding="utf-8") as f:
        f.write(json.dumps(conf, indent=1, sort_keys=True))


def update_json(path, key, value):
    """Sets a key; some words of the command line stand for other values, None removes."""
    with open(path, encoding="utf-8") as f:
        conf = json.load(f)
    words = {"0": 0, "1": 1, "false": False, "true": True}
    if value == "None":
        conf.pop(key, None)
    else:
        conf[key] = words.get(value, value) if isinstance(value, str) else value
    write_json(path, conf)


def set_common_config(key, value):
    with locks.hold(bench_path("config", "site_config.lock"), 30):
        update_json(os.path.abspath("common_site_config.json"), key, value)
