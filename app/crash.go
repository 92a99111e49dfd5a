package app

import (
	"os"
	"time"
)

// crashHook lets a test kill this process at a named point, once: the file contains the point, and is removed as the
// process dies. With "hold:" before the point the process waits there instead, until FILE.hit is removed: others can
// be killed then. It is nil without a file.
func crashHook(file string) func(string) {
	if file == "" {
		return nil
	}
	// A previous hold goes first: its mark has the same name.
	released := func() {
		for _, err := os.Stat(file + ".hit"); err == nil; _, err = os.Stat(file + ".hit") {
			time.Sleep(5 * time.Millisecond)
		}
	}
	return func(point string) {
		b, err := os.ReadFile(file)
		if err == nil && string(b) == "hold:"+point {
			released()
			if os.Rename(file, file+".hit") == nil {
				released()
			}
			return
		}
		if err != nil || string(b) != point {
			return
		}
		if os.Remove(file) == nil {
			released()
			_ = os.WriteFile(file+".hit", b, 0o600)
			self, err := os.FindProcess(os.Getpid())
			if err == nil {
				_ = self.Kill()
			}
			select {}
		}
	}
}
