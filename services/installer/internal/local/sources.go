package local

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"google.golang.org/grpc"

	configv1 "fairlead.dev/proto/fairlead/config/v1"

	"fairlead.dev/pkg/rpc"

	"fairlead.dev/services/installer/internal/mesh"
	"fairlead.dev/services/installer/internal/plan"
)

// checkFiles has config-watcher judge the user's files before anything depends on them, so that a mesh does not come up half.
func (n *Node) checkFiles(ctx context.Context) error {
	files, err := mesh.Files(n.cfg.ConfigPaths)
	if err != nil {
		return &RefusedError{Err: err}
	}
	var docs []*configv1.Document
	for _, f := range files {
		content, err := mesh.ReadFile(f)
		if err != nil {
			return err
		}
		docs = append(docs, &configv1.Document{Name: f, Content: content})
	}
	if len(docs) == 0 {
		return nil
	}
	return n.untilTaken(ctx, func(ctx context.Context) error {
		_, err := n.store.Apply(ctx, &configv1.ApplyRequest{Documents: docs, DryRun: true}, grpc.WaitForReady(true))
		return err
	})
}

// sourcesPeriod is how often config-watcher is asked about the user's files. A person who has just saved one is waiting.
const sourcesPeriod = 500 * time.Millisecond

// watchSources tells the person what config-watcher refuses of the files, which are followed live: the last good version of a refused object stays
// in use. It also tells what is accepted and has no effect.
func (n *Node) watchSources(ctx context.Context) error {
	var known, warned []string
	for n.wait(ctx, sourcesPeriod) {
		now, warnings, err := n.sourceProblems(ctx)
		if err != nil {
			n.cfg.Log.Debug("sources are not known", "error", err)
			continue
		}
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

// sourceProblems asks config-watcher what is wrong with the objects that it reads, and what has no effect in them.
func (n *Node) sourceProblems(ctx context.Context) (problems, warnings []string, err error) {
	var answer struct {
		Sources []struct {
			Problems []string `json:"problems"`
		} `json:"sources"`
		Warnings []string `json:"warnings"`
	}
	if err := n.debug(ctx, n.cfg.Plan.ConfigWatcher(), "/debug/sources", &answer); err != nil {
		return nil, nil, err
	}
	for _, s := range answer.Sources {
		problems = append(problems, s.Problems...)
	}
	return problems, answer.Warnings, nil
}

// maxDebug bounds what is read of a debug page.
const maxDebug = 8 << 20

// debug reads a debug page of a service, which answers JSON to administrators.
func (n *Node) debug(ctx context.Context, s *plan.Service, path string, out any) error {
	token, err := rpc.ReadToken(n.cfg.Layout.AdminToken())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.Ops.String()+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s%s: %s", s.Name, path, res.Status)
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxDebug)).Decode(out); err != nil {
		return fmt.Errorf("%s%s: %w", s.Name, path, err)
	}
	return nil
}
