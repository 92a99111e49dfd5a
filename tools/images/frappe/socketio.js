// Answers the handshake of Socket.IO, and listens to the bench's events in Redis. As in
// Frappe, it ends when Redis can't be reached or goes away.
const fs = require("node:fs");
const http = require("node:http");
const net = require("node:net");
const path = require("node:path");

const bench = process.env.FRAPPE_BENCH_ROOT || path.resolve(__dirname, "..", "..");
const conf = { socketio_port: 9000, redis_queue: "redis://127.0.0.1:11311" };
const common = path.join(bench, "sites", "common_site_config.json");
if (fs.existsSync(common)) {
	Object.assign(conf, JSON.parse(fs.readFileSync(common)));
}
conf.redis_queue = process.env.FRAPPE_REDIS_QUEUE || conf.redis_queue;
conf.socketio_port = process.env.FRAPPE_SOCKETIO_PORT || conf.socketio_port;

function fail(err) {
	console.error(`redis: ${err.message}`);
	process.exit(1);
}

const url = new URL(conf.redis_queue);
const redis = url.protocol === "unix:" ? net.connect(url.pathname) : net.connect(url.port || 6379, url.hostname);
redis.on("error", fail);
redis.on("close", () => fail(new Error("the connection ended")));
redis.on("connect", () => {
	if (url.password) {
		const words = ["AUTH", ...(url.username ? [url.username] : []), decodeURIComponent(url.password)];
		redis.write(`*${words.length}\r\n` + words.map((w) => `$${Buffer.byteLength(w)}\r\n${w}\r\n`).join(""));
	}
	redis.write("*2\r\n$9\r\nSUBSCRIBE\r\n$6\r\nevents\r\n");
});
redis.on("data", (data) => {
	if (data.toString().startsWith("-")) {
		fail(new Error(data.toString().trim()));
	}
});

const server = http.createServer((request, response) => {
	const asked = new URL(request.url, "http://localhost");
	if (asked.pathname !== "/socket.io/") {
		response.writeHead(404).end();
		return;
	}
	response.setHeader("Content-Type", "text/plain; charset=UTF-8");
	if (asked.searchParams.get("EIO") !== "4" || asked.searchParams.get("transport") !== "polling") {
		response.writeHead(400).end('{"code":0,"message":"Transport unknown"}');
		return;
	}
	const sid = Math.random().toString(36).slice(2);
	response.end("0" + JSON.stringify({ sid, upgrades: ["websocket"], pingInterval: 25000, pingTimeout: 20000, maxPayload: 1000000 }));
});
server.listen(conf.socketio_port, () => console.log("Realtime service listening on: ", conf.socketio_port));
