"""Commands about users and their passwords."""

import getpass
import sys

import click

from frappe import passwords, schema, site as sites, users
from frappe.cli import on_site
from frappe.database import query


@click.command("add-system-manager")
@click.argument("email")
@click.option("--first-name")
@click.option("--last-name")
@click.option("--password")
@click.option("--send-welcome-email", default=False, is_flag=True)
@on_site
def add_system_manager(context, email, first_name, last_name, password, send_welcome_email):
    "Add a new system manager to a site"
    for site in context.each():
        users.add(site.db, email, first_name, last_name, password, [r for r in schema.ROLES if r != "Administrator"])
    context.required()


@click.command("add-user")
@click.argument("email")
@click.option("--first-name")
@click.option("--last-name")
@click.option("--password")
@click.option("--user-type")
@click.option("--add-role", multiple=True)
@click.option("--send-welcome-email", default=False, is_flag=True)
@on_site
def add_user(context, email, first_name, last_name, password, user_type, add_role, send_welcome_email):
    "Add user to a site"
    for site in context.each():
        users.add(site.db, email, first_name, last_name, password, add_role, user_type or "System User")
    context.required()


@click.command("disable-user")
@click.argument("email")
@on_site
def disable_user(context, email):
    """Disable a user account on site."""
    site = sites.Site(context.one())
    site.connect()
    if not users.exists(site.db, email):
        raise LookupError(f"User {email} not found")
    query(site.db, "UPDATE tabUser SET enabled = 0 WHERE name = %s", email)


@click.command("set-password")
@click.argument("user")
@click.argument("password", required=False)
@click.option("--logout-all-sessions", is_flag=True, default=False)
@on_site
def set_password(context, user, password, logout_all_sessions):
    "Set password for a user on a site"
    context.required()
    for name in context.sites:
        change(name, user, password, logout_all_sessions)


@click.command("set-admin-password")
@click.argument("admin-password", required=False)
@click.option("--logout-all-sessions", is_flag=True, default=False)
@on_site
def set_admin_password(context, admin_password, logout_all_sessions):
    "Set Administrator password for a site"
    context.required()
    for name in context.sites:
        change(name, "Administrator", admin_password, logout_all_sessions)


def change(name, user, password, logout):
    site = sites.Site(name)
    while not password:
        password = getpass.getpass(f"{user}'s password for {name}: ")
    site.connect()
    if not users.exists(site.db, user):
        print(f"User {user} does not exist")
        sys.exit(1)
    passwords.update(site.db, user, password)
    if logout:
        query(site.db, "DELETE FROM tabSessions WHERE user = %s", user)
    site.close()
