// Package wire holds the messages between agents and the control plane, and nothing else: it is the only package that
// both sides import.
//
// All endpoints accept and return JSON unless documented otherwise. Times are RFC 3339. Certificates, requests and
// bundles are PEM.
package wire

import "time"

// Paths of the agent gateway (direct-provisioning §8).
const (
	PathHandshake    = "/internal/agent/handshake"
	PathHeartbeat    = "/internal/agent/heartbeat"
	PathMetrics      = "/internal/agent/metrics"
	PathLogs         = "/internal/agent/logs"
	PathBackupReport = "/internal/agent/backup-report"
	PathRotateToken  = "/internal/agent/rotate-token"
	// PathBootStage, PathStageTwo and PathAgentBinary serve a booting host; they accept
	// the bootstrap token as a bearer token, without consuming it.
	PathBootStage   = "/internal/agent/boot-stage"
	PathStageTwo    = "/internal/agent/stage-two"
	PathAgentBinary = "/internal/agent/binary"
	// Paths of the agent itself.
	PathExec       = "/agent/v1/exec"
	PathExecStream = "/agent/v1/exec/stream"
)

// Scopes of an agent's token.
const (
	ScopeHeartbeat    = "heartbeat"
	ScopeMetrics      = "metrics"
	ScopeLogs         = "logs"
	ScopeBackupReport = "backup_report"
	// ScopeEdge is for servers with the role edge only.
	ScopeEdge = "edge"
	// ScopeExecPrefix is followed by a CommandKind in tokens for the agent's own endpoint. Such a token also has the
	// claim "body", the SHA-256 of the request's body in hex: it is valid for this one request.
	ScopeExecPrefix = "exec."
)

// BootStage is a milestone of a booting host, in order.
type BootStage string

// The stages that a host reports before and while its agent starts.
const (
	StageCloudInitStarted BootStage = "cloud_init_started"
	StageFirewallReady    BootStage = "firewall_ready"
	StageDockerInstalled  BootStage = "docker_installed"
	StageAgentInstalled   BootStage = "agent_installed"
	StageAgentStarted     BootStage = "agent_started"
	// StageRetrying is no milestone: a step failed and is retried; Detail is the reason.
	StageRetrying BootStage = "retrying"
	// StageFailed ends a boot; Detail is the reason.
	StageFailed BootStage = "failed"
)

// BootStages lists every stage in order.
func BootStages() []BootStage {
	return []BootStage{StageCloudInitStarted, StageFirewallReady, StageDockerInstalled, StageAgentInstalled, StageAgentStarted, StageRetrying, StageFailed}
}

// BootStageRequest reports a stage. Detail is at most 512 bytes of printable
// text, for example the command that failed.
type BootStageRequest struct {
	ServerID string    `json:"server_id"`
	Stage    BootStage `json:"stage"`
	Detail   string    `json:"detail,omitempty"`
}

// HandshakeRequest is sent once per boot identity, over TLS with a self-signed client certificate made from the same
// key as CSRs.AgentClient: the connection proves that the host holds the key that the token gets bound to.
type HandshakeRequest struct {
	ServerID     string `json:"server_id"`
	Token        string `json:"token"`
	CSRs         CSRs   `json:"csrs"`
	AgentVersion string `json:"agent_version"`
	BootID       string `json:"boot_id"`
	Hostname     string `json:"hostname"`
	// Tags are the host's tags from cloud-init.
	Tags []string `json:"tags,omitempty"`
	// HostTime is the host's clock when it sent this; zero is unknown.
	HostTime time.Time `json:"host_time,omitzero"`
}

// CSRs are PEM certificate requests; the subject is ignored, the issuer decides about the certificates' content.
type CSRs struct {
	AgentClient  string `json:"agent_client"`
	AgentServer  string `json:"agent_server"`
	DockerServer string `json:"docker_server"`
	// Service is for the certificate that the host's databases, caches or their clients use
	// among each other; "" from agents that don't know of it, and on hosts without either.
	Service string `json:"service,omitempty"`
}

// Certificates are the PEM chains for the CSRs.
type Certificates struct {
	AgentClient  string    `json:"agent_client"`
	AgentServer  string    `json:"agent_server"`
	DockerServer string    `json:"docker_server"`
	NotAfter     time.Time `json:"not_after"` // the earliest of all
	// Service is a server's certificate on a shard or pool, for its private address, and a
	// client's on a server with bench.
	Service string `json:"service,omitempty"`
}

// Bundles are the CAs that the host trusts from now on, each for one purpose only.
// During a CA rotation a bundle holds the old and the new one.
type Bundles struct {
	Version      string `json:"version"`       // changes when any bundle does
	Gateway      string `json:"gateway"`       // for the agent gateway
	ExecClient   string `json:"exec_client"`   // for callers of the agent's exec endpoint
	DockerClient string `json:"docker_client"` // for callers of the Docker port
	// ExecKeys are the Ed25519 public keys, PEM by key id, that sign exec tokens.
	ExecKeys map[string]string `json:"exec_keys"`
	// PeersKeys are the Ed25519 public keys, PEM by key id, that sign peers documents. A host
	// takes them when it is enrolled; later ones come in documents that it trusts.
	PeersKeys map[string]string `json:"peers_keys,omitempty"`
	// ServiceServer is for servers of databases and caches on other hosts, ServiceClient for their clients.
	ServiceServer string `json:"service_server,omitempty"`
	ServiceClient string `json:"service_client,omitempty"`
}

// Identity is what a host receives at the handshake and at each rotation.
type Identity struct {
	ServerID     string       `json:"server_id"`
	Environment  string       `json:"environment"`
	Token        string       `json:"token"` // JWT for the gateway
	TokenExpires time.Time    `json:"token_expires"`
	Certificates Certificates `json:"certificates"`
	Bundles      Bundles      `json:"bundles"`
	// HeartbeatSeconds is how often to send a heartbeat.
	HeartbeatSeconds int `json:"heartbeat_seconds"`
}

// HeartbeatRequest is sent every HeartbeatSeconds.
type HeartbeatRequest struct {
	BootID       string   `json:"boot_id"`
	AgentVersion string   `json:"agent_version"`
	Load1        float64  `json:"load1"`      // run-queue length averaged over 1 min
	MemoryPct    float64  `json:"memory_pct"` // 0–100
	DiskPct      float64  `json:"disk_pct"`   // 0–100, of the root file system
	DockerState  string   `json:"docker_state"`
	Tags         []string `json:"tags,omitempty"`
	// HostTime is the host's clock when it sent this; zero is unknown.
	HostTime time.Time `json:"host_time,omitzero"`
	// The following are 0–100, and absent if unknown. CPU and worker slots (busy
	// background workers) are averages over some minutes.
	CPUPct         *float64 `json:"cpu_pct,omitempty"`
	WorkerSlotsPct *float64 `json:"worker_slots_pct,omitempty"`
	DBDiskPct      *float64 `json:"db_disk_pct,omitempty"`      // of the disk that holds MariaDB's data
	RedisMemoryPct *float64 `json:"redis_memory_pct,omitempty"` // of the memory that Redis may use
	// PrivateAddresses are the host's IPv4 addresses in private networks of its provider, in
	// order, at most MaxPrivateAddresses; none if it has or knows none.
	PrivateAddresses []string `json:"private_addresses,omitempty"`
}

// MaxPrivateAddresses is how many private addresses a heartbeat has at most. A server of the
// provider is in three networks at most, with five further addresses in each.
const MaxPrivateAddresses = 18

// The values of HeartbeatRequest.DockerState.
const (
	DockerRunning     = "running"
	DockerStopped     = "stopped"
	DockerUnavailable = "unavailable"
)

// HeartbeatResponse notifies the agent of outdated bundles: it rotates immediately if BundleVersion differs from its
// own.
type HeartbeatResponse struct {
	BundleVersion    string `json:"bundle_version"`
	HeartbeatSeconds int    `json:"heartbeat_seconds"`
	// PeersVersion is that of the host's peers document, 0 if the gateway does not know: the
	// agent fetches it if its own is another.
	PeersVersion int64 `json:"peers_version,omitempty"`
	// UpdateSerial is the release of the agent that the host must have, 0 to keep its own.
	UpdateSerial int64 `json:"update_serial,omitempty"`
	// Epoch is that of the control plane's commands: the host refuses commands with a lower one.
	Epoch int64 `json:"epoch,omitempty"`
}

// RotateRequest asks for a new JWT and, with CSRs, new certificates.
type RotateRequest struct {
	CSRs *CSRs `json:"csrs,omitempty"`
}

// LogLine is one line of POST /internal/agent/logs, which takes newline-separated JSON.
type LogLine struct {
	At      time.Time `json:"at"`
	Unit    string    `json:"unit"`
	Level   string    `json:"level"`
	Message string    `json:"message"`
}

// BackupReport reports the end of a bench backup.
type BackupReport struct {
	Site       string    `json:"site"`
	Status     string    `json:"status"` // "succeeded" or "failed"
	Bytes      int64     `json:"bytes"`
	SHA256     string    `json:"sha256,omitempty"` // hex
	StartedAt  time.Time `json:"started_at"`
	FinishedAt time.Time `json:"finished_at"`
	Message    string    `json:"message,omitempty"`
}

// CommandKind is what an agent can be asked to run: a closed set (direct-provisioning §7).
type CommandKind string

// The kinds of commands.
const (
	KindBench    CommandKind = "bench"
	KindMariaDB  CommandKind = "mariadb"
	KindRedisCLI CommandKind = "redis-cli"
	// KindVolume, KindAddress and KindPatch are for workflows alone: what they do is known to rows.
	KindVolume  CommandKind = "volume"
	KindAddress CommandKind = "address"
	KindPatch   CommandKind = "patch"
)

// Valid reports whether k is a known kind.
func (k CommandKind) Valid() bool {
	switch k {
	case KindBench, KindMariaDB, KindRedisCLI, KindVolume, KindAddress, KindPatch:
		return true
	}
	return false
}

// ExecRequest is direct-provisioning §7's AgentExecRequest.
type ExecRequest struct {
	WorkflowID     string      `json:"workflowId"`
	ServerID       string      `json:"serverId"`
	Kind           CommandKind `json:"kind"`
	Args           []string    `json:"args"`
	TimeoutSeconds int         `json:"timeoutSeconds,omitempty"` // default 60
	WorkingDir     string      `json:"workingDir,omitempty"`     // default /home/frappe/frappe-bench for bench
	// AuditID names the command: a request with the id of an earlier one gets its
	// result, and nothing runs twice. Requests without an id are always new.
	AuditID string `json:"auditId,omitempty"`
	// TenantID is the tenant whose work this is, for bench: a site of another tenant is
	// refused with site_not_owned. Without it, sites are not checked.
	TenantID string `json:"tenantId,omitempty"`
	// Secrets are a bench verb's confidential inputs, by the names below. They never appear in a result, a log or a
	// file of the host.
	Secrets map[string]string `json:"secrets,omitempty"`
	// Lease has the host undo the command by itself.
	Lease *Lease `json:"lease,omitempty"`
}

// Lease bounds how long the effect of a command lasts while no control plane works: the host then undoes it.
type Lease struct {
	// Seconds is from the first command with this Undo until the host undoes it, MaxLease at most. With 0 the command
	// does not run: its earlier effect lasts. If the host has undone that, the request is refused with CodeLeaseEnded.
	Seconds int `json:"seconds,omitempty"`
	// Undo are the arguments of the command that undoes this one, of the same kind and without secrets. A request with
	// them also ends the lease.
	Undo []string `json:"undo"`
}

// MaxLease is the longest lease.
const MaxLease = 24 * time.Hour

// CodeLeaseEnded refuses to keep the effect of a command that the host has undone.
const CodeLeaseEnded = "lease_ended"

// Names of an ExecRequest's secrets, each for one verb: 1 to 256 printable characters.
const (
	SecretAdminPassword = "admin_password" // set-admin-password
	SecretUserPassword  = "user_password"  // add-user, optional
	SecretMailPassword  = "mail_password"  // configure, optional
	// SecretDatabasePassword is a tenant's password at its shard: new-site with --db-host, connect-database, and
	// grant-database, which also takes the earlier one while both must be valid.
	SecretDatabasePassword = "database_password"
	SecretEarlierPassword  = "earlier_password"
	// SecretBackupIdentity is the private key of one backup: open-backup.
	SecretBackupIdentity = "backup_identity"
	// SecretCachePassword is a tenant's at its Redis pool: connect-cache and create-user.
	SecretCachePassword = "cache_password"
)

// CodeEpochPassed refuses commands of a control plane whose database was replaced by a restored one.
const CodeEpochPassed = "epoch_passed"

// CodeOutcomeUnknown refuses the id of a command that had begun and whose outcome is unknown.
const CodeOutcomeUnknown = "outcome_unknown"

// ExecResult is direct-provisioning §7's AgentExecResult.
type ExecResult struct {
	ExitCode        int    `json:"exitCode"`
	StdoutTruncated string `json:"stdoutTruncated"` // last 8 KiB
	StderrTruncated string `json:"stderrTruncated"` // last 8 KiB
	DurationMs      int64  `json:"durationMs"`
	AuditID         string `json:"auditId"`
}

// Problem is an RFC 9457 problem document, the body of every refusal.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Code   string `json:"code"`
	Detail string `json:"detail,omitempty"`
	Field  string `json:"field,omitempty"`
}

// HostConfig is the file that cloud-init writes for the agent, at HostConfigPath. It holds no secret.
type HostConfig struct {
	ServerID    string   `json:"server_id"`
	Environment string   `json:"environment"`
	Role        string   `json:"role"`
	Region      string   `json:"region"`
	Tags        []string `json:"tags"`
	// GatewayURL is the agent gateway's base, for example "https://gw.example.com:8443".
	GatewayURL string `json:"gateway_url"`
	// GatewayServerName is the name to verify the gateway's certificate against.
	GatewayServerName string `json:"gateway_server_name"`
	// AgentPort and DockerPort are the ports to serve on.
	AgentPort  int `json:"agent_port"`
	DockerPort int `json:"docker_port"`
	// AgentSHA256 is the hex digest of the agent's binary that cloud-init fetched.
	AgentSHA256 string `json:"agent_sha256"`
}

// Files on a host, relative to its root directory. The agent takes --root, "/" by
// default, so that tests and the simulator can give it a directory.
const (
	HostConfigPath     = "/etc/prego-agent/config.json"
	BootstrapTokenPath = "/etc/prego-agent/bootstrap.token"
	GatewayCAPath      = "/etc/prego-agent/gateway-ca.pem"
	// IdentityDir holds the keys, certificates, bundles and the JWT, 0700.
	IdentityDir = "/var/lib/prego-agent"
	// DockerTLSDir holds ca.pem, cert.pem and key.pem for dockerd.
	DockerTLSDir = "/var/lib/prego-agent/docker"
	AgentBinary  = "/usr/local/bin/prego-agent"
)

// Files of commands on a host, relative to its root directory.
const (
	BenchBinary = "/usr/local/bin/bench"
	BenchHome   = "/home/frappe"
	BenchDir    = "/home/frappe/frappe-bench"
	// ExecSocket is where the executor listens for the process that faces the network.
	ExecSocket = "/run/prego-agent-exec.sock"
	// ExecResultsDir keeps the results of the latest commands, one file each.
	ExecResultsDir = "/var/lib/prego-agent-exec"
	// ExecLeasesDir keeps the leases of commands, one file each.
	ExecLeasesDir = ExecResultsDir + "/leases"
	// UsedTokensPath remembers the exec tokens that were used, until they expire.
	UsedTokensPath = IdentityDir + "/used-tokens"
	// EpochPath has the highest epoch of the control plane that the host has seen.
	EpochPath = IdentityDir + "/epoch"
	// SiteOwnerFile is in a site's directory and names the tenant that owns it; it
	// moves with the site. The key in the site's configuration has the same name.
	SiteOwnerFile = "prego_tenant_id"
	// SnapshotsDir is in a site's directory and holds its backups, a directory each: Frappe deletes the content of
	// its own, private/backups, after a day.
	SnapshotsDir = "private/snapshots"
	// ServicesPath is a Services.
	ServicesPath = "/etc/prego-agent-exec/services.json"
	// BenchSocket is where the process that holds the engine's socket listens for the executor.
	BenchSocket = "/run/prego-agent-bench.sock"
)

// BenchContainer is the name of the container that holds bench on hosts with the
// declared stack, and BenchUser the user that bench runs as in it.
const (
	BenchContainer = "backend"
	BenchUser      = "frappe"
)

// ContainerName is the name of a declared container on its host.
func ContainerName(serverID, name string) string { return "prego-" + serverID + "-" + name }

// Files that "prego-agent prepare" creates on a host for its containers, relative to
// the host's root directory. The declared stack mounts them.
const (
	// SecretsDir holds the host's own secrets, one file each, readable by root only.
	SecretsDir = "/etc/prego-secrets"
	// MountsDir can be entered by root only, so that its content is visible only to the containers that mount a part
	// of it.
	MountsDir    = "/var/lib/prego/mounts"
	MariaDBMount = MountsDir + "/mariadb"
	RedisMount   = MountsDir + "/redis"
	BenchMount   = MountsDir + "/bench"
	// ProgramsDir holds the agent's program for containers.
	ProgramsDir = "/var/lib/prego/bin"
	// SocketsDir can be entered only by the process that runs commands.
	SocketsDir    = "/run/prego"
	MariaDBSocket = SocketsDir + "/mysqld/mysqld.sock"
	RedisSocket   = SocketsDir + "/redis/redis.sock"
)

// ConfirmedDir holds ConfirmedPath, on hosts with bench and in their containers that run jobs. Both are gone after a
// boot.
const ConfirmedDir = "/run/prego-confirmed"

// ConfirmedPath is a file that is there from the first heartbeat of a boot that a gateway accepted, until one is refused
// because the host's identity was revoked. Without it no jobs run.
const ConfirmedPath = ConfirmedDir + "/yes"

// ContainerTLSDir is where containers have ca.pem, cert.pem and key.pem for connections between servers.
const ContainerTLSDir = "/etc/prego/tls"

// RedisUsersDir is in RedisMount on hosts of Redis pools, and holds users.acl, which Redis
// writes when a tenant's user is made or dropped.
const RedisUsersDir = RedisMount + "/users"

// ContainerAgent is the agent's program in a container.
const ContainerAgent = "/usr/local/lib/prego/prego-agent"

// Services configures how the executor reaches the host's own services. The file may hold secrets; the process that
// faces the network can't read it. Without the file, each is looked for at its default socket, with the user
// DefaultServiceUser and no password: MariaDB identifies the user by its socket's peer.
type Services struct {
	MariaDB Service `json:"mariadb"`
	Redis   Service `json:"redis"`
	// Bench has a socket if bench is in a container; otherwise it is a program of the host.
	Bench Service `json:"bench"`
}

// Service is a service of the host.
type Service struct {
	Socket string `json:"socket,omitempty"` // default DefaultMariaDBSocket or DefaultRedisSocket
	// Addr is a loopback address and a port, for Redis only, instead of a socket.
	Addr     string `json:"addr,omitempty"`
	User     string `json:"user,omitempty"`
	Password string `json:"password,omitempty"`
}

// Defaults of Services.
const (
	DefaultServiceUser   = "prego-exec"
	DefaultMariaDBSocket = "/run/mysqld/mysqld.sock"
	DefaultRedisSocket   = "/run/redis/redis-server.sock"
)

// StageTwoPath is where user_data pins the second boot stage, when the whole would be too large for it.
const StageTwoPath = "/etc/prego-agent/stage-two.json"

// StageTwo pins a second boot stage: a gzipped tar of files below "/", fetched
// from the gateway at Path with the bootstrap token.
type StageTwo struct {
	Path   string `json:"path"`
	SHA256 string `json:"sha256"` // hex, of the archive
}

// ErasedSite is what erase-site removed.
type ErasedSite struct {
	Site      string `json:"site"`
	Directory bool   `json:"directory"`
	Backups   int    `json:"backups"`  // files, of the directory's
	Archives  int    `json:"archives"` // directories that bench drop-site left
	Database  bool   `json:"database"`
	Users     int    `json:"users"`
	Keys      int    `json:"redis_keys"`
	// KeptFor is the site that now has the database: this one was promoted to it.
	KeptFor string `json:"kept_for,omitempty"`
	// Unreached: this host has no database server, so none was checked.
	Unreached bool `json:"database_unreached,omitempty"`
}
