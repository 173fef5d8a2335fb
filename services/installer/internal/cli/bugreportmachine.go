package cli

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"

	"fairlead.dev/proto/fairlead/runstate"

	"fairlead.dev/services/installer/internal/bugreport"
	"fairlead.dev/services/installer/internal/envoyadmin"
	"fairlead.dev/services/installer/internal/local/logview"
	"fairlead.dev/services/installer/internal/local/programs"
	"fairlead.dev/services/installer/internal/local/rundir"
	"fairlead.dev/services/installer/internal/objectfile"
	"fairlead.dev/services/installer/internal/opsclient"
)

// maxLearnedFile bounds a file of the run directory that holds a secret.
const maxLearnedFile = 64 << 10

// machine gathers a mesh of this machine: one that runs, or that has ended on the run directory.
func (g *gatherer) machine(ctx context.Context) error {
	state, err := g.t.lastState()
	if err != nil {
		return err
	}
	g.learnRunDir(state)
	_, ended := g.t.state()
	g.report.Run(ctx, []bugreport.Task{task("state.json", func(context.Context) (any, error) { return state, nil })})
	var tasks []bugreport.Task
	if ended != nil {
		g.report.Missing("status, debug pages and dumps", ended)
		tasks = append(tasks, g.meshFiles(state)...)
	} else {
		tasks = append(tasks, g.meshTasks()...)
		tasks = append(tasks, printed("versions/components.txt", bugreport.Text, func(ctx context.Context, out io.Writer) error {
			find := programs.Finder{Executable: g.env.Executable, BinDir: g.f.binDir, Getenv: g.env.Getenv}
			return printVersions(out, versions(ctx, g.t, find, ""))
		}))
		tasks = append(tasks, g.meshFiles(state)...)
		tasks = append(tasks, g.analysis(analyzeFlags{files: state.ConfigPaths}))
		for _, s := range state.Services {
			tasks = append(tasks, pagesOf(s.Program, s.Name, opsclient.New(s.OpsAddress, state.AdminTokenFile))...)
		}
	}
	for _, p := range processes(state) {
		if p.pod != nil && !g.takes(p) {
			continue
		}
		folder := "control-plane/"
		if p.pod != nil {
			folder = "proxies/"
		}
		tasks = append(tasks, g.logFile(folder+p.name+"/log.txt", p))
	}
	for i := range state.Pods {
		pod := &state.Pods[i]
		if ended != nil || pod.Agent == nil || pod.Kind == proxyless || !g.f.selection.Takes(reportPod(pod), proxyContainer) {
			continue
		}
		tasks = append(tasks, proxyTasks(pod.ID(), func() (*envoyadmin.Client, error) { return envoyadmin.New(pod.Agent.AdminSocket), nil })...)
	}
	g.say("reading " + state.RunDir)
	g.report.Run(ctx, tasks)
	return nil
}

func reportPod(p *runstate.Pod) bugreport.Pod {
	return bugreport.Pod{Namespace: p.Namespace, Deployment: p.Workload, Name: p.Name, Labels: p.Labels}
}

func (g *gatherer) takes(p meshProcess) bool {
	_, container, _ := strings.Cut(p.name, "/")
	return g.f.selection.Takes(reportPod(p.pod), container)
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
			text, err := readFileOrPipe(path)
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
func (g *gatherer) logFile(name string, p meshProcess) bugreport.Task {
	return bugreport.Task{Name: name, Get: func(ctx context.Context) ([]byte, error) {
		if _, err := os.Stat(p.log); err != nil {
			return nil, err
		}
		r, err := logview.Open([]logview.Source{{Name: p.name, Path: p.log}}, logview.Options{Tail: -1, Since: g.f.since, Level: logview.Debug})
		if err != nil {
			return nil, err
		}
		defer r.Close()
		var out []byte
		err = r.Read(func(l logview.Line) error {
			if !g.f.until.IsZero() && !l.At.IsZero() && l.At.After(g.f.until) {
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
func (g *gatherer) analysis(f analyzeFlags) bugreport.Task {
	f.out, f.threshold, f.show, f.recursive, f.all, f.binDir, f.timeout = newFormat("json"), "error", "info", true, true, g.f.binDir,
		requestTimeout
	f.out.value = "json"
	return printed("status/analysis.json", bugreport.JSON, func(ctx context.Context, out io.Writer) error {
		var kept strings.Builder
		err := analyze(ctx, g.env, f, io.MultiWriter(out, &kept), io.Discard)
		if json.Valid([]byte(kept.String())) {
			return nil // findings have an exit code of their own
		}
		return err
	})
}
