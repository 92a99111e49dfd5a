"""Pulls a container image through the engine's socket. Debian 13 has no docker command
unless its package is asked for, and a host needs none."""
import http.client
import json
import socket
import sys
import urllib.parse


class Engine(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect("/run/docker.sock")


def pull(image):
    query = {"fromImage": image}
    if "@" not in image and ":" not in image.rsplit("/", 1)[-1]:
        query["tag"] = "latest"  # without one the engine would pull them all
    engine = Engine("localhost", timeout=600)
    engine.request("POST", "/images/create?" + urllib.parse.urlencode(query))
    answer = engine.getresponse()
    text = answer.read().decode()
    if answer.status != 200:
        sys.exit(f"{image}: {answer.status} {text.strip()}")
    for line in text.splitlines():  # errors come in the midst of an answer that began well
        if line.strip() and "error" in json.loads(line):
            sys.exit(f"{image}: {json.loads(line)['error']}")


pull(sys.argv[1])
