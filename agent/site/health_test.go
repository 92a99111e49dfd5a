package site

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/prego/prego/agent/wire"
)

func TestAWorkerIsConnected(t *testing.T) {
	t.Parallel()
	const list = "id=3 addr=172.18.0.7:40000 laddr=172.18.0.2:6379 name=w cmd=blpop\nid=9 addr=172.18.0.7:40010 cmd=client|list\nid=4 addr=172.18.0.8:1 cmd=blpop\n"
	require.NoError(t, connected(list, "9"))
	require.NoError(t, connected(list, "3"))
	require.ErrorContains(t, connected(list, "4"), "no worker is connected to redis_queue from here", "the others are elsewhere")
	require.ErrorContains(t, connected("", "4"), "no worker is connected")
}

func TestASchedulerHoldsItsLock(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	require.ErrorIs(t, schedulerHealthy(root), fs.ErrNotExist, "it has not begun")
	dir := filepath.Join(root, wire.BenchDir, "config")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	f, err := os.Create(filepath.Join(dir, "scheduler_process"))
	require.NoError(t, err)
	require.ErrorContains(t, schedulerHealthy(root), "no scheduler holds", "it is gone")
	require.NoError(t, flock(f, alone))
	require.NoError(t, schedulerHealthy(root))
	require.NoError(t, flock(f, syscall.LOCK_UN)) // closing it is not enough while another test forks, which copies it
	require.ErrorContains(t, schedulerHealthy(root), "no scheduler holds")
	require.NoError(t, f.Close())
}
