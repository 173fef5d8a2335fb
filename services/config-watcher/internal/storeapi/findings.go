package storeapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"slices"

	"fairlead.dev/pkg/lists"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/access"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source/memory"
)

// Findings are the findings about the objects of the mesh; background.Analyzer implements it.
type Findings interface {
	Wait(ctx context.Context) error
	Of(object.Key) []finding.Finding
	All() []finding.Finding
	About(host string) []finding.Finding
	Mark() uint64
	Since(mark uint64, but []object.Key) []finding.Finding
	DryRun(ctx context.Context, changes []normalise.Change) (own, others []finding.Finding, err error)
}

// maxBroken bounds the findings about other objects in an answer.
const maxBroken = 100

func warning(f finding.Finding) *configv1.Warning {
	return &configv1.Warning{
		Code: string(f.Code), Severity: string(f.Severity), Source: f.Source, Location: f.Location, Field: f.Field, Message: f.Description(),
		Text: f.Error(),
		Object: &configv1.ObjectKey{ApiVersion: kinds.Canonical(f.Key.Group, f.Key.Kind), Kind: f.Key.Kind, Namespace: f.Key.Namespace,
			Name: f.Key.Name},
	}
}

func warnings(list []finding.Finding, most int) []*configv1.Warning {
	return lists.Map(list[:min(len(list), most)], warning)
}

// broken lists the findings since a mark about objects that the caller may see, except the written ones. Call it after
// the write is in a revision.
func (s *Server) broken(ctx context.Context, mark uint64, written []object.Key) []*configv1.Warning {
	if err := s.findings.Wait(ctx); err != nil {
		return nil
	}
	return warnings(s.shownTo(ctx, s.findings.Since(mark, written)), maxBroken)
}

// shownTo returns the findings about objects that the caller may read.
func (s *Server) shownTo(ctx context.Context, list []finding.Finding) []finding.Finding {
	identity, err := callerOf(ctx)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(list), func(f finding.Finding) bool { return s.access.May(identity, access.Get, f.Key) != nil })
}

// addFindings adds the findings about the written objects to their results, and new findings about others to the
// answer.
func (s *Server) addFindings(ctx context.Context, out *configv1.ApplyResponse, results []memory.Result, keys []object.Key, mark uint64,
	dryRun bool) {
	own := func(k object.Key) []finding.Finding { return s.findings.Of(k) }
	if dryRun {
		changes := lists.Map(results, func(r memory.Result) normalise.Change {
			return normalise.Change{Key: r.Item.Key, Object: r.Item.Object()}
		})
		found, others, err := s.findings.DryRun(ctx, changes)
		if err != nil {
			return
		}
		out.Broken = warnings(s.shownTo(ctx, others), maxBroken)
		own = func(k object.Key) []finding.Finding {
			return slices.DeleteFunc(slices.Clone(found), func(f finding.Finding) bool { return f.Key != k })
		}
	} else {
		out.Broken = s.broken(ctx, mark, keys)
	}
	for i, r := range results {
		for _, f := range own(r.Item.Key) {
			out.Results[i].Warnings = append(out.Results[i].Warnings, f.Error())
		}
	}
}

// ListWarnings implements ConfigStoreService.
func (s *Server) ListWarnings(ctx context.Context, req *configv1.ListWarningsRequest) (*configv1.ListWarningsResponse, error) {
	s.loaded(ctx)
	readable, err := s.readable(ctx, access.List, req.Kind, req.Namespace)
	if err != nil {
		return nil, err
	}
	var list []finding.Finding
	if len(req.Hosts)+len(req.Objects) == 0 {
		list = s.findings.All()
	}
	for _, host := range req.Hosts[:min(len(req.Hosts), maxAsked)] {
		list = append(list, s.findings.About(host)...)
	}
	for _, k := range req.Objects[:min(len(req.Objects), maxAsked)] {
		if found, err := key(k); err == nil {
			list = append(list, s.findings.Of(found)...)
		}
	}
	slices.SortFunc(list, finding.Finding.Compare)
	out := &configv1.ListWarningsResponse{}
	for _, f := range slices.Compact(list) {
		if readable(f.Key) && kinds.Matches(req.Kind, f.Key) && f.Key.Namespace == cmp.Or(req.Namespace, f.Key.Namespace) &&
			f.Key.Name == cmp.Or(req.Name, f.Key.Name) {
			out.Warnings = append(out.Warnings, warning(f))
		}
	}
	return out, nil
}

// maxAsked bounds the hosts, and the objects, of one call.
const maxAsked = 1000

// messages is the field of status with findings, named as in Istio. It is not stored: each read computes it.
const messages = "validationMessages"

// withFindings writes the findings about an object into its status.
func withFindings(manifest []byte, list []finding.Finding) []byte {
	if len(list) == 0 && !bytes.Contains(manifest, []byte(`"`+messages+`"`)) {
		return manifest
	}
	var tree map[string]any
	if err := json.Unmarshal(manifest, &tree); err != nil {
		return manifest
	}
	withoutMessages(tree)
	if len(list) > 0 {
		st, _ := tree["status"].(map[string]any)
		if st == nil {
			st = map[string]any{}
			tree["status"] = st
		}
		var out []any
		for _, f := range list {
			out = append(out, map[string]any{
				"type": map[string]any{"name": f.Code, "code": f.Code}, "level": "WARNING", "field": f.Field, "message": f.Description(),
				"documentationUrl": f.Code.Reference(),
			})
		}
		st[messages] = out
	}
	text, err := json.Marshal(tree)
	if err != nil {
		return manifest
	}
	return text
}

// withoutMessages removes findings from the status of an object that a client sends back.
func withoutMessages(tree map[string]any) {
	st, _ := tree["status"].(map[string]any)
	if _, has := st[messages]; !has {
		return
	}
	delete(st, messages)
	if len(st) == 0 {
		delete(tree, "status")
	}
}
