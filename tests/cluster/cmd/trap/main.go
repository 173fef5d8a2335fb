// Command trap is what a Pod of an attacker runs in the tests of a cluster. "trap root" starts processes whose root
// directory holds a pipe in the place of resolv.conf, and waits; "trap fail CODE" ends with a code; "trap dial
// NAME=ADDRESS:PORT..." answers on port 8080 which of the addresses it reaches.
package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// copies of the process are so many that one of them is likely to be the first that somebody finds.
const copies = 32

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "trap:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "root":
		return root()
	case len(args) == 1 && args[0] == "wait":
		select {}
	case len(args) == 2 && args[0] == "fail":
		code, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		os.Exit(code)
	case len(args) > 1 && args[0] == "dial":
		return dial(args[1:])
	}
	return fmt.Errorf("unknown command %q", args)
}

func root() error {
	const dir = "/tmp/root"
	if err := os.MkdirAll(filepath.Join(dir, "etc"), 0o755); err != nil {
		return err
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "etc/resolv.conf"), 0o666); err != nil {
		return err
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "trap"), self, 0o755); err != nil { //nolint:gosec // a program
		return err
	}
	for range copies {
		cmd := exec.Command("/trap", "wait")
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: dir}
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			return err
		}
	}
	if err := syscall.Chroot(dir); err != nil {
		return err
	}
	select {}
}

// dial serves at / what the addresses answer to a connection: "open", or the error.
func dial(targets []string) error {
	return http.ListenAndServe(net.JoinHostPort(os.Getenv("HOST"), os.Getenv("PORT")),
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { //nolint:gosec // a test
			var mu sync.Mutex
			var all sync.WaitGroup
			out := map[string]string{}
			for _, target := range targets {
				name, address, _ := strings.Cut(target, "=")
				all.Go(func() {
					answer := "open"
					conn, err := net.DialTimeout("tcp", address, 2*time.Second)
					if err != nil {
						answer = err.Error()
					} else {
						_ = conn.Close()
					}
					mu.Lock()
					defer mu.Unlock()
					out[name] = answer
				})
			}
			all.Wait()
			_ = json.NewEncoder(w).Encode(out)
		}))
}
