package need

import "net/http"

// HTTP is the client of tests. An httptest.Server that ends closes the connections of http.DefaultClient, and with them
// requests that tests beside it are about to send.
var HTTP = &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}
