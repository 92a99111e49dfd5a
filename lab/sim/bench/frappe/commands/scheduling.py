"""Commands about the scheduler, the workers and maintenance."""

import sys
import time

import click

from frappe import installer, jobs, site as sites
from frappe.cli import on_site
from frappe.utils import redis_wrapper


@click.command("enable-scheduler")
@on_site
def enable_scheduler(context):
    "Enable scheduler"
    switch(context, True)


@click.command("disable-scheduler")
@on_site
def disable_scheduler(context):
    "Disable scheduler"
    switch(context, False)


def switch(context, on):
    for site in context.each():
        installer.hooks()
        installer.set_scheduler(site, on)
        print("Enabled for" if on else "Disabled for", site.name)
    context.required()


@click.command("scheduler")
@click.option("--site")
@click.argument("state", type=click.Choice(["pause", "resume", "disable", "enable", "status"]))
@click.option("--format", "-f", "form", default="text", type=click.Choice(["json", "text"]))
@click.option("--verbose", "-v", is_flag=True)
@on_site
def scheduler(context, site, state, form, verbose):
    """Control scheduler state."""
    site = sites.Site(site or context.one())
    if state == "status":
        state = "enabled" if jobs.scheduled(site) else "disabled"
    else:
        if state in ("pause", "resume"):
            site.set_config("pause_scheduler", state == "pause")
        else:
            site.connect()
            installer.set_scheduler(site, state == "enable")
        state += "d"
    site.close()
    text = '{"status": "%s", "site": "%s"}' if form == "json" else "Scheduler is %s for site %s"
    print(text % (state, site.name))


@click.command("set-maintenance-mode")
@click.option("--site")
@click.argument("state", type=click.Choice(["on", "off"]))
@on_site
def set_maintenance_mode(context, site, state):
    """Put the site in maintenance mode for upgrades."""
    sites.Site(site or context.one()).set_config("maintenance_mode", int(state == "on"))


@click.command("schedule")
def schedule():
    """Start scheduler process which is responsible for enqueueing the scheduled job types."""
    time.sleep(0.5)
    jobs.schedule()


@click.command("worker")
@click.option("--queue")
@click.option("--quiet", is_flag=True, default=False)
@click.option("-u", "--rq-username")
@click.option("-p", "--rq-password")
@click.option("--burst", is_flag=True, default=False)
@click.option("--strategy", type=click.Choice(["round_robin", "random"]))
def worker(queue, quiet, rq_username, rq_password, burst, strategy):
    """Start a background worker"""
    conf = sites.Site("", new=True).conf
    try:
        redis = redis_wrapper.Redis(conf["redis_queue"], rq_username, rq_password)
    except OSError as err:
        print(err, file=sys.stderr)
        sys.exit(1)
    jobs.work(redis, jobs.queues(queue), burst)
