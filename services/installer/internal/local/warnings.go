package local

import (
	"context"
	"fmt"
	"slices"

	"fairlead.dev/pkg/lists"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// maxWarnings is how many lines watchWarnings prints after one look; a last line counts the others.
const maxWarnings = 50

// watchWarnings prints config-watcher's warnings about references between objects, and each that is resolved. It begins
// when the Pods are part of the mesh, because references to them would be warnings before. It prints a warning that two
// looks in a row have seen: a person may be saving several files one after the other.
func (n *Node) watchWarnings(ctx context.Context) error {
	waitFor(ctx, n.published)
	var seen, printed []string
	for n.wait(ctx, sourcesPeriod) {
		now, err := n.warnings(ctx)
		if err != nil {
			n.cfg.Log.Debug("warnings cannot be read", "error", err)
			continue
		}
		lines := []string{}
		var kept []string
		for _, text := range printed {
			if slices.Contains(now, text) {
				kept = append(kept, text)
			} else {
				lines = append(lines, "resolved: "+text)
			}
		}
		printed = kept
		for _, text := range now {
			if slices.Contains(seen, text) && !slices.Contains(printed, text) {
				printed = append(printed, text)
				lines = append(lines, "warning: "+text)
			}
		}
		seen = now
		for _, line := range lines[:min(len(lines), maxWarnings)] {
			n.cfg.Console.Line(line)
		}
		if more := len(lines) - maxWarnings; more > 0 {
			n.cfg.Console.Line(fmt.Sprintf("warning: %d more; `fairlead config status` lists them", more))
		}
	}
	return nil
}

// warnings asks config-watcher for its warnings.
func (n *Node) warnings(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := n.configAPI.ListWarnings(ctx, &configv1.ListWarningsRequest{})
	if err != nil {
		return nil, err
	}
	return lists.Map(res.GetWarnings(), (*configv1.Warning).GetText), nil
}
