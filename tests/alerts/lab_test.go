package alerts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/controlplane"
	"fairlead.dev/tests/internal/probe"
	"fairlead.dev/tests/internal/process"
)

// target is a process that is scraped, as a PodMonitor of ops would have it scraped.
type target struct{ job, instance, url string }

// scrape is one look at all targets: the value of each series, by its name and labels in promtool's notation.
type scrape struct {
	at     time.Time
	values map[string]float64
}

// seen are the names of the metrics that real services have shown, and fired the alerts that have fired by a fault,
// over all tests of the package.
var (
	seenMu sync.Mutex
	seen   = map[string]bool{"up": true}
	fired  = map[string]bool{}
)

// lab scrapes real services before and while a fault is made in them, and has promtool replay what was scraped, with
// time stretched: a scrape, a moment after the one before, counts as one a minute later.
type lab struct {
	t       *testing.T
	tool    string
	rules   []*Service
	targets []target
	client  *http.Client
}

func newLab(t *testing.T) *lab {
	t.Helper()
	return &lab{t: t, tool: promtool(t), rules: load(t), client: probe.Client(nil)}
}

// add adds a target.
func (l *lab) add(job, instance, address string) {
	l.targets = append(l.targets, target{job, instance, "http://" + address + "/metrics"})
}

// look scrapes all targets.
func (l *lab) look(ctx context.Context) scrape {
	s := scrape{time.Now(), map[string]float64{}}
	for _, at := range l.targets {
		labels := fmt.Sprintf("job=%q,instance=%q", at.job, at.instance)
		up := "up{" + labels + "}"
		s.values[up] = 0
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		raw, err := probe.Get(ctx, l.client, at.url)
		cancel()
		if err != nil {
			continue // as Prometheus does
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(bytes.NewReader(raw))
		if err != nil {
			l.t.Fatalf("%s: %v", at.url, err)
		}
		s.values[up] = 1
		for name, family := range families {
			for _, m := range family.GetMetric() {
				flatten(s.values, name, labels, m)
			}
		}
	}
	seenMu.Lock()
	defer seenMu.Unlock()
	for name := range s.values {
		name, _, _ = strings.Cut(name, "{")
		seen[name] = true
	}
	return s
}

// flatten adds the series of a metric.
func flatten(values map[string]float64, name, labels string, m *dto.Metric) {
	for _, pair := range m.GetLabel() {
		labels += fmt.Sprintf(",%s=%q", pair.GetName(), pair.GetValue())
	}
	put := func(suffix, more string, v float64) { values[name+suffix+"{"+labels+more+"}"] = v }
	switch {
	case m.GetHistogram() != nil:
		h := m.GetHistogram()
		for _, b := range h.GetBucket() {
			put("_bucket", fmt.Sprintf(",le=%q", strconv.FormatFloat(b.GetUpperBound(), 'g', -1, 64)), float64(b.GetCumulativeCount()))
		}
		put("_bucket", `,le="+Inf"`, float64(h.GetSampleCount()))
		put("_count", "", float64(h.GetSampleCount()))
		put("_sum", "", h.GetSampleSum())
	case m.GetSummary() != nil:
	default:
		put("", "", m.GetCounter().GetValue()+m.GetGauge().GetValue()+m.GetUntyped().GetValue())
	}
}

// sum adds the values of a metric over the series that have all of the labels, as `source="file"`.
func (s scrape) sum(name string, labels ...string) float64 {
	total := 0.0
	for series, v := range s.values {
		of, rest, _ := strings.Cut(series, "{")
		if of == name && !slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(rest, l) }) {
			total += v
		}
	}
	return total
}

// fault is made in a service, and fires alerts.
type fault struct {
	// service is whose alerts they are.
	service string
	alerts  []string
	// make_ makes the fault. What it returns ends it, after the last scrape; nil if there is nothing to end.
	make_ func(t *testing.T) func()
	// until tells that the fault shows in a scrape. The test waits for that.
	until func(s scrape) bool
	// minutes is for how many stretched minutes the fault then lasts; 3 if it is 0. Each takes one gap.
	minutes int
	// gap is between two scrapes, 50 ms if it is 0.
	gap time.Duration
	// faster is how much faster than the stretched time certificates live, and times of day go by; 0: they do not.
	faster float64
	// afresh says that the services begin with the fault, so that there is no time before it.
	afresh bool
}

const before = 4

// provoke asserts that alerts of a fault are silent before it, and fire while it lasts or after it.
func (l *lab) provoke(f fault) {
	l.t.Helper()
	if f.minutes == 0 {
		f.minutes = 3
	}
	if f.gap == 0 {
		f.gap = 50 * time.Millisecond
	}
	l.t.Run(strings.Join(f.alerts, "+"), func(t *testing.T) {
		var scrapes []scrape
		take := func(n int) {
			for range n {
				scrapes = append(scrapes, l.look(t.Context()))
				select {
				case <-time.After(f.gap):
				case <-t.Context().Done():
					t.Fatal(t.Context().Err())
				}
			}
		}
		if !f.afresh {
			take(before)
		}
		if undo := f.make_(t); undo != nil {
			defer undo()
		}
		deadline := time.Now().Add(testkit.Patience)
		for f.until != nil {
			s := l.look(t.Context())
			if f.until(s) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("the fault does not show: %v", relevant(l.rules, f, s))
			}
			time.Sleep(f.gap)
		}
		take(f.minutes + 1)
		l.replay(t, f, scrapes)
	})
}

// watched are the metrics that the alerts of a fault are made from, those of recording rules included.
func watched(rules []*Service, f fault) map[string]bool {
	metrics, todo := map[string]bool{"up": true}, []string{}
	for _, s := range rules {
		alerts, _ := s.Alerts()
		for _, r := range alerts {
			if s.Name == f.service && slices.Contains(f.alerts, r.Alert) {
				todo = append(todo, Metrics(r.Expr)...)
			}
		}
	}
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		if metrics[name] {
			continue
		}
		metrics[name] = true
		for _, s := range rules {
			for _, g := range s.Groups {
				for _, r := range g.Rules {
					if r.Record == name {
						todo = append(todo, Metrics(r.Expr)...)
					}
				}
			}
		}
	}
	return metrics
}

func relevant(rules []*Service, f fault, s scrape) map[string]float64 {
	metrics := watched(rules, f)
	out := maps.Clone(s.values)
	maps.DeleteFunc(out, func(name string, _ float64) bool {
		name, _, _ = strings.Cut(name, "{")
		return !metrics[name]
	})
	return out
}

func (l *lab) replay(t *testing.T, f fault, scrapes []scrape) {
	t.Helper()
	var kept []map[string]float64
	names := map[string]bool{}
	for i, s := range scrapes {
		values := relevant(l.rules, f, s)
		for name := range values {
			metric, _, _ := strings.Cut(name, "{")
			now := float64(60 * i)
			life := func(seconds float64) float64 { return seconds * max(f.faster, 1) }
			if strings.HasSuffix(metric, "_timestamp_seconds") {
				values[name] = now + life(values[name]-float64(s.at.UnixNano())/1e9)
			} else if metric == "istio_agent_cert_expiry_seconds" {
				values[name] = life(values[name])
			}
			names[name] = true
		}
		kept = append(kept, values)
	}
	var input []series
	for _, name := range slices.Sorted(maps.Keys(names)) {
		var values []string
		for i := range kept {
			switch v, ok := kept[i][name]; {
			case ok:
				values = append(values, strconv.FormatFloat(v, 'f', -1, 64))
			case i > 0 && len(values) > 0 && values[i-1] != "stale" && values[i-1] != "_":
				values = append(values, "stale")
			default:
				values = append(values, "_")
			}
		}
		input = append(input, series{name, strings.Join(values, " ")})
	}
	g := group{Name: strings.Join(f.alerts, "+"), Interval: "1m", Series: input}
	for _, alert := range f.alerts {
		if !f.afresh {
			g.Expect = append(g.Expect, firing(alert, f.service, 60*(before-1), before, false))
		}
		g.Expect = append(g.Expect, firing(alert, f.service, 60*(len(scrapes)-1), len(scrapes), true))
	}
	replay(t, l.tool, l.rules, g)
	if t.Failed() {
		for _, s := range input {
			t.Logf("%s: %s", s.Series, s.Values)
		}
		return
	}
	seenMu.Lock()
	defer seenMu.Unlock()
	for _, alert := range f.alerts {
		fired[f.service+"/"+alert] = true
	}
}

// ports are free ones of loopback.
func ports(t *testing.T) controlplane.Ports {
	t.Helper()
	return controlplane.Ports{GRPC: testkit.FreeAddress(t).String(), Ops: testkit.FreeAddress(t).String()}
}

// plane makes a control plane, in which nothing runs yet.
func plane(t *testing.T, args ...string) *controlplane.Plane {
	t.Helper()
	dir := t.TempDir()
	bin, err := binaries.Find(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	p, err := controlplane.New(controlplane.Config{
		Dir: dir, Binaries: bin, CAPorts: ports(t), Start: func(p process.Program) (*process.Process, error) { return process.Start(p, nil) },
		Args: args,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(testkit.Patience); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(process.Tails(dir + "/logs/*.log"))
		}
	})
	return p
}

// start starts services and waits until they are ready.
func start(t *testing.T, services ...*controlplane.Service) {
	t.Helper()
	var errs []error
	for _, s := range services {
		errs = append(errs, s.Start())
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for _, s := range services {
		if err := s.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// halting stops a service again and again for longer than a second, as a machine without processors for it does, while
// several callers work, and lets it work for a moment each time, until enough of what they do is slow.
func halting(t *testing.T, p *process.Process, works time.Duration, work func(ctx context.Context) error, enough func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	var wg sync.WaitGroup
	// While enough looks, the service works: what it does then is not slow.
	const callers, standstills = 16, 5
	broken := make(chan error, callers)
	for range callers {
		wg.Go(func() {
			if err := work(ctx); err != nil {
				broken <- err
			}
		})
	}
	for !enough() {
		if ctx.Err() != nil {
			t.Error("nothing becomes slow")
			break
		}
		for range standstills {
			if err := p.Signal(syscall.SIGSTOP); err != nil {
				t.Error(err)
			}
			time.Sleep(1200 * time.Millisecond) // how long it stands still, which is the fault
			if err := p.Signal(syscall.SIGCONT); err != nil {
				t.Error(err)
			}
			time.Sleep(works)
		}
	}
	cancel()
	wg.Wait()
	select {
	case err := <-broken:
		t.Error(err)
	default:
	}
}
