package edge

import (
	"maps"
	"strings"
)

// Pages that the edge answers by itself. They contain no names, so that a client with an unknown name does not learn
// which names exist.
var (
	unknown     = closing(page("404", "Not found", "There is no site with this name here.", nil))
	maintenance = page("503", "Under maintenance", "This site is being worked on and will be back soon.", obj{"Retry-After": []string{"30"}})
	unavailable = page("503", "Unavailable", "This site can't be reached right now. Please try again in a moment.", obj{"Retry-After": []string{"5"}})
	failed      = page("{http.error.status_code}", "{http.error.status_text}", "This request can't be answered right now.", nil)
)

func page(status, title, text string, headers obj) obj {
	all := obj{"Content-Type": []string{"text/html; charset=utf-8"}, "Cache-Control": []string{"no-store"}}
	maps.Copy(all, headers)
	return obj{"handler": "static_response", "status_code": status, "headers": all, "body": htmlPage(title, text)}
}

// closing ends the connection after a page. A client with a connection from before the move finds the site only by a
// new DNS query.
func closing(page obj) obj {
	page["close"] = true
	return page
}

func htmlPage(title, text string) string {
	return `<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">` +
		`<title>` + title + `</title><style>body{font:1.1rem/1.5 system-ui,sans-serif;max-width:34rem;margin:20vh auto;padding:0 1rem;color:#222}</style></head>` +
		`<body><h1>` + title + `</h1><p>` + text + "</p></body></html>\n"
}

// failedPages are what HAProxy answers in a site's place.
var failedPages = func() (out string) {
	for _, status := range []string{"502", "503", "504"} {
		title := map[string]string{"502": "Bad Gateway", "503": "Service Unavailable", "504": "Gateway Timeout"}[status]
		out += "\thttp-error status " + status + ` content-type "text/html; charset=utf-8" string "` +
			strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(htmlPage(title, "This request can't be answered right now.")) + "\" hdr Cache-Control no-store\n"
	}
	return out
}()
