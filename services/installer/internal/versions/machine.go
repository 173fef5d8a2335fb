// Package versions asks the components of a mesh for their versions: those that run, and the binaries of those that do
// not. It is what `fairlead version` prints.
package versions

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strings"

	"fairlead.dev/pkg/version"
	"fairlead.dev/proto/fairlead/runstate"
	"fairlead.dev/services/installer/internal/local/programs"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/opsclient"
	"fairlead.dev/services/installer/internal/table"
)

// Component is a row of `fairlead version`.
type Component struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	// Source is "running" if the process was asked, "binary" if the file was.
	Source string `json:"source"`
	// Error says why the version is not known.
	Error string `json:"error,omitempty"`
}

// services are the programs of a mesh besides fairlead and Envoy.
var services = []string{"ca", "config-watcher", "xds-server", "node-agent"}

// Print prints components as a table.
func Print(out io.Writer, list []Component) error {
	tab := &table.Table{Header: []string{"COMPONENT", "VERSION", "FROM"}}
	for _, c := range list {
		v := c.Version
		if c.Error != "" {
			v = "unknown: " + c.Error
		}
		tab.Add(c.Name, v, c.Source)
	}
	return tab.Write(out)
}

// OfMachine asks the running services of the run directory, and the binaries of those that do not run. A component that
// does not answer is listed with the reason.
func OfMachine(ctx context.Context, mesh *meshclient.Mesh, find programs.Finder, envoy string) []Component {
	list := []Component{{Name: "fairlead", Version: Text(version.Info()), Source: "running"}}
	asked := map[string]bool{}
	// Without a mesh all binaries are asked.
	if state, err := mesh.State(); err == nil {
		for _, s := range state.Services {
			c := Component{Name: s.Name, Source: "running"}
			if b, err := runningVersion(ctx, state, s); err != nil {
				c.Error = err.Error()
			} else {
				c.Version = Text(b)
			}
			asked[s.Program] = true
			list = append(list, c)
		}
		envoy = cmp.Or(envoy, state.EnvoyBinary)
	}
	for _, name := range services {
		if !asked[name] {
			path, err := find.Program(name)
			list = append(list, binaryComponent(ctx, name, path, err))
		}
	}
	path, err := find.Envoy(envoy)
	return append(list, binaryComponent(ctx, "envoy", path, err))
}

// Text is a version with its revision and that of Go.
func Text(b version.Build) string {
	v := b.Version
	if b.Revision != "" {
		v += " (" + b.Revision + ")"
	}
	return v + " " + b.Go
}

// runningVersion asks a service that runs.
func runningVersion(ctx context.Context, state *runstate.State, s runstate.Service) (version.Build, error) {
	var b version.Build
	err := opsclient.Get(ctx, s.OpsAddress, state.AdminTokenFile, "/debug/version", nil, &b)
	return b, err
}

// binaryComponent runs a program to ask its version; err is why it was not found.
func binaryComponent(ctx context.Context, name, path string, err error) Component {
	c := Component{Name: name, Source: "binary"}
	if err == nil {
		c.Version, err = binaryVersion(ctx, path)
	}
	if err != nil {
		c.Error = err.Error()
	}
	return c
}

func binaryVersion(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, opsclient.Timeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		// Programs that have sub-commands have "version".
		if out, err = exec.CommandContext(ctx, path, "version").Output(); err != nil {
			return "", fmt.Errorf("%s --version: %w", path, err)
		}
	}
	return shortVersion(string(out)), nil
}

// shortVersion finds the version in what a program prints: JSON or "ca version ca 1.2.3 (rev) go1.26.0" of Fairlead's,
// "envoy version: <commit>/1.40.0/Clean/RELEASE/BoringSSL" of Envoy.
func shortVersion(out string) string {
	var b version.Build
	if json.Unmarshal([]byte(out), &b) == nil && b.Version != "" {
		return Text(b)
	}
	line, _, _ := strings.Cut(strings.TrimSpace(out), "\n")
	if _, v, ok := strings.Cut(line, " version:"); ok {
		if parts := strings.Split(strings.TrimSpace(v), "/"); len(parts) > 1 {
			return parts[1] + " " + parts[0]
		}
		return strings.TrimSpace(v)
	}
	if _, v, ok := strings.Cut(line, " version "); ok {
		line = v
	}
	if name, v, ok := strings.Cut(line, " "); ok && !strings.ContainsAny(name, "0123456789.") {
		return v
	}
	return line
}
