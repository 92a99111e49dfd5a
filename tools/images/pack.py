"""Packs images from layers, without a Docker engine: an archive for docker load, and
the directory of a registry.

The base layer is a root file system of Debian's; the layer over it holds what the
originals have beside their packages. What tells the images apart is their configuration.
Those of an edge are one layer each, with little more than their program: edges boot often,
and have no use for the rest.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import tarfile

BENCH = "home/frappe/frappe-bench"
UID = 1000

PYTHON = """#!/usr/bin/python3 -{flags}
import sys
sys.path[:0] = ["/{bench}/apps/frappe", "/usr/lib/python3/dist-packages"]
{then}
"""


class Layer:
    """A layer under construction."""

    def __init__(self, path):
        self.tar = tarfile.open(path, "w", format=tarfile.GNU_FORMAT)

    def add(self, name, content=None, mode=0o644, uid=0, link=None):
        """Adds a file, a link, or with neither a directory."""
        info = tarfile.TarInfo(name)
        info.uid = info.gid = uid
        if link:
            info.type, info.linkname, info.mode = tarfile.SYMTYPE, link, 0o777
        elif content is None:
            info.type, info.mode = tarfile.DIRTYPE, 0o755 if mode == 0o644 else mode
        else:
            content = content.encode() if isinstance(content, str) else content
            info.size, info.mode = len(content), mode
        self.tar.addfile(info, io.BytesIO(content) if content is not None and not link else None)

    def whiteout(self, name):
        """Removes what a lower layer has."""
        folder, base = os.path.split(name)
        self.add(os.path.join(folder, ".wh." + base), "")


def overlay(path, files, bench):
    """Writes the layer of all images that have the base."""
    layer = Layer(path)

    def install(source, target, mode=0o755):
        layer.add(target, (files / source).read_bytes(), mode)

    # Users, as images know them: by number.
    layer.add("home")
    for name in ("home/frappe", BENCH, BENCH + "/apps", BENCH + "/sites", BENCH + "/config", BENCH + "/config/pids", BENCH + "/logs",
                 BENCH + "/env", BENCH + "/env/bin", BENCH + "/assets", BENCH + "/assets/frappe", BENCH + "/apps/frappe"):
        layer.add(name, uid=UID)
    for source in sorted(bench.rglob("*.py")):
        name = source.relative_to(bench)
        layer.add(f"{BENCH}/apps/frappe/{name}", source.read_bytes(), uid=UID)
    for app in ("erpnext",):
        layer.add(f"{BENCH}/apps/{app}", uid=UID)
    layer.add(f"{BENCH}/apps/frappe/socketio.js", (files / "frappe/socketio.js").read_bytes(), uid=UID)
    layer.add(f"{BENCH}/sites/apps.txt", "frappe\nerpnext\n", uid=UID)
    layer.add(f"{BENCH}/sites/common_site_config.json", "{}", uid=UID)
    layer.add(f"{BENCH}/assets/assets.json", "{}", uid=UID)
    layer.add(f"{BENCH}/assets/frappe/stand-in.css", "/* an asset of the image */\n", uid=UID)
    layer.add(f"{BENCH}/env/bin/python", link="/usr/bin/python3")
    run = "from gunicorn.app.wsgiapp import run\nsys.exit(run())"
    layer.add(f"{BENCH}/env/bin/gunicorn", PYTHON.format(flags="I", bench=BENCH, then=run), 0o755, UID)
    layer.add("usr/local/bin/bench", PYTHON.format(flags="IS", bench=BENCH, then="from frappe import bench\nbench.main(sys.argv)"), 0o755)
    for name in ("entrypoint.sh", "start.sh", "nginx-entrypoint.sh"):
        install("frappe/" + name, "usr/local/bin/" + name)
    layer.add("templates")
    layer.add("templates/nginx")
    install("frappe/frappe.conf.template", "templates/nginx/frappe.conf.template", 0o644)
    # nginx runs as frappe.
    install("frappe/nginx.conf", "etc/nginx/nginx.conf", 0o644)
    layer.add("etc/nginx/conf.d", uid=UID)
    layer.add("var/log/nginx", uid=UID)
    layer.add("var/log/nginx/access.log", link="/dev/stdout")
    layer.add("var/log/nginx/error.log", link="/dev/stderr")
    layer.add("var/lib/nginx", uid=UID)
    layer.add("run/nginx.pid", "", uid=UID)

    install("mariadb/mariadb-entrypoint.sh", "usr/local/bin/mariadb-entrypoint.sh")
    install("mariadb/healthcheck.sh", "usr/local/bin/healthcheck.sh")
    install("mariadb/docker.cnf", "etc/mysql/mariadb.conf.d/99-docker.cnf", 0o644)
    layer.add("docker-entrypoint-initdb.d")
    install("redis/redis-entrypoint.sh", "usr/local/bin/redis-entrypoint.sh")
    layer.tar.close()


def accounts(base, path):
    """The user frappe, in the files of users that the base has: a layer over it."""
    layer = Layer(path)
    with tarfile.open(base) as tar:
        for name, line in (("etc/passwd", f"frappe:x:{UID}:{UID}::/home/frappe:/bin/bash\n"), ("etc/group", f"frappe:x:{UID}:\n")):
            layer.add(name, tar.extractfile("./" + name).read() + line.encode())
        ids = {line.split(":")[0]: int(line.split(":")[2]) for line in tar.extractfile("./etc/passwd").read().decode().splitlines()}
    layer.add("data", uid=ids["redis"])
    layer.add("run/mysqld", mode=0o1777, uid=ids["mysql"])
    layer.add("run/redis", mode=0o1777, uid=ids["redis"])
    layer.tar.close()


def caddy_image(program, path):
    """The only layer of Caddy's image: its program is static."""
    layer = Layer(path)
    for name in ("usr", "usr/bin", "config", "data", "etc", "etc/caddy"):
        layer.add(name)
    layer.add("tmp", mode=0o1777)
    layer.add("etc/passwd", "root:x:0:0:root:/:\n")
    layer.add("usr/bin/caddy", program.read_bytes(), 0o755)
    layer.tar.close()


def haproxy_image(base, files, path):
    """The only layer of HAProxy's image: the base's program with the libraries that it needs."""
    layer = Layer(path)
    with tarfile.open(base) as tar:
        wanted = {"." + line for line in tar.extractfile("./haproxy.files").read().decode().split()}
        wanted |= {"./bin", "./lib", "./lib64", "./sbin", "./usr/bin/sh", "./etc/passwd", "./etc/group"}
        parents = {f[:i] for f in wanted for i in range(2, len(f)) if f[i] == "/"}
        for member in tar:
            if member.name in wanted and not member.isdir() or member.name in parents:
                layer.tar.addfile(member, tar.extractfile(member) if member.isfile() else None)
                wanted.discard(member.name)
    if wanted:
        raise SystemExit(f"the base has no {sorted(wanted)}")
    layer.add("tmp", mode=0o1777)
    layer.add("usr/local")
    layer.add("usr/local/bin")
    layer.add("usr/local/bin/haproxy-entrypoint.sh", (files / "haproxy/haproxy-entrypoint.sh").read_bytes(), 0o755)
    layer.tar.close()


def configurations(bench_image, stack):
    """The images by name, with what their originals' configurations have, and which layers."""
    path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    kinds = {
        "frappe": {
            "User": "frappe", "WorkingDir": "/" + BENCH, "Env": [path, "HOME=/home/frappe", "LANG=C.UTF-8"],
            "Entrypoint": ["/usr/local/bin/entrypoint.sh"], "Cmd": ["start.sh"], "Volumes": {f"/{BENCH}/sites": {}, f"/{BENCH}/logs": {}},
        },
        "mariadb": {
            "Env": [path, "LANG=C.UTF-8"], "Entrypoint": ["mariadb-entrypoint.sh"], "Cmd": ["mariadbd"], "Volumes": {"/var/lib/mysql": {}},
            "ExposedPorts": {"3306/tcp": {}},
        },
        "redis": {
            "Env": [path], "WorkingDir": "/data", "Entrypoint": ["redis-entrypoint.sh"], "Cmd": ["redis-server"], "Volumes": {"/data": {}},
            "ExposedPorts": {"6379/tcp": {}},
        },
        "caddy": {
            "Env": [path, "XDG_CONFIG_HOME=/config", "XDG_DATA_HOME=/data"], "WorkingDir": "/srv", "Cmd": ["caddy", "run", "--config", "/etc/caddy/Caddyfile"],
            "ExposedPorts": {"80/tcp": {}, "443/tcp": {}, "443/udp": {}, "2019/tcp": {}},
        },
        "haproxy": {
            "User": "haproxy", "WorkingDir": "/", "Env": [path], "Entrypoint": ["haproxy-entrypoint.sh"], "Cmd": ["haproxy", "-f", "/usr/local/etc/haproxy/haproxy.cfg"],
            "StopSignal": "SIGUSR1",
        },
    }
    # The suite of lab/frappetest names the latter two.
    out = {bench_image: "frappe", "mariadb:11.8": "mariadb", "redis:7-alpine": "redis"}
    for image in sorted(set(re.findall(r'"image": "([^"$]+)"', stack))):
        kind = image.split(":")[0].split("/")[-1]
        if kind not in kinds:
            raise SystemExit(f"the stack has the image {image}, and nothing stands in for it")
        out[image] = kind
    return {image: (kind, kinds[kind]) for image, kind in out.items()}


def digest(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def compressed(path):
    """The layer as registries have it; the same each time."""
    with open(path, "rb") as plain, open(path + ".gz", "wb") as raw:
        with gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=1, mtime=0) as packed:
            shutil.copyfileobj(plain, packed, 1 << 20)
    return path + ".gz"


class Registry:
    """The directory that docker-registry keeps its images in."""

    def __init__(self, root):
        self.root = root / "docker/registry/v2"

    def blob(self, repository, content):
        """Keeps a blob, a path or bytes, and says what it is."""
        if isinstance(content, bytes):
            sha, size = hashlib.sha256(content).hexdigest(), len(content)
        else:
            sha, size = digest(content), os.path.getsize(content)
        folder = self.root / "blobs/sha256" / sha[:2] / sha
        if not folder.exists():
            folder.mkdir(parents=True)
            if isinstance(content, bytes):
                (folder / "data").write_bytes(content)
            else:
                os.link(content, folder / "data")
        self.link(repository, f"_layers/sha256/{sha}", sha)
        return "sha256:" + sha, size

    def link(self, repository, name, sha):
        folder = self.root / "repositories" / repository / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "link").write_text("sha256:" + sha)

    def image(self, repository, tag, config, layers):
        kind = "application/vnd.docker.distribution.manifest.v2+json"
        described = []
        for layer in layers:
            sha, size = self.blob(repository, layer)
            described.append({"mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip", "size": size, "digest": sha})
        sha, size = self.blob(repository, config)
        manifest = json.dumps({"schemaVersion": 2, "mediaType": kind, "layers": described,
                               "config": {"mediaType": "application/vnd.docker.container.image.v1+json", "size": size, "digest": sha}}).encode()
        sha = self.blob(repository, manifest)[0].removeprefix("sha256:")
        shutil.rmtree(self.root / "repositories" / repository / "_layers/sha256" / sha)
        for name in (f"_manifests/revisions/sha256/{sha}", f"_manifests/tags/{tag}/current", f"_manifests/tags/{tag}/index/sha256/{sha}"):
            self.link(repository, name, sha)
        return "sha256:" + sha


def main():
    parser = argparse.ArgumentParser()
    for name in ("base", "out", "files", "bench", "stack", "caddy"):
        parser.add_argument("--" + name, type=pathlib.Path, required=True)
    parser.add_argument("--bench-image", required=True)
    args = parser.parse_args()
    out = args.out
    overlay(out / "overlay.tar", args.files, args.bench)
    accounts(args.base, out / "accounts.tar")
    caddy_image(args.caddy, out / "caddy.tar")
    haproxy_image(args.base, args.files, out / "haproxy.tar")
    shared = [str(args.base), str(out / "accounts.tar"), str(out / "overlay.tar")]
    alone = {"caddy": [str(out / "caddy.tar")], "haproxy": [str(out / "haproxy.tar")]}
    layers = shared + [path for own in alone.values() for path in own]
    if not os.path.exists(str(args.base) + ".gz"):
        compressed(str(args.base))
    packed = {path: compressed(path) for path in layers[1:]} | {layers[0]: layers[0] + ".gz"}
    ids = {path: digest(path) for path in layers}

    registry = Registry(out / "registry")
    manifest, tar = [], tarfile.open(out / "images.tar", "w")
    for path, sha in ids.items():
        tar.add(path, sha + "/layer.tar", recursive=False)
    names = {}
    for image, (kind, config) in configurations(args.bench_image, args.stack.read_text()).items():
        own = alone.get(kind, shared)
        text = json.dumps({
            "architecture": "amd64", "os": "linux", "created": "1970-01-01T00:00:00Z",
            "config": config, "rootfs": {"type": "layers", "diff_ids": ["sha256:" + ids[path] for path in own]},
            "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "tools/images.sh"} for _ in own],
        }).encode()
        name = hashlib.sha256(text).hexdigest() + ".json"
        if name not in names:
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))
            names[name] = []
            manifest.append({"Config": name, "RepoTags": names[name], "Layers": [ids[path] + "/layer.tar" for path in own]})
        names[name].append(image)
        repository, _, tag = image.partition(":")
        repository = repository if "/" in repository else "library/" + repository
        print(f"  {image:24} {registry.image(repository, tag or 'latest', text, [packed[path] for path in own])}")
    text = json.dumps(manifest).encode()
    info = tarfile.TarInfo("manifest.json")
    info.size = len(text)
    tar.addfile(info, io.BytesIO(text))
    tar.close()
    for path in layers[1:]:
        os.remove(path)
        os.remove(packed[path])
    (out / "registry.yml").write_text(
        f"version: 0.1\nlog: {{ level: warn, accesslog: {{ disabled: true }} }}\nstorage: {{ filesystem: {{ rootdirectory: {out}/registry }}, maintenance: {{ readonly: {{ enabled: true }} }} }}\n"
        "http: { addr: 127.0.0.1:5000 } # REGISTRY_HTTP_ADDR, REGISTRY_AUTH_HTPASSWD_{REALM,PATH} say otherwise\n")


if __name__ == "__main__":
    main()
