package harness

import (
	"context"
	"fmt"
	"os"

	"fairlead.dev/tests/internal/wait"
)

// Evidence says, for a failed step, what else is known, and keeps configuration dumps beside the logs.
func (h *Harness) Evidence(ctx context.Context, scenario string) []string {
	dir := h.path("logs/" + scenario)
	out := h.rejections(ctx)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return append(out, err.Error())
	}
	_ = wait.Each(h.proxies(), func(l *workload) error {
		for name, path := range map[string]string{"config.json": "/config_dump?include_eds", "clusters.txt": "/clusters",
			"stats.txt": "/stats?usedonly"} {
			raw, err := l.admin(ctx, path)
			if err != nil {
				raw = []byte(err.Error())
			}
			_ = os.WriteFile(dir+"/"+l.spec.Name+"."+name, raw, 0o644) // evidence is not all there is
		}
		return nil
	})
	return append(out, "logs are in "+h.path("logs")+", configuration dumps in "+dir)
}

// rejections tells the last update that each proxy rejected.
func (h *Harness) rejections(ctx context.Context) []string {
	proxies, err := h.store.Proxies(ctx)
	if err != nil {
		return []string{fmt.Sprintf("the proxies' last rejections are not known: %v", err)}
	}
	var out []string
	for _, p := range proxies {
		for _, t := range p.Types {
			if r := t.GetRejection(); r != nil {
				out = append(out, fmt.Sprintf("%s has rejected %s %v: %s", p.NodeId, t.TypeUrl, r.ResourceNames, r.Message))
			}
		}
	}
	return out
}
