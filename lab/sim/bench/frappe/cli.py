"""The command line: what is common to all commands."""

import functools
import os
import sys

import click

from frappe import IncorrectSitePath, SiteNotSpecified, site as sites


class Context:
    """The options that stand before the command."""

    def __init__(self, site, verbose, force):
        self.sites, self.verbose, self.force = chosen(site), verbose, force

    def one(self):
        if not self.sites:
            raise SiteNotSpecified
        return self.sites[0]

    def each(self):
        """Every site, opened and connected one after the other."""
        for name in self.sites:
            site = sites.Site(name)
            try:
                site.connect()
                yield site
            finally:
                site.close()

    def required(self):
        if not self.sites:
            raise SiteNotSpecified


def chosen(site):
    if site == "all":
        return sites.sites()
    default = site or os.environ.get("FRAPPE_SITE") or sites.Site("", new=True).conf.get("default_site")
    return [default] if default else []


def on_site(function):
    """Gives a command the context, and says what is wrong with the site as Frappe does."""

    @click.pass_context
    @functools.wraps(function)
    def command(ctx, *args, **kwargs):
        try:
            return function(ctx.obj, *args, **kwargs)
        except SiteNotSpecified as err:
            click.secho(str(err), fg="yellow")
        except IncorrectSitePath:
            click.secho(f"Site {ctx.obj.sites[0]} does not exist!", fg="yellow")
        sys.exit(1)

    return command


@click.option("--site")
@click.option("--profile", is_flag=True, default=False, help="Profile")
@click.option("--verbose", is_flag=True, default=False, help="Verbose")
@click.option("--force", is_flag=True, default=False, help="Force")
@click.pass_context
def group(ctx, site, force, verbose, profile):
    ctx.obj = Context(site, verbose, force)
    ctx.info_name = ""


# Commands that Frappe 15 has, and the stand-in has not.
ABSENT = """
add-database-index add-to-email-queue add-to-hosts browse build build-message-files build-search-index bulk-rename clear-log-table
compile-po-to-mo console create-patch create-po-file create-pot-file create-rq-users data-import db-console describe-database-table
destroy-all-sessions doctor export-csv export-doc export-fixtures export-json generate-pot-file get-untranslated import-doc
import-translations jupyter make-app mariadb migrate-csv-to-po migrate-to migrate-translations new-language ngrok partial-restore postgres
publish-realtime purge-jobs rebuild-global-search reload-doc reload-doctype remove-from-installed-apps request reset-perms run-parallel-tests
run-patch run-tests run-ui-tests serve set-last-active-for-user show-pending-jobs start-recording stop-recording transform-database
trigger-scheduler-event trim-database trim-tables uninstall-app update-po-files update-translations version watch worker-pool ready-for-migration reinstall
""".split()


class Commands(click.Group):
    """Frappe's commands: each is loaded when it is called for."""

    modules = {
        "new-site": "sites", "restore": "sites", "drop-site": "sites", "backup": "sites", "install-app": "sites", "list-apps": "sites",
        "migrate": "sites", "use": "sites", "add-system-manager": "people", "add-user": "people", "disable-user": "people",
        "set-password": "people", "set-admin-password": "people", "enable-scheduler": "scheduling", "disable-scheduler": "scheduling",
        "scheduler": "scheduling", "set-maintenance-mode": "scheduling", "worker": "scheduling", "schedule": "scheduling",
        "set-config": "settings", "show-config": "settings", "clear-cache": "settings", "clear-website-cache": "settings",
        "execute": "settings",
    }

    def list_commands(self, ctx):
        return sorted(self.modules)

    def get_command(self, ctx, name):
        if name in self.modules:
            import importlib

            module = importlib.import_module("frappe.commands." + self.modules[name])
            return getattr(module, name.replace("-", "_"))
        if name in ABSENT:
            print(f"bench stand-in: Frappe has the command {name}, and it is not needed here", file=sys.stderr)
            sys.exit(3)
        return None


def main(args):
    frappe = Commands("frappe", callback=group, params=getattr(group, "__click_params__", [])[::-1])
    click.Group(commands={"frappe": frappe})(["frappe", *args], prog_name="bench")


def no_bench(args):
    """What bench says to a command of Frappe where there is no Frappe."""
    click.Group("bench")(args, prog_name="bench")
