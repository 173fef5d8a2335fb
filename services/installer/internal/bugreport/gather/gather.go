// Package gather gathers what a bug report of a mesh holds: it makes the tasks of package bugreport, for a mesh of a
// cluster, or of this machine, where it may have ended.
package gather

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/proto"

	"fairlead.dev/pkg/version"
	"fairlead.dev/proto/fairlead/caapi"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/analysis"
	"fairlead.dev/services/installer/internal/bugreport"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/controlplane"
	"fairlead.dev/services/installer/internal/envoyadmin"
	"fairlead.dev/services/installer/internal/local/programs"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/opsclient"
	"fairlead.dev/services/installer/internal/proxystatus"
	"fairlead.dev/services/installer/internal/structured"
)

// Config says what is gathered of which mesh.
type Config struct {
	Mesh     *meshclient.Mesh
	Programs programs.Finder
	Analysis analysis.Program
	// Selection chooses the Pods.
	Selection bugreport.Selection
	// Since and Until bound the times of log lines; zero means no bound.
	Since, Until time.Time
	// Dir is the directory of the archive.
	Dir string
	// Timeout bounds gathering; what is not read by then is missing.
	Timeout time.Duration
	// Progress is told what is being read.
	Progress func(text string)
}

// Archive is a report that was written.
type Archive struct {
	Path string
	Size int64
	// Gaps is the number of things that could not be read.
	Gaps int
}

// Report writes an archive. No archive is left behind if ctx ends.
func Report(ctx context.Context, cfg Config) (Archive, error) {
	whole, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	controlPlane, noMesh := cfg.Mesh.ControlPlane(whole)
	onCluster := controlPlane != nil || errors.Is(noMesh, controlplane.ErrNone)
	if noMesh != nil && !onCluster {
		return Archive{}, noMesh
	}
	if !onCluster {
		if _, err := cfg.Mesh.LastState(); err != nil { // before anything is written
			return Archive{}, err
		}
	}
	now := time.Now()
	report, err := bugreport.New(filepath.Join(cfg.Dir, "fairlead-bug-report-"+now.UTC().Format("20060102T150405Z")+".tar.gz"), now)
	if err != nil {
		return Archive{}, err
	}
	g := &gatherer{cfg: cfg, report: report, controlPlane: controlPlane}
	gather := g.machine
	if onCluster {
		gather = g.cluster
		if noMesh != nil {
			report.Missing("control-plane", noMesh)
		}
	}
	err = gather(whole)
	if err == nil && ctx.Err() != nil {
		err = errors.New("it was interrupted; no archive was written")
	}
	if err != nil {
		report.Discard()
		return Archive{}, err
	}
	done := Archive{Gaps: report.Gaps()}
	done.Path, done.Size, err = report.Close()
	return done, err
}

// gatherer makes the tasks of a report.
type gatherer struct {
	cfg          Config
	report       *bugreport.Report
	controlPlane *controlplane.Mesh
}

// task makes a task of what returns a value that is printed as JSON.
func task(name string, get func(ctx context.Context) (any, error)) bugreport.Task {
	return bugreport.Task{Name: name, Form: bugreport.JSON, Get: func(ctx context.Context) ([]byte, error) {
		v, err := get(ctx)
		if err != nil {
			return nil, err
		}
		return json.MarshalIndent(v, "", "  ")
	}}
}

// printed makes a task of what a command prints.
func printed(name string, form bugreport.Form, run func(ctx context.Context, out io.Writer) error) bugreport.Task {
	return bugreport.Task{Name: name, Form: form, Get: func(ctx context.Context) ([]byte, error) {
		var out bytes.Buffer
		err := run(ctx, &out)
		return out.Bytes(), err
	}}
}

// meshTasks are those that a mesh of a cluster and one of this machine have in common: what config-watcher knows.
func (g *gatherer) meshTasks() []bugreport.Task {
	call := func(name string, do func(ctx context.Context, client *configapi.Client) (any, error)) bugreport.Task {
		return task(name, func(ctx context.Context) (v any, err error) {
			err = g.cfg.Mesh.Call(ctx, func(ctx context.Context, client *configapi.Client) (err error) {
				v, err = do(ctx, client)
				return err
			})
			return v, err
		})
	}
	return []bugreport.Task{
		task("versions/fairlead.json", func(context.Context) (any, error) { return version.Info(), nil }),
		call("configuration/objects-in-force.json", func(ctx context.Context, client *configapi.Client) (any, error) {
			res, err := client.List(ctx, &configv1.ListRequest{InForce: true})
			if err != nil {
				return nil, err
			}
			objects := []json.RawMessage{}
			for _, o := range res.GetObjects() {
				objects = append(objects, o.GetManifest())
			}
			return objects, nil
		}),
		call("status/objects.json", func(ctx context.Context, client *configapi.Client) (any, error) {
			res, err := client.Status(ctx, &configv1.StatusRequest{})
			return tree(res, err)
		}),
		call("status/warnings.json", func(ctx context.Context, client *configapi.Client) (any, error) {
			res, err := client.ListWarnings(ctx, &configv1.ListWarningsRequest{})
			return tree(res, err)
		}),
		call("status/remote-clusters.json", func(ctx context.Context, client *configapi.Client) (any, error) {
			res, err := client.ListRemoteClusters(ctx, &configv1.ListRemoteClustersRequest{})
			return tree(res, err)
		}),
		printed("status/proxy-status.txt", bugreport.Text, func(ctx context.Context, out io.Writer) error {
			return proxystatus.Show(ctx, g.cfg.Mesh, proxystatus.Options{Verbose: true}, out, out)
		}),
		printed("status/proxy-status.json", bugreport.JSON, func(ctx context.Context, out io.Writer) error {
			return proxystatus.Show(ctx, g.cfg.Mesh, proxystatus.Options{Output: "json"}, out, io.Discard)
		}),
	}
}

// tree is an answer as a value that is printed as JSON.
func tree(res proto.Message, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return structured.Tree(res)
}

// opsPages are the pages that are read of each service, by their names in the archive.
var opsPages = map[string][]struct{ path, name string }{
	"": {{"/readyz", "readyz.txt"}, {"/metrics", "metrics.txt"}, {"/debug/version", "version.json"},
		{"/debug/pprof/goroutine?debug=1", "goroutines.txt"}, {"/debug/pprof/heap?debug=1", "heap.txt"}},
	controlplane.ConfigWatcher: {{"/debug/sources", "sources.json"}, {"/debug/fleet", "fleet.json"},
		{"/debug/credentials", "credentials.json"}, {"/debug/jwks", "jwks.json"}},
	controlplane.XDSServer: {{"/debug/proxies", "proxies.json"}, {"/debug/refusals", "refusals.json"}, {"/debug/class", "classes.json"},
		{"/debug/trust", "trust.json"}},
	controlplane.CA: {{"/debug/bundle", "bundle.json"}, {"/debug/issued", "issued.json"}, {caapi.StatusPath, "rotation.json"}},
}

// pagesOf makes the tasks for the pages of a service.
func pagesOf(program, name string, ops *opsclient.Client) (tasks []bugreport.Task) {
	for _, set := range []string{"", program} {
		for _, page := range opsPages[set] {
			tasks = append(tasks, bugreport.Task{Name: "control-plane/" + name + "/" + page.name, Form: formOf(page.name),
				Get: func(ctx context.Context) ([]byte, error) {
					text, more, err := ops.Text(ctx, page.path, bugreport.MaxFile)
					if more {
						err = errors.Join(err, fmt.Errorf("the page is longer than %d bytes; its end is left out", bugreport.MaxFile))
					}
					return text, err
				}})
		}
	}
	return tasks
}

// formOf is the form of a file by its name.
func formOf(file string) bugreport.Form {
	if filepath.Ext(file) == ".json" {
		return bugreport.JSON
	}
	return bugreport.Text
}

// adminPages are the pages that are read of each Envoy.
var adminPages = []struct{ path, name string }{
	{"/clusters?format=json", "clusters.json"}, {"/listeners?format=json", "listeners.json"}, {"/server_info", "server-info.json"},
	{"/certs", "certs.json"},
	{"/memory", "memory.json"}, {"/stats", "stats.txt"}, {"/init_dump", "init-dump.json"},
}

// proxyTasks read an Envoy. The dump is without keys before the report redacts it.
func proxyTasks(name string, admin func() (*envoyadmin.Client, error)) []bugreport.Task {
	tasks := []bugreport.Task{{Name: "proxies/" + name + "/config-dump.json", Form: bugreport.JSON,
		Get: func(ctx context.Context) ([]byte, error) {
			client, err := admin()
			if err != nil {
				return nil, err
			}
			dump, err := client.Dump(ctx)
			if err != nil {
				return nil, err
			}
			return dump.AllJSON()
		}}}
	for _, page := range adminPages {
		tasks = append(tasks, bugreport.Task{Name: "proxies/" + name + "/" + page.name, Form: formOf(page.name),
			Get: func(ctx context.Context) ([]byte, error) {
				client, err := admin()
				if err != nil {
					return nil, err
				}
				return client.Get(ctx, page.path)
			}})
	}
	return tasks
}
