package host

import (
	"cmp"
	"context"
	"crypto/sha1" //nolint:gosec // how MariaDB stores a password that is random and long
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/prego/prego/agent/resp"
	"github.com/prego/prego/agent/wire"
)

// ErrUnavailable means that a service could not be reached. Any answer of the service, even a refusal, is the
// command's result.
var ErrUnavailable = errors.New("the service can't be reached")

// Services reads how to reach the host's services.
func (h *Host) Services() (wire.Services, error) {
	var s wire.Services
	b, err := os.ReadFile(h.Path(wire.ServicesPath))
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return s, fmt.Errorf("%w: %w", ErrUnavailable, err)
	default:
		if json.Unmarshal(b, &s) != nil { // may contain a secret
			return s, fmt.Errorf("%w: %s can't be read", ErrUnavailable, wire.ServicesPath)
		}
	}
	s.MariaDB.User = cmp.Or(s.MariaDB.User, wire.DefaultServiceUser)
	s.MariaDB.Socket = cmp.Or(s.MariaDB.Socket, wire.DefaultMariaDBSocket)
	s.Redis.Socket = cmp.Or(s.Redis.Socket, wire.DefaultRedisSocket)
	if s.MariaDB.Addr != "" {
		return s, fmt.Errorf("%w: MariaDB is reached by its socket only", ErrUnavailable)
	}
	if s.Redis.Addr != "" {
		if a, err := netip.ParseAddrPort(s.Redis.Addr); err != nil || !a.Addr().IsLoopback() {
			return s, fmt.Errorf("%w: the address of Redis must be a loopback address and a port", ErrUnavailable)
		}
	}
	return s, nil
}

// OpenMariaDB opens connections that accept one statement at a time and never send a file, even if the server
// requests one.
func (h *Host) OpenMariaDB(s wire.Service) (*sql.DB, error) {
	cfg := mysql.NewConfig()
	cfg.User, cfg.Passwd, cfg.Net, cfg.Addr = s.User, s.Password, "unix", s.Socket
	cfg.AllowAllFiles, cfg.MultiStatements, cfg.InterpolateParams = false, false, false
	cfg.Logger = log.New(io.Discard, "", 0)
	cfg.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) { return DialSocket(ctx, h.Path(s.Socket)) }
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, errors.New("its configuration is not good")
	}
	return sql.OpenDB(connector), nil
}

// OpenRedis connects as the configured user. The connection ends with ctx.
func (h *Host) OpenRedis(ctx context.Context, s wire.Service) (r *resp.Conn, done func(), err error) {
	conn, err := h.dialRedis(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	r, done = resp.New(conn), func() { stop(); _ = conn.Close() }
	if s.User == "" && s.Password == "" {
		return r, done, nil
	}
	s.User = cmp.Or(s.User, wire.DefaultServiceUser)
	if _, err := r.Do("AUTH", s.User, s.Password); err != nil {
		done()
		return nil, nil, err
	}
	return r, done, nil
}

// RedisError is a server's error, on one line.
func RedisError(err error) error {
	var refused resp.Error
	if errors.As(err, &refused) {
		return resp.Error(Printable(string(refused)))
	}
	return err
}

func (h *Host) dialRedis(ctx context.Context, s wire.Service) (net.Conn, error) {
	if s.Addr != "" {
		return (&net.Dialer{}).DialContext(ctx, "tcp", s.Addr)
	}
	return DialSocket(ctx, h.Path(s.Socket))
}

// MariaDBRoot is the secret with the password of MariaDB's root.
const MariaDBRoot = "mariadb-root"

// NativePassword is what MariaDB keeps of a password.
func NativePassword(password string) string {
	once := sha1.Sum([]byte(password)) //nolint:gosec // see the import
	twice := sha1.Sum(once[:])         //nolint:gosec // see the import
	return "*" + strings.ToUpper(hex.EncodeToString(twice[:]))
}

// RedisPassword is what an ACL of Redis keeps of a password.
func RedisPassword(password string) string {
	sum := sha256.Sum256([]byte(password))
	return "#" + hex.EncodeToString(sum[:])
}
