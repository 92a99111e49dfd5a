"""Making sites, installing apps, taking sites away."""

import getpass
import hashlib
import json
import os
import shutil
import sys
import traceback

import click

import frappe
from frappe import database, passwords, schema, simulated, site as sites, users
from frappe.database import query

DIRECTORIES = ("public/files", "private/backups", "private/files", "locks", "logs")


def new_site(site, *, db_name=None, db_password=None, db_type=None, db_host=None, db_port=None, db_socket=None, root_user=None,
             root_password=None, admin_password=None, login_scope=None, source=None, install=(), force=False, setup_db=True, reinstall=False):
    """Makes a site's directory, configuration and database, and installs its apps.

    The order is Frappe's: what fails leaves what was made before it.
    """
    if not force and os.path.exists(site.name):
        print(f"Site {site.name} already exists")
        sys.exit(1)
    db_name = db_name or "_" + hashlib.sha1(os.path.realpath(site.path).encode(), usedforsecurity=False).hexdigest()[:16]
    scheduled = scheduler_enabled(site)
    for directory in DIRECTORIES:
        os.makedirs(site.file(directory), exist_ok=True)
    with site.lock("bench_new_site", timeout=1):
        if not os.path.exists(site.config_file):
            conf = {"db_name": db_name, "db_password": db_password or database.random_text(16)}
            given = {"db_type": db_type, "db_socket": db_socket, "db_host": db_host, "db_port": db_port}
            conf.update({key: value for key, value in given.items() if value})
            sites.write_json(site.config_file, conf)
        site.reload()
        if setup_db:
            frappe.local.root_login = (root_user, root_password)
            database.setup_database(force, mariadb_user_host_login_scope=login_scope)
        simulated.delay("new-site" if not source else "restore")
        site.connect()
        database.warn_about_version(site.db)
        if source:
            database.load(site.conf, source)
        else:
            database.bootstrap(site.conf)
            schema.create(site.db, schema.BASE)
        if "tabDefaultValue" not in schema.tables(site.db):
            click.secho(
                "Table 'tabDefaultValue' missing in the restored site. This happens when the backup fails to restore. "
                "Please check that the file is valid\n"
                "Do go through the above output to check the exact error message from MariaDB", fg="red")
            sys.exit(1)
        for app in ["frappe", *(site.conf.get("install_apps") or []), *install]:
            install_app(site, app, admin_password=site.conf.get("admin_password") or admin_password)
        set_scheduler(site, scheduled)
    print(f"*** Scheduler is {'enabled' if scheduled else 'disabled'} ***")
    site.close()


def ask_admin_password():
    while True:
        password = getpass.getpass("Set Administrator password: ")
        if password == getpass.getpass("Re-enter Administrator password: "):
            return password
        print("\nPasswords do not match")


def installed_apps(db):
    rows = query(db, "SELECT defvalue FROM tabDefaultValue WHERE parent = '__global' AND defkey = 'installed_apps'")
    return json.loads(rows[0][0]) if rows else []


def install_app(site, name, force=False, admin_password=None):
    """Installs an app whose code is on the bench and whose name is in apps.txt."""
    if not os.path.isdir(sites.bench_path("apps", name)):
        print(f'Could not find app "{name}": \nNo module named \'{name}\'')
        raise ModuleNotFoundError(f"No module named '{name}'")
    if name not in sites.apps():
        raise Exception(f"App {name} not in apps.txt")
    hooks(name)
    there = installed_apps(site.db)
    if name in there and not force:
        click.secho(f"App {name} already installed", fg="yellow")
        return
    print(f"\nInstalling {name}...")
    if name == "frappe":
        install_frappe(site)
        passwords.update(site.db, "Administrator", admin_password or ask_admin_password())
        open(site.file(".test_log"), "w").close()
    else:
        simulated.delay("install-app")
    if name not in there:
        query(site.db, "DELETE FROM tabDefaultValue WHERE parent = '__global' AND defkey = 'installed_apps'")
        schema.insert(site.db, "DefaultValue", name=database.random_text(10), parent="__global", parentfield="system_defaults",
                      parenttype="__default", defkey="installed_apps", defvalue=json.dumps([*there, name]))
    print(f"Updating DocTypes for {name:20}: [{'=' * 40}] 100%\nUpdating Dashboard for {name}")


def hooks(*apps):
    """What the apps hook into, which the cache keeps."""
    return frappe.cache.get_value("app_hooks", lambda: {"app_name": list(apps)})


def install_frappe(site):
    schema.create(site.db, schema.OF_FRAPPE)
    for user, kind, role in (("Administrator", "System User", "Administrator"), ("Guest", "Website User", "Guest")):
        if not users.exists(site.db, user):
            schema.insert(site.db, "User", name=user, email=user.lower() + "@example.com", first_name=user, user_type=kind)
            users.give_role(site.db, user, role)


def update_versions(site):
    """Keeps which version of which app is installed; only a migration does it."""
    with users.transaction(site.db):
        query(site.db, "DELETE FROM `tabInstalled Application`")
        for i, app in enumerate(installed_apps(site.db)):
            schema.insert(site.db, "Installed Application", name=database.random_text(10), parent="Installed Applications", idx=i + 1,
                          parentfield="installed_applications", parenttype="Installed Applications", app_name=app, app_version=simulated.version(),
                          git_branch="UNVERSIONED")


def scheduler_enabled(site):
    try:
        site.connect()
        return bool(int(schema.single(site.db, "System Settings", "enable_scheduler") or 0))
    except Exception:
        return False
    finally:
        site.close()


def set_scheduler(site, on):
    schema.set_single(site.db, "System Settings", "enable_scheduler", int(bool(on)))


def drop_site(site, root_user=None, root_password=None, archive=None, force=False, backup=True):
    """Drops the database and its users, and moves the directory to the archive."""
    from frappe import backups

    site.connect()
    if backup:
        try:
            click.secho(f"Taking backup of {site.name}", fg="green")
            backups.take(site, files=True, verbose=True).print_summary()
        except Exception as err:
            if not force:
                click.echo("=" * 80)
                click.echo(f"Error: The operation has stopped because backup of {site.name}'s database failed.")
                click.echo(f"Reason: {err}\n\nFix the issue and try again.")
                click.echo(f"Hint: Use 'bench drop-site {site.name} --force' to force the removal of {site.name}")
                sys.exit(1)
    click.secho("Dropping site database and user", fg="green")
    root = database.Root(site.conf, root_user, root_password)
    name = site.conf["db_name"]
    root.drop_database(name)
    root.drop_user(name, "%")
    root.drop_user(name)
    root.close()
    archive = os.path.realpath(archive or sites.bench_path("archived", "sites"))
    click.secho(f"Moving site to archive under {archive}", fg="green")
    os.makedirs(archive, exist_ok=True)
    to, n = os.path.join(archive, site.name), 0
    while os.path.exists(to):
        n += 1
        to = os.path.join(archive, site.name + str(n))
    shutil.move(site.path, to)


def report_failed_app(app, err):
    print(f"An error occurred while installing {app}: {err}\n{traceback.format_exc()}")
