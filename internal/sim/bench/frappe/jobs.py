"""The scheduler and the workers: jobs of sites on queues in Redis."""

import json
import os
import signal
import sys
import time

from frappe import LockTimeoutError, database, locks, schema, site as sites
from frappe.utils import redis_wrapper

QUEUES = ("short", "default", "long")
TICK = 60


def key(queue):
    """Queues are kept apart by bench, as several may share a Redis."""
    return "rq:queue:" + os.path.abspath("..").strip("/").replace("/", "-") + ":" + queue


def queues(names):
    wanted = [n.strip() for n in names.split(",")] if names else list(QUEUES)
    for name in wanted:
        if name not in QUEUES:
            sys.exit(f"Queue should be one of {', '.join(QUEUES)}")
    return [key(name) for name in wanted]


def scheduled(site):
    """Whether the scheduler works on a site."""
    if site.conf.get("maintenance_mode") or site.conf.get("pause_scheduler"):
        return False
    site.connect()
    return bool(int(schema.single(site.db, "System Settings", "enable_scheduler") or 0))


def schedule():
    """Queues a job of every site each tick. Where there is a scheduler, another ends."""
    conf = sites.Site("", new=True).conf
    try:
        with locks.hold(sites.bench_path("config", "scheduler_process"), 0):
            while True:
                time.sleep(float(conf.get("scheduler_tick_interval") or TICK))
                for name in sites.sites():
                    try:
                        enqueue(name)
                    except Exception as err:
                        print(f"scheduler: {name}: {err}", file=sys.stderr, flush=True)
    except LockTimeoutError:
        pass


def enqueue(name):
    site = sites.Site(name)
    try:
        if scheduled(site):
            job = json.dumps({"site": name, "job": "all"})
            redis_wrapper.Redis(site.conf["redis_queue"]).ask("RPUSH", key("default"), job)
    finally:
        site.close()


def work(redis, wanted, burst):
    """Runs jobs as they come, until SIGTERM or SIGINT: each leaves a row in its site's log."""
    told = []
    for sig in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sig, lambda *_: told.append(True))
    print("Worker listening on " + ", ".join(wanted), flush=True)
    while not told:
        got = redis.ask("BLPOP", *wanted, 1)
        if got is None:
            if burst:
                return
            continue
        job = json.loads(got[1])
        try:
            site = sites.Site(job["site"])
            site.connect()
            schema.insert(site.db, "Scheduled Job Log", name=database.random_text(10), status="Complete", scheduled_job_type=job["job"])
            site.close()
        except Exception as err:
            print(f"worker: {job}: {err}", file=sys.stderr, flush=True)
