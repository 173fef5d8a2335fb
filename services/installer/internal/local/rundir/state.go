package rundir

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/proto/fairlead/runstate"
	"fairlead.dev/services/installer/internal/proxyname"
)

// Alive reports whether the `fairlead up` that wrote the state still runs.
func Alive(s *runstate.State) bool { return s.Birth != "" && Birth(s.PID) == s.Birth }

// Write replaces state.json atomically.
func Write(l Layout, s *runstate.State) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	if err := fileio.Write(l.State(), append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	return nil
}

// ErrNoMesh says that no mesh runs on the run directory.
var ErrNoMesh = errors.New("no mesh runs there")

// Open reads the state of a running mesh.
func Open(dir string) (*runstate.State, error) {
	s, err := runstate.Read(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("run directory %s: %w; start one with `fairlead up --run-dir %s -f FILE`, or name the right --run-dir", dir,
			ErrNoMesh, dir)
	case err != nil:
		return nil, foreign(dir, err, os.Getuid())
	case !Alive(s):
		return nil, fmt.Errorf("run directory %s: %w: `fairlead up` with pid %d has ended; `fairlead logs --run-dir %s` shows its last lines; "+
			"start it again with `%s`, which clears the directory",
			dir, ErrNoMesh, s.PID, dir, again(s, dir))
	}
	return s, nil
}

// again is the command that starts a mesh of the same files in the same run directory.
func again(s *runstate.State, dir string) string {
	command := "fairlead up --run-dir " + dir
	for _, path := range s.ConfigPaths {
		command += " -f " + path
	}
	for _, flag := range readFlags(Layout{Dir: dir}) {
		command += " " + flag
	}
	return command
}

// WriteFlags keeps the flags of `fairlead up`, beside --run-dir and -f, that start such a mesh again.
func WriteFlags(l Layout, flags []string) error {
	b, err := json.Marshal(flags)
	if err == nil {
		err = fileio.Write(l.Flags(), append(b, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("flags: %w", err)
	}
	return nil
}

// readFlags returns what WriteFlags has kept; nil if nothing can be read.
func readFlags(l Layout) (flags []string) {
	if b, err := os.ReadFile(l.Flags()); err == nil {
		_ = json.Unmarshal(b, &flags)
	}
	return flags
}

// Proxy returns the Pod with an agent that a name means (package proxyname); one that is scaled down is an error.
// namespace may be empty.
func Proxy(s *runstate.State, name, namespace string) (*runstate.Pod, error) {
	wanted, err := proxyname.Parse(name, namespace)
	if err != nil {
		return nil, err
	}
	var pods []*runstate.Pod
	var names []proxyname.Proxy
	for i := range s.Pods {
		if p := &s.Pods[i]; p.Agent != nil {
			pods = append(pods, p)
			names = append(names, proxyname.Proxy{Name: p.Name, Namespace: p.Namespace, Workload: p.Workload})
		}
	}
	i, err := wanted.One(names)
	if err != nil {
		return nil, err
	}
	return pods[i], Rests(pods[i])
}

// Rests is an error if a Pod does not run because its Deployment is scaled down.
func Rests(p *runstate.Pod) error {
	if !p.Resting {
		return nil
	}
	return fmt.Errorf("Pod %s does not run: its Deployment is scaled down; `fairlead scale deploy/%s --replicas=N` starts it", p.ID(),
		p.Workload)
}

// Abs returns the absolute path of a run directory.
func Abs(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("run directory: %w", err)
	}
	return abs, nil
}
