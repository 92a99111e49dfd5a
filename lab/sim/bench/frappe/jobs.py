"""The scheduler and the workers: jobs of sites on queues in Redis."""

import datetime
import os
import pickle
import signal
import sys
import time
import uuid
import zlib

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
            queue(redis_wrapper.Redis(site.conf["redis_queue"]), name, "all")
    finally:
        site.close()


def queue(redis, site, method, kind="default"):
    """Queues a job as RQ 1.15.1 does: the queue is a list of ids, the job a hash (rq/queue.py,
    _enqueue_job; rq/job.py, to_dict). Ids begin with the site (utils/background_jobs.py)."""
    now = datetime.datetime.utcnow().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    job = f"{site}::{uuid.uuid4()}"
    kwargs = {"site": site, "user": "Administrator", "method": method, "event": None, "job_name": method, "is_async": True, "kwargs": {}}
    fields = {
        "created_at": now, "enqueued_at": now, "status": "queued", "origin": key(kind)[len("rq:queue:"):], "timeout": "300", "started_at": "", "ended_at": "",
        "data": zlib.compress(pickle.dumps(("frappe.utils.background_jobs.execute_job", None, (), kwargs), protocol=pickle.HIGHEST_PROTOCOL)),
    }
    redis.ask("SADD", "rq:queues", key(kind))
    redis.ask("HSET", "rq:job:" + job, *(v for pair in fields.items() for v in pair))
    redis.ask("RPUSH", key(kind), job)
    return job


def taken(redis, job):
    """What a job is called with. One without a hash is passed over (rq/queue.py, dequeue_any)."""
    data = redis.ask("HGET", "rq:job:" + job, "data")
    return data and pickle.loads(zlib.decompress(data))[3]


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
        job = got[1].decode()
        try:
            kwargs = taken(redis, job)
            if not kwargs:
                continue
            site = sites.Site(kwargs["site"])
            site.connect()
            schema.insert(site.db, "Scheduled Job Log", name=database.random_text(10), status="Complete", scheduled_job_type=kwargs["method"])
            site.close()
            redis.ask("HSET", "rq:job:" + job, "status", "finished")
            redis.ask("EXPIRE", "rq:job:" + job, 600)  # RQ_RESULTS_TTL
        except Exception as err:
            print(f"worker: {job}: {err}", file=sys.stderr, flush=True)
