#!/usr/bin/python3
# Calls the agent gateway for the boot scripts. cloud-init itself is Python, so this
# works before any package was installed.
#
#   gateway.py report STAGE [DETAIL]    tell how far the boot has come; prints by how
#                                       many seconds this clock is ahead of the gateway's
#   gateway.py fetch PATH SHA256 FILE   get a file, if it is the one that was pinned
#
# The bootstrap token is read from its file and never stands on a command line.
import hashlib, http.client, json, os, socket, ssl, sys, time
from email.utils import parsedate_to_datetime

ETC = "/etc/prego-agent/"
NAME, PORT = os.environ["GATEWAY_NAME"], int(os.environ["GATEWAY_PORT"])
ISSUED = int(os.environ["ISSUED_AT"])
NO_CHECK_TIME = 0x200000  # OpenSSL's X509_V_FLAG_NO_CHECK_TIME


class Gateway(http.client.HTTPSConnection):
    """Connects to the gateway's address and checks its certificate for its name.

    The certificate's dates are checked here: it must have been valid within the life of
    our token, whatever this host's clock says. Else a wrong clock would keep the boot
    from saying so.
    """

    def __init__(self):
        context = ssl.create_default_context(cafile=ETC + "gateway-ca.pem")
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_flags |= NO_CHECK_TIME
        super().__init__(NAME, PORT, context=context)
        self.tls = context

    def connect(self):
        plain = socket.create_connection((os.environ["GATEWAY_HOST"], PORT), 5)
        plain.settimeout(60)
        self.sock = self.tls.wrap_socket(plain, server_hostname=NAME)
        cert = self.sock.getpeercert()
        # user_data was written at ISSUED. A certificate renewed since is good, too.
        for field, limit, wrong in ("notBefore", max(time.time(), ISSUED + 1200), 1), ("notAfter", ISSUED - 300, -1):
            if (ssl.cert_time_to_seconds(cert[field]) - limit) * wrong > 0:
                raise ssl.SSLError("the gateway's certificate has %s %s, and our token is of %s" % (
                    field, cert[field], time.strftime("%b %d %H:%M:%S %Y GMT", time.gmtime(ISSUED))))


def call(method, path, body=None):
    with open(ETC + "bootstrap.token") as f:
        headers = {"Authorization": "Bearer " + f.read().strip(), "Content-Type": "application/json"}
    gateway = Gateway()
    gateway.request(method, path, body, headers)
    answer = gateway.getresponse()
    if answer.status // 100 != 2:
        try:
            problem = json.loads(answer.read(65536))
            why = "%s: %s" % (problem["code"], problem["detail"])
        except (ValueError, LookupError, TypeError):
            why = answer.reason
        raise OSError("the gateway answered %d %s" % (answer.status, why))
    return answer


def report(stage, detail=""):
    answer = call("POST", os.environ["PATH_BOOT_STAGE"], json.dumps(
        {"server_id": os.environ["SERVER_ID"], "stage": stage, "detail": detail}))
    print(round(time.time() - parsedate_to_datetime(answer.headers["Date"]).timestamp() - 0.5))


def fetch(path, digest, name):
    answer, sum = call("GET", path + "?sha256=" + digest), hashlib.sha256()
    with open(name + ".new", "wb") as f:
        while part := answer.read(1 << 20):
            sum.update(part)
            f.write(part)
        f.flush()
        os.fsync(f.fileno())
    if sum.hexdigest() != digest:
        os.unlink(name + ".new")
        raise OSError("%s is another than the one that was pinned" % path)
    os.rename(name + ".new", name)


try:
    {"report": report, "fetch": fetch}[sys.argv[1]](*sys.argv[2:])
except (OSError, http.client.HTTPException) as e:
    sys.exit("agent gateway %s: %s" % (os.environ["GATEWAY_HOST"], e))
