package clean

import (
	"net/http"
	"os/exec"

	"wire"
)

func clean(mux *http.ServeMux, h http.HandlerFunc) {
	mux.HandleFunc("/agent/v1/exec", h)
	mux.HandleFunc("POST /agent/v1/exec/stream", h)
	_ = exec.Command("gzip", "-c")
	_ = exec.Command("sh", "script.sh")
	_ = exec.Command("systemctl", "mask", "ssh.service")
	_ = map[string]string{"managed_by": "pulumi"}
	_ = []wire.CommandKind{"bench", "mariadb", "redis-cli", "volume", "address", "patch", "peers", "transfer"}
}
