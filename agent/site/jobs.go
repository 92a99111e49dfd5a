package site

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/prego/prego/agent/resp"
)

// Jobs of a site that is held have not begun, and move with it. Frappe queues them with RQ
// (frappe/utils/background_jobs.py, enqueue; RQ 1.15.1, rq/queue.py, _enqueue_job): a queue is a list
// rq:queue:BENCH:KIND of ids, which begin with the site's name and "::" (create_job_id), and a job is a hash
// rq:job:ID. A worker takes an id off the list, and passes over one whose hash is gone (dequeue_any). So a job that
// is taken off its list under Redis' eyes either was begun before, or is not begun there any more.
//
// They are kept in a file of the site's directory, which is packed and arrives like any other: what a job is called
// with may be secret, and is in no command's output. Where the site is free to work, here or at its new place, the
// jobs of the file are queued, each once however often that is repeated.

// jobsPrefix begins the names of files with jobs, in a site's directory.
const jobsPrefix = ".prego-jobs-"

// heldJobs is the file of the jobs that were there when a site was held.
const heldJobs = jobsPrefix + "held"

// A job in a file. Fields are the fields of its hash, and may be any bytes.
type parkedJob struct {
	ID     string            `json:"id"`
	Kind   string            `json:"kind"` // of queue: short, default, long
	Fields map[string][]byte `json:"fields"`
}

// queuedAt identifies one queueing of a job: ids that callers choose repeat.
func (j parkedJob) queuedAt() string { return j.ID + " " + string(j.Fields["enqueued_at"]) }

// RQ's keys (rq/queue.py, rq/job.py).
const (
	rqQueues = "rq:queues"
	rqQueue  = "rq:queue:"
	rqJob    = "rq:job:"
)

// parkScript takes a site's jobs off the lists of a bench, and keeps them on a separate list. Several benches may
// share a Redis.
const parkScript = `
local n = 0
for _, queue in ipairs(redis.call('SMEMBERS', KEYS[1])) do if string.sub(queue, 1, #ARGV[2]) == ARGV[2] then
  for _, id in ipairs(redis.call('LRANGE', queue, 0, -1)) do
    if string.sub(id, 1, #ARGV[1]) == ARGV[1] then
      redis.call('LREM', queue, 1, id)
      redis.call('RPUSH', KEYS[2], queue .. '\n' .. id)
      redis.call('SREM', KEYS[3], id .. ' ' .. (redis.call('HGET', 'rq:job:' .. id, 'enqueued_at') or ''))
      n = n + 1
    end
  end
end end
return n`

// queueScript queues a job unless it has.
const queueScript = `
if redis.call('SADD', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('EXPIRE', KEYS[1], 604800)
redis.call('HSET', KEYS[2], unpack(ARGV, 3))
redis.call('SADD', KEYS[3], KEYS[4])
redis.call('RPUSH', KEYS[4], ARGV[2])
return 1`

func parkedKey(site string) string { return "prego:parked:" + site }

// queuedKey is the set of jobs that were queued out of files, and have not been parked again.
func queuedKey(site string) string { return "prego:queued:" + site }

// jobsQueue connects to the bench's queue, nil if it has none. The names of its queues begin with prefix.
func (b *bench) jobsQueue() (r *resp.Conn, prefix string, err error) {
	at, err := b.connection("")
	if err != nil || at.Queue == "" {
		return nil, "", err
	}
	if r, err = b.dialRedis(at.Queue); err == nil {
		prefix, err = b.queuePrefix()
	}
	return r, prefix, err
}

// parkJobs takes the jobs of a held site that have not begun into a file of its directory. Those
// that are in it stay there.
func (b *bench) parkJobs(site, file string) error {
	r, prefix, err := b.jobsQueue()
	if err != nil || r == nil {
		return err
	}
	if _, err := r.Do("EVAL", parkScript, "3", rqQueues, parkedKey(site), queuedKey(site), site+"::", rqQueue+prefix); err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	step()
	jobs, err := b.jobsIn(site, file)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, j := range jobs {
		known[j.queuedAt()] = true
	}
	for {
		reply, err := r.Do("LRANGE", parkedKey(site), "0", "99")
		if err != nil {
			return fmt.Errorf("jobs: %w", err)
		}
		list, _ := reply.([]any)
		if len(list) == 0 {
			return nil
		}
		for _, item := range list {
			j, err := readJob(r, fmt.Sprint(item))
			if err != nil {
				return err
			}
			if len(j.Fields) > 0 && !known[j.queuedAt()] { // without its hash no worker would run it
				jobs, known[j.queuedAt()] = append(jobs, j), true
			}
		}
		if err := b.putJSON(site+"/"+file, jobs); err != nil {
			return err
		}
		step()
		if _, err := r.Do("LTRIM", parkedKey(site), strconv.Itoa(len(list)), "-1"); err != nil {
			return fmt.Errorf("jobs: %w", err)
		}
	}
}

// readJob reads a job that parkScript has noted.
func readJob(r *resp.Conn, noted string) (parkedJob, error) {
	queue, id, _ := strings.Cut(noted, "\n")
	j := parkedJob{ID: id, Kind: queue[strings.LastIndexByte(queue, ':')+1:], Fields: map[string][]byte{}}
	reply, err := r.Do("HGETALL", rqJob+id)
	if err != nil {
		return j, fmt.Errorf("job %s: %w", id, err)
	}
	fields, _ := reply.([]any)
	for i := 0; i+1 < len(fields); i += 2 {
		j.Fields[fmt.Sprint(fields[i])] = fmt.Append(nil, fields[i+1])
	}
	return j, nil
}

func (b *bench) jobsIn(site, file string) (jobs []parkedJob, err error) {
	text, err := b.sites.ReadFile(site + "/" + file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &jobs)
	}
	return jobs, err
}

// queueJobs queues the jobs of all files of a site that may work here, in their order, and deletes the files.
func (b *bench) queueJobs(site string) error {
	files, err := fs.Glob(b.sites.FS(), site+"/"+jobsPrefix+"*")
	if err != nil || len(files) == 0 {
		return err
	}
	slices.Sort(files)
	r, prefix, err := b.jobsQueue()
	if err != nil {
		return err
	}
	if r == nil {
		return errors.New("jobs: the bench has no redis_queue")
	}
	for _, path := range files {
		file := filepath.Base(path)
		jobs, err := b.jobsIn(site, file)
		if err != nil {
			return err
		}
		for _, j := range jobs {
			name := prefix + j.Kind
			j.Fields["origin"] = []byte(name)
			args := []string{"EVAL", queueScript, "4", queuedKey(site), rqJob + j.ID, rqQueues, rqQueue + name, j.queuedAt(), j.ID}
			for _, field := range slices.Sorted(maps.Keys(j.Fields)) {
				args = append(args, field, string(j.Fields[field]))
			}
			if _, err := r.Do(args...); err != nil {
				return fmt.Errorf("jobs: %w", err)
			}
			step()
		}
		if err := b.sites.Remove(path); ignoreGone(err) != nil {
			return err
		}
	}
	return nil
}

// queuePrefix begins the names of this bench's queues (frappe/utils/__init__.py, get_bench_id).
func (b *bench) queuePrefix() (string, error) {
	common, err := b.readConfig(commonConfig)
	if err != nil {
		return "", err
	}
	var id string
	if json.Unmarshal(common["bench_id"], &id) != nil || id == "" {
		dir, err := filepath.EvalSymlinks(b.dir)
		if err != nil {
			return "", err
		}
		id = strings.ReplaceAll(strings.Trim(dir, "/"), "/", "-")
	}
	return id + ":", nil
}
