package devstack

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// StorageConfig describes a private object storage: versitygw, an S3 server that keeps objects as files.
type StorageConfig struct {
	Program string
	Dir     string // of its objects, and of what it knows of them
	Listen  string
	LogFile string
}

// Storage is a running object storage with one bucket.
type Storage struct {
	*Process
	Endpoint, Bucket, Region, AccessKey, SecretKey string
}

// StartStorage starts an object storage and waits until it answers. Its key is made at the first
// start.
func StartStorage(ctx context.Context, cfg StorageConfig) (*Storage, error) {
	s := &Storage{Endpoint: "http://" + cfg.Listen, Bucket: "prego", Region: "eu-central", AccessKey: "prego-dev"}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("object storage: %w", err)
	}
	objects, sidecar := filepath.Join(dir, "objects"), filepath.Join(dir, "sidecar")
	for _, d := range []string{filepath.Join(objects, s.Bucket), sidecar} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("object storage: %w", err)
		}
	}
	file := filepath.Join(dir, "key")
	key, err := os.ReadFile(filepath.Clean(file))
	if errors.Is(err, fs.ErrNotExist) {
		key = []byte(rand.Text())
		err = os.WriteFile(file, key, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("object storage: %w", err)
	}
	s.SecretKey = strings.TrimSpace(string(key))
	// By its environment: command lines are readable by all users of this machine.
	env := append(os.Environ(), "ROOT_ACCESS_KEY="+s.AccessKey, "ROOT_SECRET_KEY="+s.SecretKey)
	if s.Process, err = Start(Spec{
		Name: "object storage", Path: cfg.Program, Env: env, LogFile: cfg.LogFile,
		Args: []string{"--region", s.Region, "--port", cfg.Listen, "--quiet", "posix", "--sidecar", sidecar, objects},
	}); err != nil {
		return nil, err
	}
	ready, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if err := s.await(ready, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Endpoint, nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}); err != nil {
		s.Stop(time.Second)
		return nil, err
	}
	return s, nil
}
