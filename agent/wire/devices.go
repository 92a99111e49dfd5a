package wire

// DevicesSocket is where the process that mounts volumes and sets addresses listens for the executor.
const DevicesSocket = "/run/prego-agent-devices.sock"

// EnvBridge begins the names of the bridges of environments, which hold the containers of
// their process groups. The host's firewall takes them for bridges of Docker.
const EnvBridge = "br-env"

// DevicesDir remembers, a file each, the volumes and addresses that a host has, so that
// they are there again after a reboot.
const DevicesDir = "/var/lib/prego-agent-devices"

// VolumeDevice is the device of an attached volume, by the provider's id.
func VolumeDevice(id string) string { return "/dev/disk/by-id/scsi-0HC_Volume_" + id }

// VolumeMount is where a volume is mounted.
func VolumeMount(id string) string { return "/mnt/HC_Volume_" + id }

// VolumeDir is the directory of a volume that containers get. It is on the volume itself, so that it exists only
// while the volume is mounted: a container can't be started on the bare mount point, and no lost+found is in it.
func VolumeDir(id string) string { return VolumeMount(id) + "/prego" }

// DrillPrefix begins the name of a sealed backup that is only tried: it lies beside a backup that is being made or
// restored on the same host.
const DrillPrefix = "drl-"

// VolumeReport is what the verbs mount and grow print.
type VolumeReport struct {
	Path      string `json:"path"`       // VolumeDir
	SizeBytes int64  `json:"size_bytes"` // of the file system
	Made      bool   `json:"made,omitempty"`
}
