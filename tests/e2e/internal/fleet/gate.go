package fleet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// gates let a test decide when a program may run, whoever starts it: the mesh is given wrappers that wait at a gate
// before they become the real program. A service that is killed behind a closed gate is started again by `fairlead up`
// and yet stays away, until the gate opens.
//
// A gate is a FIFO: opening it for reading blocks until somebody has it open for writing.
type gates struct {
	// bin is the directory of the wrappers, dir that of the FIFOs.
	bin, dir string

	mu   sync.Mutex
	open map[string]*os.File
}

// gated are the programs that have wrappers.
var gated = []string{"ca", "config-watcher", "xds-server", "node-agent"}

// wrapper waits at the gate of the program, and then at that of the Pod, if there is one.
const wrapper = `#!/bin/sh
for gate in %[1]q %[1]q."$POD_NAME"; do
  if [ -p "$gate" ]; then : < "$gate"; fi
done
%[3]sexec %[2]q "$@"%[4]s
`

// newGates puts wrappers and links to all binaries into bin. All gates are open. env are variables, NAME=value, and
// flags further arguments that a program is started with.
func newGates(bin, dir string, b Binaries, env, flags map[string][]string) (*gates, error) {
	for _, d := range []string{bin, dir} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	g := &gates{bin: bin, dir: dir, open: map[string]*os.File{}}
	links := map[string]string{"fairlead": "", "bookinfo": "", "echo": b.Echo}
	for name, target := range links {
		if target == "" {
			target = filepath.Join(b.Dir, name)
		}
		if err := os.Symlink(target, filepath.Join(bin, name)); err != nil {
			return nil, err
		}
	}
	for _, name := range gated {
		var exports strings.Builder
		for _, v := range env[name] {
			fmt.Fprintf(&exports, "export %q\n", v)
		}
		var further strings.Builder
		for _, f := range flags[name] {
			fmt.Fprintf(&further, " %q", f)
		}
		script := fmt.Sprintf(wrapper, filepath.Join(dir, name), filepath.Join(b.Dir, name), exports.String(), further.String())
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// Close keeps program from starting. Program is "ca", "xds-server", ..., or "node-agent.<pod>" for the agent of one
// Pod.
func (g *gates) Close(program string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f := g.open[program]; f != nil {
		delete(g.open, program)
		return f.Close()
	}
	err := syscall.Mkfifo(filepath.Join(g.dir, program), 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	return err
}

// Open lets program start, those that wait included.
func (g *gates) Open(program string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open[program] != nil {
		return nil
	}
	// Open for reading too, or this would block until somebody waits at the gate.
	f, err := os.OpenFile(filepath.Join(g.dir, program), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil // it was never closed
	}
	if err != nil {
		return err
	}
	g.open[program] = f
	return nil
}

// release opens every gate for good.
func (g *gates) release() {
	entries, _ := os.ReadDir(g.dir)
	for _, e := range entries {
		_ = g.Open(e.Name())
	}
}
