package gather

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/analysis"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/kinds"
	"fairlead.dev/services/installer/internal/kube"
)

// findings adds the findings of config-watcher and of an analysis about the objects described.
func (g *gatherer) findings(ctx context.Context) {
	seen := map[string]bool{}
	for _, f := range g.d.Findings {
		seen[f.Code+f.Object] = true
	}
	add := func(f Finding, all bool) {
		if key := f.Code + f.Object + f.Field; (all || g.related[f.Object] != nil) && !seen[key] && !seen[f.Code+f.Object] {
			seen[key] = true
			g.d.Findings = append(g.d.Findings, f)
		}
	}
	req := &configv1.ListWarningsRequest{Objects: slices.Collect(maps.Values(g.related))}
	for _, s := range g.d.Services {
		req.Hosts = append(req.Hosts, s.Host)
	}
	err := g.cfg.Mesh.Call(ctx, func(ctx context.Context, client *configapi.Client) error {
		res, err := client.ListWarnings(ctx, req)
		if err != nil {
			return err
		}
		for _, w := range res.GetWarnings() {
			add(Finding{w.GetSeverity(), w.GetCode(), kinds.Text(w.GetObject()), w.GetField(), w.GetMessage()}, true)
		}
		status, err := client.Status(ctx, &configv1.StatusRequest{Namespace: g.d.Namespace})
		if err != nil {
			return err
		}
		for _, f := range status.GetFindings() {
			kind, _, _ := strings.Cut(f.GetObject(), " ")
			if f.GetType() == configv1.FindingType_FINDING_TYPE_REFUSED &&
				(g.related[f.GetObject()] != nil || slices.Contains(describedKinds, kind)) {
				add(Finding{"error", "ObjectRefused", f.GetObject(), "", f.GetMessage()}, true)
			}
		}
		return nil
	})
	if err != nil {
		g.unknown("findings of config-watcher", err)
	}
	if err := g.analysis(ctx, add); err != nil {
		g.unknown("findings of `fairlead analyze`", err)
	}
	levels := []string{"error", "warning", "info"}
	slices.SortStableFunc(g.d.Findings, func(a, b Finding) int { return slices.Index(levels, a.Level) - slices.Index(levels, b.Level) })
}

// analysis runs `fairlead analyze` on what the mesh is made from.
func (g *gatherer) analysis(ctx context.Context, add func(Finding, bool)) error {
	o := analysis.Options{Timeout: kube.RequestTimeout}
	switch {
	case g.controlPlane != nil:
		o.Kube, o.Kubeconfig, o.Context = true, g.cfg.Mesh.Cluster.Kubeconfig, g.cfg.Mesh.Cluster.Context
		if g.cfg.Mesh.Cluster.As != "" {
			return errors.New("it knows no --as")
		}
	case g.state != nil && len(g.state.ConfigPaths) > 0:
		o.Files = g.state.ConfigPaths
		// Here every Pod has a proxy, whatever labels ask for.
		for _, code := range []string{"NamespaceNotInjected", "NamespaceWithoutProxies", "PodWithoutSidecar", "ImageAutoOfTemplate",
			"ImageAutoOfPod"} {
			o.Suppress = append(o.Suppress, code+"=*")
		}
	default:
		return nil
	}
	text, failed := g.cfg.Analysis.JSON(ctx, o)
	var records []struct{ Code, Name, Level, Origin, Field, Message, Remedy string }
	if err := json.Unmarshal(text, &records); err != nil {
		return errors.Join(failed, err)
	}
	for _, r := range records {
		message := r.Message
		if r.Remedy != "" {
			message += "; " + r.Remedy
		}
		add(Finding{strings.ToLower(r.Level), r.Name, r.Origin, r.Field, message}, false)
	}
	return nil
}
