package sim

import "os/exec"

func machine(script string) {
	_ = exec.Command("sh", "-c", script)
	_ = exec.Command("ssh", "x") // want `no SSH`
}
