"""Commands about configuration and caches."""

import ast
import json
import sys

import click

import frappe
from frappe import installer, passwords, simulated, site as sites
from frappe.cli import on_site


@click.command("set-config")
@click.argument("key")
@click.argument("value")
@click.option("-g", "--global", "global_", is_flag=True, default=False)
@click.option("-p", "--parse", is_flag=True, default=False)
@on_site
def set_config(context, key, value, global_, parse):
    "Insert/Update a value in site_config.json"
    if parse:
        value = ast.literal_eval(value)
    if global_:
        sites.set_common_config(key, value)
        return
    context.required()
    for name in context.sites:
        sites.Site(name).set_config(key, value)


@click.command("show-config")
@click.option("--format", "-f", "form", type=click.Choice(["text", "json"]), default="text")
@on_site
def show_config(context, form):
    "Print configuration file to STDOUT in speified format"
    context.required()
    found = {name: sites.Site(name).conf for name in context.sites}
    click.echo(json.dumps(found, indent=1, sort_keys=True) if form == "json" else "\n".join(f"{k}  {v}" for c in found.values() for k, v in sorted(c.items())))


@click.command("clear-cache")
@on_site
def clear_cache(context):
    "Clear cache, doctype cache and defaults"
    clear(context)


@click.command("clear-website-cache")
@on_site
def clear_website_cache(context):
    "Clear website cache"
    clear(context)


def clear(context):
    for site in context.each():
        simulated.delay("clear-cache")
        frappe.cache.delete_keys("")
    context.required()


METHODS = {
    "frappe.get_installed_apps": lambda site: installer.installed_apps(site.db),
    "frappe.utils.password.get_decrypted_password": passwords.get_decrypted,
    "frappe.utils.password.set_encrypted_password": passwords.set_encrypted,
}


@click.command("execute")
@click.argument("method")
@click.option("--args")
@click.option("--kwargs")
@click.option("--profile", is_flag=True, default=False)
@on_site
def execute(context, method, args, **_):
    "Execute a function"
    if method not in METHODS:
        sys.exit(f"bench stand-in: there is no {method} here")
    for site in context.each():
        if result := METHODS[method](site, *(ast.literal_eval(args) if args else ())):
            print(json.dumps(result))
    context.required()
