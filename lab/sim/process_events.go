package sim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/websocket"

	"github.com/prego/prego/agent/wire"
)

// The server of events of a bench, as its frontend passes connections on to it. It implements the part of Socket.IO 4
// over WebSocket that a browser needs to learn that it is connected (frappe/realtime/index.js), and refuses the same
// clients as the original (frappe/realtime/middlewares/authenticate.js).

// eventsPing is how often the server asks whether the browser is still there.
const eventsPing = 500 * time.Millisecond

// serveEvents serves /socket.io.
func serveEvents(w http.ResponseWriter, r *http.Request) {
	site := r.Header.Get(wire.HeaderSite)
	if site == "" {
		site = hostname("//" + r.Host)
	}
	// frappe_docker's nginx-template.conf sends the site's name as Origin, and Host as it came.
	origin := "https://" + site
	websocket.Server{Handler: func(ws *websocket.Conn) {
		say := func(format string, args ...any) error {
			return websocket.Message.Send(ws, fmt.Sprintf(format, args...))
		}
		if say(`0{"sid":"%s","upgrades":[],"pingInterval":%d,"pingTimeout":20000,"maxPayload":1000000}`, "simulated",
			eventsPing.Milliseconds()) != nil {
			return
		}
		ended := make(chan struct{})
		defer close(ended)
		go func() {
			for tick := time.NewTicker(eventsPing); ; {
				select {
				case <-ended:
					tick.Stop()
					return
				case <-tick.C:
					_ = say("2")
				}
			}
		}()
		for {
			var packet string
			if websocket.Message.Receive(ws, &packet) != nil {
				return
			}
			namespace, connects := strings.CutPrefix(packet, "40")
			if !connects {
				continue
			}
			namespace, _, _ = strings.Cut(namespace, ",")
			var err error
			switch {
			case strings.TrimPrefix(namespace, "/") != site:
				err = refuseEvents(say, namespace, "Invalid namespace")
			case hostname("//"+r.Host) != hostname(origin):
				err = refuseEvents(say, namespace, "Invalid origin")
			case r.Header.Get("Cookie") == "" && r.Header.Get("Authorization") == "":
				err = refuseEvents(say, namespace, "No authentication method used. Use cookie or authorization header.")
			default:
				err = say(`40%s,{"sid":"simulated"}`, namespace)
			}
			if err != nil {
				return
			}
		}
	}}.ServeHTTP(w, r)
}

func refuseEvents(say func(string, ...any) error, namespace, message string) error {
	b, err := json.Marshal(map[string]string{"message": message})
	if err != nil {
		return err
	}
	return say("44%s,%s", namespace, b)
}

func hostname(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Hostname()
}
