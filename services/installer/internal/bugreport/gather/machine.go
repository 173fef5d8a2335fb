package gather

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"

	"fairlead.dev/proto/fairlead/runstate"
	"fairlead.dev/services/installer/internal/analysis"
	"fairlead.dev/services/installer/internal/bugreport"
	"fairlead.dev/services/installer/internal/envoyadmin"
	"fairlead.dev/services/installer/internal/kube"
	"fairlead.dev/services/installer/internal/local/logview"
	"fairlead.dev/services/installer/internal/local/rundir"
	"fairlead.dev/services/installer/internal/meshclient"
	"fairlead.dev/services/installer/internal/objectfile"
	"fairlead.dev/services/installer/internal/opsclient"
	"fairlead.dev/services/installer/internal/versions"
)

// maxLearnedFile bounds a file of the run directory that holds a secret.
const maxLearnedFile = 64 << 10

// machine gathers a mesh of this machine: one that runs, or that has ended on the run directory.
func (g *gatherer) machine(ctx context.Context) error {
	state, err := g.cfg.Mesh.LastState()
	if err != nil {
		return err
	}
	g.learnRunDir(state)
	_, ended := g.cfg.Mesh.State()
	g.report.Run(ctx, []bugreport.Task{task("state.json", func(context.Context) (any, error) { return state, nil })})
	var tasks []bugreport.Task
	if ended != nil {
		g.report.Missing("status, debug pages and dumps", ended)
		tasks = append(tasks, g.meshFiles(state)...)
	} else {
		tasks = append(tasks, g.meshTasks()...)
		tasks = append(tasks, printed("versions/components.txt", bugreport.Text, func(ctx context.Context, out io.Writer) error {
			return versions.Print(out, versions.OfMachine(ctx, g.cfg.Mesh, g.cfg.Programs, ""))
		}))
		tasks = append(tasks, g.meshFiles(state)...)
		tasks = append(tasks, g.analysis(analysis.Options{Files: state.ConfigPaths}))
		for _, s := range state.Services {
			tasks = append(tasks, pagesOf(s.Program, s.Name, opsclient.New(s.OpsAddress, state.AdminTokenFile))...)
		}
	}
	for _, p := range rundir.Processes(state) {
		if p.Pod != nil && !g.takes(p) {
			continue
		}
		folder := "control-plane/"
		if p.Pod != nil {
			folder = "proxies/"
		}
		tasks = append(tasks, g.logFile(folder+p.Name+"/log.txt", p))
	}
	for i := range state.Pods {
		pod := &state.Pods[i]
		if ended != nil || pod.Agent == nil || pod.Kind == meshclient.Proxyless ||
			!g.cfg.Selection.Takes(reportPod(pod), meshclient.ProxyContainer) {
			continue
		}
		tasks = append(tasks, proxyTasks(pod.ID(), func() (*envoyadmin.Client, error) { return envoyadmin.New(pod.Agent.AdminSocket), nil })...)
	}
	g.cfg.Progress("reading " + state.RunDir)
	g.report.Run(ctx, tasks)
	return nil
}

func reportPod(p *runstate.Pod) bugreport.Pod {
	return bugreport.Pod{Namespace: p.Namespace, Deployment: p.Workload, Name: p.Name, Labels: p.Labels}
}

func (g *gatherer) takes(p rundir.MeshProcess) bool {
	_, container, _ := strings.Cut(p.Name, "/")
	return g.cfg.Selection.Takes(reportPod(p.Pod), container)
}

// learnRunDir has the report look for the tokens of the run directory: they are all that it holds besides keys, which
// have a form of their own.
func (g *gatherer) learnRunDir(state *runstate.State) {
	layout := rundir.Layout{Dir: state.RunDir}
	_ = filepath.WalkDir(filepath.Dir(layout.Token("x")), func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			if text, err := readSmall(path); err == nil {
				g.report.Redactor.Learn(string(text))
			}
		}
		return nil
	})
}

func readSmall(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxLearnedFile))
}

// meshFiles add the files of objects, document by document, so that a Secret in them has no values.
func (g *gatherer) meshFiles(state *runstate.State) (tasks []bugreport.Task) {
	paths, err := objectfile.List(state.ConfigPaths)
	if err != nil {
		g.report.Missing("configuration/files", err)
	}
	for _, path := range paths {
		tasks = append(tasks, bugreport.Task{Name: "configuration/files/" + filepath.Base(path), Get: func(context.Context) ([]byte, error) {
			text, err := objectfile.ReadFileOrPipe(path)
			var out []byte
			for part := range strings.SplitSeq(string(text), "\n---") {
				out = append(out, g.report.Redactor.YAML([]byte(part))...)
				out = append(out, "---\n"...)
			}
			return out, err
		}})
	}
	return tasks
}

// logFile reads a log of the run directory, as far as its lines are of the time that is wanted.
func (g *gatherer) logFile(name string, p rundir.MeshProcess) bugreport.Task {
	return bugreport.Task{Name: name, Get: func(ctx context.Context) ([]byte, error) {
		if _, err := os.Stat(p.Log); err != nil {
			return nil, err
		}
		r, err := logview.Open([]logview.Source{{Name: p.Name, Path: p.Log}}, logview.Options{Tail: -1, Since: g.cfg.Since, Level: logview.Debug})
		if err != nil {
			return nil, err
		}
		defer r.Close()
		var out []byte
		err = r.Read(func(l logview.Line) error {
			if !g.cfg.Until.IsZero() && !l.At.IsZero() && l.At.After(g.cfg.Until) {
				return nil
			}
			out = append(append(out, l.Text...), '\n')
			if len(out) > 2*bugreport.MaxFile { // the end of a long log stays
				out = append(out[:0], out[len(out)-bugreport.MaxFile:]...)
			}
			return ctx.Err()
		})
		return out, err
	}}
}

// analysis runs `fairlead analyze`.
func (g *gatherer) analysis(o analysis.Options) bugreport.Task {
	o.Timeout = kube.RequestTimeout
	return bugreport.Task{Name: "status/analysis.json", Form: bugreport.JSON, Get: func(ctx context.Context) ([]byte, error) {
		text, err := g.cfg.Analysis.JSON(ctx, o)
		if json.Valid(text) {
			return text, nil // findings have an exit code of their own
		}
		return text, err
	}}
}
