package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/version"
	configv1 "fairlead.dev/proto/fairlead/config/v1"

	"fairlead.dev/services/installer/internal/bugreport"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/controlplane"
	"fairlead.dev/services/installer/internal/envoyadmin"
	"fairlead.dev/services/installer/internal/opsclient"
)

// systemNamespaces are left out of a report unless --exclude says otherwise, as in istioctl.
const systemNamespaces = "kube-node-lease,kube-public,kube-system,local-path-storage"

// reportFlags are the flags of `fairlead bug-report`. The fields with names in JSON may come from --filename.
type reportFlags struct {
	Include        []string `json:"include"`
	Exclude        []string `json:"exclude"`
	Duration       string   `json:"duration"`
	StartTime      string   `json:"startTime"`
	EndTime        string   `json:"endTime"`
	Timeout        string   `json:"timeout"`
	Context        string   `json:"context"`
	KubeConfigPath string   `json:"kubeConfigPath"`
	IstioNamespace string   `json:"istioNamespace"`
	Dir            string   `json:"dir"`

	file    string
	secrets bool
	binDir  string

	// since and until bound the times of log lines; zero means no bound.
	since, until time.Time
	selection    bugreport.Selection
}

func newBugReport(env Env, t *target) *cobra.Command {
	var f reportFlags
	cmd := &cobra.Command{
		Use:   "bug-report",
		Short: "Gather versions, configuration, status, logs and dumps of a mesh in one archive, without secrets",
		Long: `Gather in one .tar.gz what is known of a mesh: versions; IstioOperators, installations, mesh configuration and Istio's objects; the status of objects and
proxies, and the findings of analyze; logs, debug pages and metrics of the control plane; logs and dumps of the proxies that --include and --exclude
choose. missing.txt in it says what could not be read, and why.

Private keys, tokens, Authorization headers, passwords in environments and the data of Secrets are replaced by [redacted], base64 of them too. Look
through the archive before you pass it on all the same: what applications log is theirs.

--include and --exclude are istioctl's: NAMESPACE,.../DEPLOYMENT,.../POD,.../LABEL=VALUE,.../ANNOTATION=VALUE,.../CONTAINER,..., of which the later
parts may be left out; * stands for any text. Without --include all Pods with a proxy are taken. --filename names a file of YAML with include, exclude,
duration, startTime, endTime, timeout, context, kubeConfigPath, istioNamespace and dir; flags go before it.

An archive has at most 512 MiB before compression, and 16 MiB of one file. Exit code 0 also if something is missing; 1 if no archive could be written.`,
		Example: `  fairlead bug-report
  fairlead bug-report --include "shop/reviews*" --duration 30m
  fairlead bug-report --start-time 2026-03-01T10:00:00Z --end-time 2026-03-01T11:00:00Z --dir /tmp`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.complete(cmd, t, time.Now()); err != nil {
				return err
			}
			return bugReport(cmd.Context(), env, t, f, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	fs.StringArrayVar(&f.Include, "include", nil, "Pods to take; may be repeated")
	fs.StringArrayVar(&f.Exclude, "exclude", []string{systemNamespaces}, "Pods to leave out; may be repeated")
	fs.StringVar(&f.Duration, "duration", "", "only log lines of this time before --end-time, as 30m (default: all)")
	fs.StringVar(&f.StartTime, "start-time", "", "only log lines from this time on, as 2026-03-01T10:00:00Z")
	fs.StringVar(&f.EndTime, "end-time", "", "only log lines up to this time (default: now)")
	fs.StringVar(&f.Timeout, "timeout", "30m", "how long gathering may take; what is not read by then is missing")
	fs.StringVar(&f.Dir, "dir", ".", "directory for the archive, fairlead-bug-report-TIME.tar.gz")
	fs.StringVarP(&f.file, "filename", "f", "", "file of YAML with settings")
	fs.BoolVar(&f.secrets, "full-secrets", false, "istioctl's flag; a report never has secrets, so true is refused")
	fs.StringVar(&f.binDir, "bin-dir", "", "directory of the programs (default: that of fairlead)")
	t.registerServers(fs)
	t.registerCluster(cmd)
	_ = cmd.MarkFlagDirname("dir")
	return cmd
}

// complete takes what the file says where there is no flag, and parses times and selections.
func (f *reportFlags) complete(cmd *cobra.Command, t *target, now time.Time) error {
	if f.secrets {
		return usage(errors.New("--full-secrets: a report never has secrets; leave it out"))
	}
	if f.file != "" {
		text, err := readAnyFile(f.file)
		if err != nil {
			return usage(err)
		}
		set := *f
		if err := yaml.UnmarshalStrict(text, &set); err != nil {
			return refused(fmt.Errorf("%s: %w; fields are those of `fairlead bug-report --help`", f.file, err))
		}
		fs := cmd.Flags()
		for flag, field := range map[string]func(){
			"include": func() { f.Include = set.Include }, "exclude": func() { f.Exclude = set.Exclude },
			"duration":   func() { f.Duration = set.Duration },
			"start-time": func() { f.StartTime = set.StartTime }, "end-time": func() { f.EndTime = set.EndTime },
			"timeout": func() { f.Timeout = set.Timeout },
			"dir":     func() { f.Dir = set.Dir },
		} {
			if !fs.Changed(flag) {
				field()
			}
		}
		for flag, value := range map[string]string{"context": set.Context, "kubeconfig": set.KubeConfigPath,
			"istioNamespace": set.IstioNamespace} {
			if value != "" && !fs.Changed(flag) {
				if err := fs.Set(flag, value); err != nil {
					return usage(err)
				}
			}
		}
	}
	for _, p := range []struct {
		flag, text string
		into       *time.Time
	}{{"start-time", f.StartTime, &f.since}, {"end-time", f.EndTime, &f.until}} {
		if p.text == "" {
			continue
		}
		at, err := time.Parse(time.RFC3339, p.text)
		if err != nil {
			return usage(fmt.Errorf("--%s %q is no time; write it as 2026-03-01T10:00:00Z", p.flag, p.text))
		}
		*p.into = at
	}
	if f.Duration != "" {
		d, err := time.ParseDuration(f.Duration)
		end := f.until
		if end.IsZero() {
			end = now
		}
		switch {
		case err != nil || d <= 0:
			return usage(fmt.Errorf("--duration %q is no time; write it as 30m", f.Duration))
		case !f.since.IsZero():
			return usage(errors.New("--duration and --start-time exclude each other"))
		}
		f.since = end.Add(-d)
	}
	if !f.since.IsZero() && !f.until.IsZero() && !f.since.Before(f.until) {
		return usage(fmt.Errorf("--end-time %s is not after %s", f.until.Format(time.RFC3339), f.since.Format(time.RFC3339)))
	}
	if d, err := time.ParseDuration(f.Timeout); err != nil || d <= 0 {
		return usage(fmt.Errorf("--timeout %q is no time; write it as 5m", f.Timeout))
	}
	var err error
	if f.selection, err = bugreport.ParseSelection(f.Include, f.Exclude); err != nil {
		return usage(err)
	}
	return nil
}

func bugReport(ctx context.Context, env Env, t *target, f reportFlags, out, diagnostics io.Writer) error {
	timeout, err := time.ParseDuration(f.Timeout)
	if err != nil {
		return usage(err)
	}
	whole, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	mesh, noMesh := t.controlPlane(whole)
	onCluster := mesh != nil || errors.Is(noMesh, controlplane.ErrNone)
	if noMesh != nil && !onCluster {
		return noMesh
	}
	if !onCluster {
		if _, err := t.lastState(); err != nil { // before anything is written
			return err
		}
	}
	now := time.Now()
	report, err := bugreport.New(filepath.Join(f.Dir, "fairlead-bug-report-"+now.UTC().Format("20060102T150405Z")+".tar.gz"), now)
	if err != nil {
		return err
	}
	g := &gatherer{env: env, t: t, f: f, report: report, mesh: mesh, diagnostics: diagnostics}
	if onCluster {
		if noMesh != nil {
			report.Missing("control-plane", noMesh)
		}
		err = g.cluster(whole)
	} else {
		err = g.machine(whole)
	}
	if err == nil && ctx.Err() != nil {
		err = errors.New("it was interrupted; no archive was written")
	}
	if err != nil {
		report.Discard()
		return err
	}
	gaps := report.Gaps()
	path, size, err := report.Close()
	if err != nil {
		return err
	}
	if gaps > 0 {
		fmt.Fprintf(diagnostics, "%d things could not be read; missing.txt in the archive says which, and why\n", gaps)
	}
	_, err = fmt.Fprintf(out, "%s (%.1f MB)\n", path, float64(size)/1e6)
	return err
}

// gatherer makes the tasks of a report.
type gatherer struct {
	env         Env
	t           *target
	f           reportFlags
	report      *bugreport.Report
	mesh        *controlplane.Mesh
	diagnostics io.Writer
}

func (g *gatherer) say(text string) { fmt.Fprintln(g.diagnostics, text) }

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
			err = g.t.call(ctx, func(ctx context.Context, client *configapi.Client) (err error) {
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
			if err != nil {
				return nil, err
			}
			return messageTree(res)
		}),
		call("status/warnings.json", func(ctx context.Context, client *configapi.Client) (any, error) {
			res, err := client.ListWarnings(ctx, &configv1.ListWarningsRequest{})
			if err != nil {
				return nil, err
			}
			return messageTree(res)
		}),
		call("status/remote-clusters.json", func(ctx context.Context, client *configapi.Client) (any, error) {
			res, err := client.ListRemoteClusters(ctx, &configv1.ListRemoteClustersRequest{})
			if err != nil {
				return nil, err
			}
			return messageTree(res)
		}),
		printed("status/proxy-status.txt", bugreport.Text, func(ctx context.Context, out io.Writer) error {
			f := statusFlags{verbose: true, out: newFormat()}
			return proxyStatus(ctx, g.t, "", f, out, out)
		}),
		printed("status/proxy-status.json", bugreport.JSON, func(ctx context.Context, out io.Writer) error {
			f := statusFlags{out: newFormat("json")}
			f.out.value = "json"
			return proxyStatus(ctx, g.t, "", f, out, io.Discard)
		}),
	}
}

// opsPages are the pages that are read of each service, by their names in the archive.
var opsPages = map[string][]struct{ path, name string }{
	"": {{"/readyz", "readyz.txt"}, {"/metrics", "metrics.txt"}, {"/debug/version", "version.json"},
		{"/debug/pprof/goroutine?debug=1", "goroutines.txt"}, {"/debug/pprof/heap?debug=1", "heap.txt"}},
	controlplane.ConfigWatcher: {{"/debug/sources", "sources.json"}, {"/debug/fleet", "fleet.json"},
		{"/debug/credentials", "credentials.json"}},
	controlplane.XDSServer: {{"/debug/proxies", "proxies.json"}, {"/debug/refusals", "refusals.json"}, {"/debug/class", "classes.json"}},
	controlplane.CA:        {{"/debug/bundle", "bundle.json"}, {"/debug/issued", "issued.json"}},
}

// pagesOf makes the tasks for the pages of a service.
func pagesOf(program, name string, ops *opsclient.Client) (tasks []bugreport.Task) {
	for _, set := range []string{"", program} {
		for _, page := range opsPages[set] {
			form := bugreport.Text
			if filepath.Ext(page.name) == ".json" {
				form = bugreport.JSON
			}
			tasks = append(tasks, bugreport.Task{Name: "control-plane/" + name + "/" + page.name, Form: form,
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
		form := bugreport.JSON
		if filepath.Ext(page.name) == ".txt" {
			form = bugreport.Text
		}
		tasks = append(tasks, bugreport.Task{Name: "proxies/" + name + "/" + page.name, Form: form,
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
