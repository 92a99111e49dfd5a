package site

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/prego/prego/agent/resp"
)

// redisTime is the time limit for one Redis.
const redisTime = time.Minute

// forget removes a site's keys from Redis: what Frappe caches, by the database's name (frappe/utils/redis_wrapper.py,
// make_key), and its jobs, by the site's (frappe/utils/background_jobs.py, create_job_id). An unreachable Redis does
// not stop the erasure: cached keys expire by themselves.
func (b *bench) forget(site, name string) (keys int) {
	at, err := b.connection("")
	prefix, perr := b.queuePrefix()
	if err = errors.Join(err, perr); err != nil {
		fmt.Fprintf(b.err, "redis: %v\n", err)
		return 0
	}
	for _, r := range []struct{ address, pattern string }{{at.Cache, name + "|*"}, {at.Queue, name + "|*"}, {at.Queue, "rq:*:" + site + "::*"}, {at.Queue, parkedKey(site)}, {at.Queue, queuedKey(site)}} {
		if r.address == "" {
			continue
		}
		n, err := b.removeKeys(r.address, r.pattern, prefix)
		if keys += n; err != nil {
			fmt.Fprintf(b.err, "redis: %v\n", err)
		}
	}
	return keys
}

// removeKeys removes what matches, but not jobs that are on another bench's queues: that one has
// the site now, and the same Redis.
func (b *bench) removeKeys(address, pattern, prefix string) (n int, err error) {
	r, err := b.dialRedis(address)
	if err != nil {
		return 0, err
	}
	err = resp.Scan(r.Do, pattern, func(keys []string) error {
		for _, key := range keys {
			if strings.HasPrefix(key, rqJob) {
				origin, err := r.Do("HGET", key, "origin")
				if err == nil && origin != nil && !strings.HasPrefix(fmt.Sprint(origin), prefix) {
					continue
				}
			}
			if _, err := r.Do("UNLINK", key); err != nil {
				return err
			}
			n++
		}
		return nil
	})
	return n, err
}

// dialRedis connects by an address of Frappe's configuration, for as long as the verb runs.
func (b *bench) dialRedis(address string) (*resp.Conn, error) {
	u, err := url.Parse(address)
	if err != nil || (u.Scheme != "redis" && u.Scheme != "rediss" && u.Scheme != "unix") {
		return nil, fmt.Errorf("its address is not of the form redis://HOST:PORT") // nothing of it: it holds a password
	}
	if u.Scheme != "unix" && u.Port() == "" {
		u.Host = net.JoinHostPort(u.Hostname(), strconv.Itoa(cachePort))
	}
	var conn net.Conn
	switch dialer := (&net.Dialer{Timeout: dialTime}); u.Scheme {
	case "unix":
		conn, err = dialer.DialContext(context.Background(), "unix", u.Path)
	case "rediss":
		conn, err = dialTLS(context.Background(), u)
	default:
		conn, err = dialer.DialContext(context.Background(), "tcp", u.Host)
	}
	if err != nil {
		return nil, err
	}
	b.held = append(b.held, conn)
	_ = conn.SetDeadline(time.Now().Add(redisTime))
	r := resp.New(conn)
	password, _ := u.User.Password()
	if password == "" {
		return r, nil
	}
	b.err.hide(password)
	_, err = r.Do("AUTH", cmp.Or(u.User.Username(), "default"), password)
	if number := strings.Trim(u.Path, "/"); err == nil && number != "" {
		_, err = r.Do("SELECT", number)
	}
	return r, err
}
