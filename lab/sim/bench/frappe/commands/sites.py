"""Commands that make, change and take away sites."""

import json
import os
import sys

import click

from frappe import SiteNotSpecified, backups, database, installer, schema, simulated, site as sites
from frappe.cli import on_site
from frappe.utils import redis_wrapper


def root_options(*more):
    def add(function):
        for names in (("--db-root-password", "--mariadb-root-password", *more[1:]), ("--db-root-username", "--mariadb-root-username", *more[:1])):
            function = click.option(*names)(function)
        return function

    return add


@click.command("new-site")
@click.argument("site")
@click.option("--db-name")
@click.option("--db-password")
@click.option("--db-type", default="mariadb", type=click.Choice(["mariadb", "postgres"]))
@click.option("--db-host")
@click.option("--db-port", type=int)
@root_options()
@click.option("--db-socket", "--mariadb-db-socket", envvar="MYSQL_UNIX_PORT")
@click.option("--no-mariadb-socket", is_flag=True, default=False)
@click.option("--mariadb-user-host-login-scope")
@click.option("--admin-password")
@click.option("--verbose", is_flag=True, default=False)
@click.option("--force", is_flag=True, default=False)
@click.option("--source-sql", "--source_sql")
@click.option("--install-app", multiple=True)
@click.option("--set-default", is_flag=True, default=False)
@click.option("--setup-db/--no-setup-db", default=True)
def new_site(site, db_type, no_mariadb_socket, mariadb_user_host_login_scope, set_default, **options):
    "Create a new site"
    if db_type != "mariadb":
        sys.exit("bench stand-in: there is no PostgreSQL here")
    new = sites.Site(site, new=True)
    if site in sites.apps():
        click.secho(f"Your bench has an app called {site}, please choose another name for the site.", fg="red")
        sys.exit(1)
    scope = mariadb_user_host_login_scope
    if no_mariadb_socket:
        click.secho("--no-mariadb-socket is DEPRECATED; use --mariadb-user-host-login-scope='%' (wildcard) or "
                    "--mariadb-user-host-login-scope=<myhostscope>, instead.", fg="yellow")
        scope = "%"
    installer.new_site(
        new, db_type=db_type, login_scope=scope, db_name=options["db_name"], db_password=options["db_password"], db_host=options["db_host"],
        db_port=options["db_port"], db_socket=options["db_socket"], root_user=options["db_root_username"],
        root_password=options["db_root_password"], admin_password=options["admin_password"], source=options["source_sql"],
        install=options["install_app"], force=options["force"], setup_db=options["setup_db"])
    if set_default:
        make_default(site)


@click.command("restore")
@click.argument("sql-file-path")
@root_options()
@click.option("--db-name")
@click.option("--admin-password")
@click.option("--install-app", multiple=True)
@click.option("--with-public-files")
@click.option("--with-private-files")
@click.option("--force", is_flag=True, default=False)
@click.option("--encryption-key")
@on_site
def restore(context, sql_file_path, db_root_username, db_root_password, admin_password, install_app, with_public_files, with_private_files, force, **_):
    "Restore site database from an sql file"
    site = sites.Site(context.one())
    with site.lock("site_restore", timeout=1):
        backups.restore(site, sql_file_path, root_user=db_root_username, root_password=db_root_password, admin_password=admin_password,
                        install=install_app, force=context.force or force, public=with_public_files, private=with_private_files)


@click.command("drop-site")
@click.argument("site")
@root_options("--root-login", "--root-password")
@click.option("--archived-sites-path")
@click.option("--no-backup", is_flag=True, default=False)
@click.option("--force", is_flag=True, default=False)
def drop_site(site, db_root_username, db_root_password, archived_sites_path, no_backup, force):
    """Remove a site from database and filesystem."""
    installer.drop_site(sites.Site(site), db_root_username, db_root_password, archived_sites_path, force, not no_backup)


@click.command("install-app")
@click.argument("apps", nargs=-1)
@click.option("--force", is_flag=True, default=False)
@on_site
def install_app(context, apps, force):
    "Install a new app to site, supports multiple apps"
    context.required()
    status = 0
    for site in context.each():
        with site.lock("install_app", timeout=1):
            for app in apps:
                try:
                    installer.install_app(site, app, force=force)
                except Exception as err:
                    installer.report_failed_app(app, err)
                    status = 1
    sys.exit(status)


@click.command("list-apps")
@click.option("--format", "-f", "form", type=click.Choice(["text", "json"]), default="text")
@on_site
def list_apps(context, form):
    """
    List apps in site.
    """
    found = {}
    for site in context.each():
        rows = database.query(site.db, "SELECT app_name, app_version, git_branch FROM `tabInstalled Application` ORDER BY idx")
        found[site.name] = [row[0] for row in rows]
        name, version = (max((len(row[i]) for row in rows), default=0) for i in (0, 1))
        lines = [f"{row[0]:{name}} {row[1]:{version}} {row[2]}" for row in rows] or installer.installed_apps(site.db)
        if form == "text":
            print((site.name if len(context.sites) > 1 else "") + "\n" + "\n".join(lines) + "\n")
    if form == "json":
        click.echo(json.dumps(found, indent=1, sort_keys=True))


@click.command("migrate")
@click.option("--skip-failing", is_flag=True)
@click.option("--skip-search-index", is_flag=True)
@on_site
def migrate(context, skip_failing, skip_search_index):
    "Run patches, sync schema and rebuild files/translations"
    for name in context.sites:
        click.secho(f"Migrating {name}", fg="green")
        site = sites.Site(name, new=True)
        try:
            site.reload()
            site.connect()
            if not redis_wrapper.answers(site.conf["redis_cache"]):
                print("Service redis_cache is not running.\n\nCannot run bench migrate without the services running.")
                sys.exit(1)
            with site.lock("bench_migrate", timeout=1):
                simulated.delay("migrate")
                schema.create(site.db, schema.BASE | schema.OF_FRAPPE)
                installer.update_versions(site)
                sites.write_json(site.file("touched_tables.json"), [])
                for app in installer.installed_apps(site.db):
                    print(f"Updating DocTypes for {app:20}: [{'=' * 40}] 100%\nUpdating Dashboard for {app}")
                if not skip_search_index:
                    print(f"Queued rebuilding of search index for {name}")
        finally:
            site.close()
            print()
    context.required()


@click.command("use")
@click.argument("site")
def use(site):
    "Set a default site"
    make_default(site)


def make_default(site):
    if os.path.exists(site):
        sites.set_common_config("default_site", site)
        print(f"Current Site set to {site}")
    else:
        print(f"Site {site} does not exist")


@click.command("backup")
@click.option("--with-files", default=False, is_flag=True)
@click.option("--include", "--only", "-i", default="")
@click.option("--exclude", "-e", default="")
@click.option("--backup-path")
@click.option("--backup-path-db")
@click.option("--backup-path-files")
@click.option("--backup-path-private-files")
@click.option("--backup-path-conf")
@click.option("--ignore-backup-conf", default=False, is_flag=True)
@click.option("--verbose", default=False, is_flag=True)
@click.option("--compress", default=False, is_flag=True)
@click.option("--old-backup-metadata", default=False, is_flag=True)
@on_site
def backup(context, with_files, include, exclude, backup_path, verbose, compress, **paths):
    "Backup"
    if include or exclude:
        sys.exit("bench stand-in: there are no partial backups here")
    paths = {part: paths["backup_path_" + part] for part in backups.PARTS}
    status = 0
    for name in context.sites:
        site = sites.Site(name, new=True)
        try:
            site.reload()
            site.connect()
            simulated.delay("backup")
            taken = backups.take(site, with_files, backup_path, paths, compress, verbose or context.verbose)
        except Exception as err:
            click.secho(f"Backup failed for Site {name}. Database or site_config.json may be corrupted", fg="red")
            if verbose or context.verbose:
                print(repr(err))
            status = 1
            continue
        finally:
            site.close()
        taken.print_summary()
        click.secho(f"Backup for Site {name} has been successfully completed{' with files' if with_files else ''}", fg="green")
    if not context.sites:
        raise SiteNotSpecified
    sys.exit(status)
