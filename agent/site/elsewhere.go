package site

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	_ "embed" // prego_bench.py
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	"github.com/prego/prego/agent/policy"
	"github.com/prego/prego/agent/wire"
)

// A site's database and cache may be on other servers: a shard and a Redis pool. Nobody on
// this host is root there. The control plane has the database and its user made on the shard,
// and the cache's user in the pool, before the verbs here use them.

// Ports of shards and pools.
const (
	databasePort = 3306
	cachePort    = 6379
)

// benchModule adapts Frappe's programs to such sites. They run in the directory of the sites, and so find it there.
//
//go:embed prego_bench.py
var benchModule []byte

// BenchModule is the file that a bench has among its sites, and what extra_config of its common configuration names.
func BenchModule() (name string, content []byte, hook string) {
	return benchModuleFile, benchModule, benchModuleHook
}

const (
	benchModuleFile = "prego_bench.py"
	benchModuleHook = "prego_bench.configure" // in extra_config
)

// tlsFiles are the certificates of this host for connections to others, as bench reads them.
func (b *bench) tlsFiles() (ca, cert, key string) {
	dir := filepath.Join(b.host, wire.ContainerTLSDir)
	return dir + "/ca.pem", dir + "/cert.pem", dir + "/key.pem"
}

// elsewhere reports whether a site's database is on another server.
func (at databaseOf) elsewhere() bool {
	return at.Socket == "" && at.SSLCA != "" && at.SSLCert != "" && at.SSLKey != ""
}

// tlsConfig reads certificates as Frappe's driver does. Server names are checked.
func tlsConfig(ca, cert, key, host string) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("this host's certificate: %w", err)
	}
	text, err := os.ReadFile(filepath.Clean(ca))
	if err != nil {
		return nil, fmt.Errorf("the CA of servers: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New("the CA of servers can't be read")
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, RootCAs: pool, ServerName: host}, nil
}

// databaseSettings are the keys of site_config.json for a database on another server. An empty db_socket overrides
// the bench's, which Frappe would use first (frappe/database/mariadb/database.py, get_connection_settings).
func (b *bench) databaseSettings(name, password, address string) policy.Settings {
	ca, cert, key := b.tlsFiles()
	return policy.Settings{
		"db_type": quoteJSON("mariadb"), "db_name": quoteJSON(name), "db_password": quoteJSON(password), "db_socket": quoteJSON(""),
		"db_host": quoteJSON(address), "db_port": json.RawMessage(strconv.Itoa(databasePort)),
		"db_ssl_ca": quoteJSON(ca), "db_ssl_cert": quoteJSON(cert), "db_ssl_key": quoteJSON(key),
	}
}

// asOwner connects to a database on another server as the user that the control plane had
// made there. The database may be missing.
func (b *bench) asOwner(name, password, address string) (*sql.DB, error) {
	ca, cert, key := b.tlsFiles()
	return b.open(databaseOf{Host: address, Port: databasePort, SSLCA: ca, SSLCert: cert, SSLKey: key}, name, password, "")
}

// emptyDatabase drops a database and creates it again, with the rights of its own user.
func emptyDatabase(db *sql.DB, name string) error {
	if !policy.Is("OURDB", name) {
		return fmt.Errorf("%q is no database of a site's", name)
	}
	if err := endSessions(db, name); err != nil {
		return err
	}
	if err := execStep(db, "DROP DATABASE IF EXISTS `"+name+"`"); err != nil {
		return err
	}
	return execStep(db, "CREATE DATABASE IF NOT EXISTS `"+name+"` CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci")
}

// connectDatabase points a site to its database: at another address, or with another password, which is tried first.
func (b *bench) connectDatabase(site, address string) error {
	password := b.secrets[wire.SecretDatabasePassword]
	at, err := b.connection(site)
	if err != nil {
		return err
	}
	if !at.elsewhere() {
		return fmt.Errorf("the database of site %s is on this server", site)
	}
	if _, err := b.asOwner(at.Name, password, address); err != nil {
		return err
	}
	if err := b.change(site, b.databaseSettings(at.Name, password, address)); err != nil {
		return err
	}
	return b.printResult(map[string]any{"site": site, "db_host": address})
}

// Frappe waits so long for its cache, in seconds; then it does without.
const (
	cacheConnectTime = 2
	cacheAnswerTime  = 10
)

// connectCache gives a site its cache in a Redis pool, which is tried first. What the bench's
// own Redis has cached for it is removed.
func (b *bench) connectCache(site, address, number string) error {
	password := b.secrets[wire.SecretCachePassword]
	at, err := b.connection(site)
	if err != nil {
		return err
	}
	if !policy.Is("OURDB", at.Name) {
		return fmt.Errorf("%q is no database of a site's", at.Name)
	}
	ca, cert, key := b.tlsFiles()
	cache := url.URL{
		Scheme: "rediss", User: url.UserPassword(at.Name, password), Host: net.JoinHostPort(address, strconv.Itoa(cachePort)), Path: "/" + number,
		RawQuery: url.Values{
			"ssl_ca_certs": {ca}, "ssl_certfile": {cert}, "ssl_keyfile": {key}, "ssl_check_hostname": {"true"},
			"socket_connect_timeout": {strconv.Itoa(cacheConnectTime)}, "socket_timeout": {strconv.Itoa(cacheAnswerTime)},
		}.Encode(),
	}
	r, err := b.dialRedis(cache.String())
	if err == nil {
		_, err = r.Do("PING")
	}
	if err != nil {
		return fmt.Errorf("the cache: %w", err)
	}
	if err := b.change(site, policy.Settings{"redis_cache": quoteJSON(cache.String())}); err != nil {
		return err
	}
	if own, err := b.connection(""); err == nil && own.Cache != "" {
		if _, err := b.removeKeys(own.Cache, at.Name+"|*", ""); err != nil {
			fmt.Fprintf(b.err, "redis: %v\n", err) // they are used no more
		}
	}
	return b.printResult(map[string]any{"site": site, "redis_cache": address + "/" + number})
}

// dialTLS connects with the certificates that an address of Frappe's configuration names.
func dialTLS(ctx context.Context, u *url.URL) (net.Conn, error) {
	q := u.Query()
	with, err := tlsConfig(q.Get("ssl_ca_certs"), q.Get("ssl_certfile"), q.Get("ssl_keyfile"), u.Hostname())
	if err != nil {
		return nil, err
	}
	return (&tls.Dialer{NetDialer: &net.Dialer{Timeout: dialTime}, Config: with}).DialContext(ctx, "tcp", u.Host)
}

// installModule writes benchModule and names it in the common configuration.
func (b *bench) installModule(config map[string]json.RawMessage) error {
	if err := b.put(benchModuleFile, benchModule, fs.FileMode(0o644)); err != nil {
		return err
	}
	config["extra_config"] = quoteJSON(benchModuleHook)
	return nil
}

// databasePassword is the password of a site's database user.
func (b *bench) databasePassword() (string, error) {
	password := b.secrets[wire.SecretDatabasePassword]
	if password == "" {
		return "", errors.New("there is no password of the database")
	}
	return password, nil
}
