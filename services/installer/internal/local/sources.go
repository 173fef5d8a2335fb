package local

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	configv1 "fairlead.dev/proto/fairlead/config/v1"

	"fairlead.dev/services/installer/internal/local/plan"
	"fairlead.dev/services/installer/internal/objectfile"
	"fairlead.dev/services/installer/internal/opsclient"
)

// checkFiles sends the user's files to config-watcher as a dry run, so that a mistake in them ends Run before Pods
// start.
func (n *Node) checkFiles(ctx context.Context) error {
	files, err := objectfile.List(n.cfg.ConfigPaths)
	if err != nil {
		return &RefusedError{Err: err}
	}
	var docs []*configv1.Document
	for _, f := range files {
		content, err := objectfile.ReadFile(f)
		if err != nil {
			return err
		}
		if !objectfile.Blank(content) { // of a directory: `up` has warned of it
			docs = append(docs, &configv1.Document{Name: f, Content: content})
		}
	}
	if len(docs) == 0 {
		return nil
	}
	return n.retryUntilAccepted(ctx, func(ctx context.Context) error {
		_, err := n.configAPI.Apply(ctx, &configv1.ApplyRequest{Documents: docs, DryRun: true, SkipUnread: true}, grpc.WaitForReady(true))
		return err
	})
}

// sourcesPeriod is how often watchSources asks; a person who has just saved a file waits for the answer.
const sourcesPeriod = 500 * time.Millisecond

// watchSources prints what config-watcher, which follows the user's files, reports about them: refused objects, whose
// last good version stays in force, warnings, objects of kinds that no service reads, and files that are gone, empty or
// cut off.
func (n *Node) watchSources(ctx context.Context) error {
	var known, warned []string
	staying := map[string]stayingFile{}
	for n.wait(ctx, sourcesPeriod) {
		answer, err := n.sources(ctx)
		if err != nil {
			n.cfg.Log.Debug("sources cannot be read", "error", err)
			continue
		}
		now, warnings := answer.problems(), slices.Concat(answer.Warnings, n.unread(answer))
		staying = n.reportStayingFiles(staying, answer.staying())
		for _, w := range warnings {
			if !slices.Contains(warned, w) {
				n.cfg.Console.Line("warning: " + w)
			}
		}
		warned = warnings
		for _, p := range now {
			if !slices.Contains(known, p) {
				n.cfg.Console.Line("refused, the last good version stays: " + p)
			}
		}
		if len(known) > 0 && len(now) == 0 {
			n.cfg.Console.Line("nothing is refused any more")
		}
		known = now
	}
	return nil
}

// sourcesAnswer holds fields of config-watcher's /debug/sources.
type sourcesAnswer struct {
	Sources []struct {
		Problems []string      `json:"problems"`
		Unread   []string      `json:"unread_objects"`
		Staying  []stayingFile `json:"staying"`
	} `json:"sources"`
	Warnings []string `json:"warnings"`
}

// stayingFile is a file that is gone, empty or cut off while its objects stay in force.
type stayingFile struct {
	File    string    `json:"file"`
	Objects int       `json:"objects"`
	Until   time.Time `json:"until"`
	Text    string    `json:"text"`
}

// sources asks config-watcher about its sources.
func (n *Node) sources(ctx context.Context) (answer sourcesAnswer, err error) {
	err = n.debugPage(ctx, n.cfg.Plan.ConfigWatcher(), "/debug/sources", &answer)
	return answer, err
}

func (a sourcesAnswer) problems() (list []string) {
	for _, s := range a.Sources {
		list = append(list, s.Problems...)
	}
	return list
}

func (a sourcesAnswer) staying() map[string]stayingFile {
	files := map[string]stayingFile{}
	for _, s := range a.Sources {
		for _, f := range s.Staying {
			files[f.File] = f
		}
	}
	return files
}

// unread lists the objects whose kinds no service reads. Deployments that were in the files at the start are run; one
// that came later is listed.
func (n *Node) unread(a sourcesAnswer) (list []string) {
	for _, s := range a.Sources {
		for _, text := range s.Unread {
			name, isDeployment := deploymentOf(text)
			switch {
			case !isDeployment:
				list = append(list, text)
			case !slices.ContainsFunc(n.cfg.Plan.Pods, func(p *plan.Pod) bool { return p.Namespace+"/"+p.Workload == name }):
				list = append(list, fmt.Sprintf("Deployment %s is not run: Deployments are read at the start; end `fairlead up` and start it again",
					name))
			}
		}
	}
	return list
}

// deploymentOf finds the Deployment that a line about an unread object is about.
func deploymentOf(text string) (name string, ok bool) {
	object, _, ok := strings.Cut(text, ": kind: apps/v1 Deployment: ")
	if !ok {
		return "", false
	}
	_, name, ok = strings.Cut(object, ": Deployment ")
	if !strings.Contains(name, "/") {
		name = objectfile.DefaultNamespace + "/" + name
	}
	return name, ok
}

// reportStayingFiles prints which files have begun to be gone, empty or cut off since before, and how that ended for
// the others.
func (n *Node) reportStayingFiles(before, now map[string]stayingFile) map[string]stayingFile {
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if before[name].Text != now[name].Text {
			n.cfg.Console.Line("warning: " + now[name].Text)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		switch f := before[name]; {
		case now[name].File != "":
		case n.cfg.Clock.Now().Before(f.Until):
			n.cfg.Console.Line(name + " is whole again: the objects are those that it says")
		default:
			n.cfg.Console.Line(fmt.Sprintf("%s did not become whole again: its %d last objects are removed", name, f.Objects))
		}
	}
	return now
}

// debugPage decodes a /debug/ page of a service into out, with the administrator's token of the run directory.
func (n *Node) debugPage(ctx context.Context, s *plan.Service, path string, out any) error {
	if err := opsclient.Get(ctx, s.Ops.String(), n.cfg.Layout.AdminToken(), path, nil, out); err != nil {
		return fmt.Errorf("%s%s: %w", s.Name, path, err)
	}
	return nil
}
