package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"fairlead.dev/pkg/version"
	"fairlead.dev/proto/fairlead/runstate"

	"fairlead.dev/services/installer/internal/local/programs"
	"fairlead.dev/services/installer/internal/opsclient"
	"fairlead.dev/services/installer/internal/table"
)

// component is a row of `fairlead version`.
type component struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	// Source is "running" if the process was asked, "binary" if the file was.
	Source string `json:"source"`
	// Error says why the version is not known.
	Error string `json:"error,omitempty"`
}

// services are the programs of a mesh besides fairlead and Envoy.
var services = []string{"ca", "config-watcher", "xds-server", "node-agent"}

func newVersion(env Env, t *target) *cobra.Command {
	f := newFormat("json", "yaml")
	var binDir, envoy string
	var brief, remote bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the version of every component: of the running ones, else of the binaries",
		Long: `Show the version of fairlead, of each replica of the control plane, and of the connected proxies, which are counted by version.

The mesh is that of the run directory, whose services are asked, and Envoy's binary; else that of the cluster. Flags that name a cluster, and --remote,
go before the run directory. If nothing runs in either, the binaries beside fairlead are asked.

It is an error if flags name a cluster, or --remote asks for one, and no control plane answers there; the version of fairlead is printed all the same.`,
		Example: `  fairlead version
  fairlead version --short --context production
  fairlead version --remote=false -o json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cmd.OutOrStdout()
			asked := cmd.Flags().Changed("remote")
			show := func(m *meshVersions) error {
				if f.value != "" {
					return printTree(out, f.value, m)
				}
				return m.print(out, brief)
			}
			if asked && !remote {
				return show(&meshVersions{Client: version.Info()})
			}
			t.remote = asked
			mesh, err := t.controlPlane(cmd.Context())
			switch {
			case mesh != nil:
				m, err := clusterVersions(cmd.Context(), t, mesh)
				return errors.Join(show(m), err)
			case cmd.Context().Err() != nil:
				return cmd.Context().Err()
			case err != nil && (asked || t.namesCluster()):
				return errors.Join(show(&meshVersions{Client: version.Info()}), err)
			case err != nil:
				fmt.Fprintf(cmd.ErrOrStderr(), "no control plane is asked: %v\n", err)
			}
			if brief {
				_, err := fmt.Fprintln(out, version.Info().Version)
				return err
			}
			find := programs.Finder{Executable: env.Executable, BinDir: binDir, Getenv: env.Getenv}
			list := versions(cmd.Context(), t, find, envoy)
			if f.value != "" {
				return printTree(out, f.value, list)
			}
			return printVersions(out, list)
		},
	}
	outputFlag(cmd, f)
	cmd.Flags().BoolVarP(&brief, "short", "s", false,
		"only versions: one line for fairlead, the control plane and the proxies; of a mesh on this machine, fairlead's alone")
	cmd.Flags().BoolVar(&remote, "remote", true, "ask the control plane of a cluster; --remote=false asks nobody")
	cmd.Flags().StringVar(&binDir, "bin-dir", "", "directory of the programs (default: that of fairlead)")
	cmd.Flags().StringVar(&envoy, "envoy", "", "Envoy binary (default: found as fairlead up does)")
	t.registerCluster(cmd)
	return cmd
}

func printVersions(out io.Writer, list []component) error {
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

// versions asks the running services of the run directory, and the binaries of those that do not run. A component that
// does not answer is listed with the reason.
func versions(ctx context.Context, t *target, find programs.Finder, envoy string) []component {
	list := []component{{Name: "fairlead", Version: build(version.Info()), Source: "running"}}
	asked := map[string]bool{}
	// Without a mesh all binaries are asked.
	if state, err := t.state(); err == nil {
		for _, s := range state.Services {
			c := component{Name: s.Name, Source: "running"}
			if b, err := runningVersion(ctx, state, s); err != nil {
				c.Error = err.Error()
			} else {
				c.Version = build(b)
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

func build(b version.Build) string {
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
func binaryComponent(ctx context.Context, name, path string, err error) component {
	c := component{Name: name, Source: "binary"}
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
		return build(b)
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
