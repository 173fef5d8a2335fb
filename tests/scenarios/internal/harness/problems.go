package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"fairlead.dev/tests/internal/netns"
	"fairlead.dev/tests/internal/probe"
	"fairlead.dev/tests/internal/wait"
	"fairlead.dev/tests/scenarios/internal/store"
	"fairlead.dev/tests/scenarios/internal/wire"
)

// settleWithin is how long Envoy may take to be done with what it has acknowledged.
const settleWithin = 10 * time.Second

// settleSoon is how long a step waits for that.
const settleSoon = time.Second

// counters of one proxy, of which each start has new ones.
type counters struct {
	process *netns.Process
	values  map[string]int64
}

// Stats that count rejected updates and resources that are not in use yet.
const (
	rejectedStats = `update_rejected$`
	warmingStats  = `^(cluster_manager\.warming_clusters|listener_manager\.total_listeners_warming)$`
)

// stats reads the Counters or the Gauges whose names match.
func (l *workload) stats(ctx context.Context, kind, filter string) (map[string]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, store.AckedWithin)
	defer cancel()
	return probe.Stats(ctx, l.envoy(), filter, "&usedonly&type="+kind)
}

// proxies are the workloads whose proxies run.
func (h *Harness) proxies() []*workload {
	return slices.DeleteFunc(slices.Clone(h.order), func(l *workload) bool { return !l.spec.HasProxy() || l.live == nil && !running(l.agent) })
}

// counters reads how many updates every proxy has rejected.
func (h *Harness) counters(ctx context.Context) (map[string]counters, error) {
	out := map[string]counters{}
	var mu sync.Mutex
	err := wait.Each(h.proxies(), func(l *workload) error {
		c := counters{process: l.agent}
		var err error
		if c.values, err = l.stats(ctx, "Counters", rejectedStats); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		out[l.spec.Name] = c
		return nil
	})
	return out, err
}

// rejected lists the updates that proxies have rejected since. From then on those of the snapshot count from now.
func (h *Harness) rejected(ctx context.Context, since *Snapshot) []string {
	now, err := h.counters(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	before := since.counted
	since.counted = now
	var out []string
	for _, name := range slices.Sorted(maps.Keys(now)) {
		before := before[name]
		for stat, n := range now[name].values {
			if before.process == now[name].process {
				n -= before.values[stat]
			}
			if n > 0 {
				out = append(out, fmt.Sprintf("the proxy of %s rejected %d updates: %s", name, n, stat))
			}
		}
	}
	if len(out) > 0 {
		out = append(out, h.rejections(ctx)...)
	}
	return out
}

// errWarming is wrapped by what tells which resources are not in use yet.
var errWarming = errors.New("resources are not in use yet")

// warm waits until the proxy uses all that it has acknowledged.
func (l *workload) warm(ctx context.Context, within time.Duration) error {
	return wait.Until(ctx, often, within, func() error {
		stats, err := l.stats(ctx, "Gauges", warmingStats)
		if err != nil {
			return err
		}
		for stat, n := range stats {
			if n > 0 {
				return fmt.Errorf("%w: %s is %d", errWarming, stat, n)
			}
		}
		return nil
	})
}

// settle gives the proxies a moment to use what they have acknowledged. What they cannot use is for the end of the
// scenario to tell.
func (h *Harness) settle(ctx context.Context) {
	_ = wait.Each(h.proxies(), func(l *workload) error { return l.warm(ctx, settleSoon) })
}

// warming lists what proxies have not got into use.
func (h *Harness) warming(ctx context.Context) []string {
	var mu sync.Mutex
	var out []string
	_ = wait.Each(h.proxies(), func(l *workload) error {
		if err := l.warm(ctx, settleWithin); err != nil {
			mu.Lock()
			defer mu.Unlock()
			out = append(out, fmt.Sprintf("the proxy of %s: %v", l.spec.Name, err))
		}
		return nil // it is told above
	})
	slices.Sort(out)
	return out
}

// logs implements ground.
func (h *Harness) logs() []string {
	files, _ := filepath.Glob(h.path("logs/*.log")) // the pattern is a good one
	return slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, accessLog) })
}

func (h *Harness) logLengths() map[string]int64 {
	out := map[string]int64{}
	for _, file := range h.ground.logs() {
		if info, err := os.Stat(file); err == nil {
			out[file] = info.Size()
		}
	}
	return out
}

// errorLevels are those of lines that should not be.
var errorLevels = []string{"error", "critical", "fatal"}

// errorLines lists the lines of the logs that tell of errors since.
func (h *Harness) errorLines(since *Snapshot) []string {
	var out []string
	for _, file := range h.ground.logs() {
		raw, err := os.ReadFile(file)
		if err != nil {
			out = append(out, err.Error())
			continue
		}
		for line := range strings.Lines(string(raw[min(since.logs[file], int64(len(raw))):])) {
			var entry struct {
				Level string `json:"level"`
			}
			if json.Unmarshal(wire.Unframed([]byte(line)), &entry) == nil && slices.Contains(errorLevels, strings.ToLower(entry.Level)) {
				out = append(out, fmt.Sprintf("%s: %s", filepath.Base(file), strings.TrimSpace(line)))
			}
		}
	}
	return out
}
