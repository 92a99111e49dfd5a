package a

import (
	"context"
	"net/http"
	"os"
	. "os/exec"
	run "os/exec"

	_ "github.com/pulumi/pulumi/sdk" // want `no Pulumi`
	_ "golang.org/x/crypto/ssh"      // want `no SSH`

	"wire"
)

const program = "s" + "sh"

func commands(ctx context.Context, host, line string) {
	_ = run.Command("pulumi", "up")          // want `no Pulumi`
	_ = run.Command("/usr/bin/ssh", host)    // want `no SSH`
	_ = run.CommandContext(ctx, program)     // want `no SSH`
	_ = run.Command("sudo", "scp", host)     // want `no SSH`
	_ = Command("sshpass", "-p", line)       // want `no SSH`
	_ = run.Command("ansible-playbook", "x") // want `no Ansible`
	_ = run.Command(
		"sftp", // want `no SSH`
		host)
	_ = run.Cmd{Path: "/usr/bin/ssh", Args: []string{"x"}} // want `no SSH`
	_, _ = os.StartProcess("/usr/bin/ssh", nil, nil)       // want `no SSH`

	_ = run.Command("sh", "-c", line)                                  // want `never text for a shell`
	_ = run.Command("/usr/bin/bash", "-ec", line)                      // want `never text for a shell`
	_ = run.Command("env", "dash", "-euxc", line)                      // want `never text for a shell`
	_ = run.Command("/bin/bash", append([]string{"-c", line}, "x")...) // want `never text for a shell`
	argv := []string{"nsenter", "--", "sh", "-c", line}                // want `never text for a shell`
	_ = argv
	_ = run.Command("bash",
		"-c", // want `never text for a shell`
		line)
	_ = "pulumi destroy --yes" // want `no Pulumi`
	_ = "prego-" + "ansible"   // want `no Ansible`
}

func routes(mux *http.ServeMux, x string, h http.HandlerFunc) {
	mux.HandleFunc("/agent/v1/shell", h)         // want `every endpoint of the agent`
	mux.HandleFunc("POST /agent/v1/exec2", h)    // want `every endpoint of the agent`
	mux.HandleFunc("/agent/v1/exec_raw", h)      // want `every endpoint of the agent`
	mux.HandleFunc("/agent/v1/:verb", h)         // want `every endpoint of the agent`
	mux.HandleFunc("/agent/v1/{verb}", h)        // want `every endpoint of the agent`
	mux.HandleFunc("/agent/v1/"+x, h)            // want `every endpoint of the agent`
	mux.HandleFunc("/agent/v"+"1/docker", h)     // want `every endpoint of the agent`
	mux.HandleFunc("/agent/v1/exec/stream/x", h) // want `every endpoint of the agent`
}

func kinds(k string) []wire.CommandKind {
	return []wire.CommandKind{
		wire.CommandKind("docker"), // want `a new kind`
		"shell",                    // want `a new kind`
		wire.CommandKind(k),
		"bench",
	}
}
