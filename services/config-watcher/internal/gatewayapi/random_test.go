package gatewayapi_test

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	networking "istio.io/api/networking/v1alpha3"
	"pgregory.net/rapid"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/gatewayapi"
	"fairlead.dev/services/config-watcher/internal/gatewayapi/modeltest"
	"fairlead.dev/services/config-watcher/internal/object"
)

// scratch builds a world of all objects at once.
func scratch(objects []*object.Object) *world {
	w := newWorld()
	for _, o := range objects {
		w.Put(o.Key, o)
	}
	w.rebuild()
	return w
}

// TestChangesComeToTheSame checks that objects which come, change and go in any order leave the same as those that are
// left do at once.
func TestChangesComeToTheSame(t *testing.T) {
	modeltest.Authority = authority(t)
	rapid.Check(t, func(t *rapid.T) {
		w, there, now := newWorld(), map[object.Key]*object.Object{}, 0
		for range rapid.IntRange(5, 60).Draw(t, "steps") {
			o := modeltest.One(t)
			if rapid.IntRange(0, 2).Draw(t, "beyond") == 0 {
				o = modeltest.Beyond(t)
			}
			if rapid.IntRange(0, 5).Draw(t, "go") == 0 && len(there) > 0 {
				keys := slices.SortedFunc(maps.Keys(there), object.Key.Compare)
				k := rapid.SampledFrom(keys).Draw(t, "key")
				delete(there, k)
				w.Put(k, nil)
			} else {
				there[o.Key] = o
				w.Put(o.Key, o)
			}
			if rapid.IntRange(0, 2).Draw(t, "rebuild") == 0 {
				now += rapid.IntRange(0, 2).Draw(t, "time")
				w.Advance(time.Unix(int64(now), 0))
				w.rebuild()
			}
		}
		w.Advance(time.Unix(int64(now), 0))
		w.rebuild()
		want := newWorld()
		want.Advance(time.Unix(int64(now), 0))
		for _, o := range there {
			want.Put(o.Key, o)
		}
		want.rebuild()
		if d := cmp.Diff(want.statuses, w.statuses); d != "" {
			t.Fatalf("statuses differ: %s", d)
		}
		if d := cmp.Diff(want.resources, w.resources, protocmp.Transform()); d != "" {
			t.Fatalf("resources differ: %s", d)
		}
		if d := cmp.Diff(want.Wanted(), w.Wanted()); d != "" {
			t.Fatalf("wanted differs: %s", d)
		}
		if r := w.rebuild(); len(r.Resources)+len(r.Statuses) > 0 {
			t.Fatalf("nothing has changed, and yet: %v", r)
		}
	})
}

// modelText writes a status as the model does.
func modelText(s *gatewayapi.Status) string {
	var lines []string
	for line := range strings.Lines(statusText(s)) {
		line = strings.TrimSuffix(line, "\n")
		for _, word := range []string{" served=true", " served=false", " OverlappingTLSConfig=True/OverlappingHostnames"} {
			line = strings.Replace(line, word, "", 1)
		}
		head, rest, found := strings.Cut(line, ": ")
		if name, _, section := strings.Cut(head, "#"); found && section {
			line = name + ": " + rest
		}
		lines = append(lines, strings.TrimSpace(line))
	}
	return strings.Join(lines, "\n")
}

// TestModel compares statuses and the rules that answer requests with the model of the specification.
func TestModel(t *testing.T) {
	answered := 0
	for range 10 { // of 100 sets of objects
		rapid.Check(t, func(t *rapid.T) { answered += compareWithModel(t) })
	}
	if answered < 1000 {
		t.Errorf("only %d requests were answered by a rule", answered)
	}
}

func compareWithModel(t *rapid.T) (answered int) {
	objects := modeltest.Draw(t)
	w, m := scratch(objects), modeltest.New(objects)
	want := m.Statuses()
	for k, s := range w.statuses {
		if s.Gateway == nil && s.ListenerSet == nil && s.Route == nil {
			continue
		}
		var lines []string
		for line := range strings.Lines(want[k]) {
			lines = append(lines, strings.TrimSpace(line))
		}
		if got, want := modelText(s), strings.Join(lines, "\n"); got != want {
			t.Fatalf("%s:\n%s\nthe model says:\n%s", k, got, want)
		}
		delete(want, k)
	}
	if len(want) > 0 {
		t.Fatalf("no status, and the model says %v", want)
	}
	for range 10 {
		r := modeltest.DrawRequest(t)
		for _, o := range objects {
			if _, ok := o.Body.(*gatewayv1.Gateway); !ok {
				continue
			}
			port := rapid.SampledFrom([]int32{80, 80, 80, 443}).Draw(t, "port")
			got, want := w.answer(t, o.Key.Namespace+"/"+o.Key.Name, uint32(port), r), m.Answer(o, port, r)
			if got != want {
				t.Fatalf("%+v to port %d of %s gets %q; the model says %q", r, port, o.Key, got, want)
			}
			if got != "" {
				answered++
			}
		}
	}
	return answered
}

// answer serves a request by the resources, as xds-server does.
func (w *world) answer(t *rapid.T, gateway string, port uint32, r modeltest.Request) string {
	var listener *configv1.GatewayListener
	var set string
	for _, c := range w.resources {
		g := c.GetListeners()
		for _, l := range g.GetListeners() {
			http := l.GetProtocol() == configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTP ||
				l.GetProtocol() == configv1.ListenerProtocol_LISTENER_PROTOCOL_HTTPS
			if g.GetGateway() == gateway && l.GetPort() == port && http && covers(l.GetHostname(), r.Host) &&
				(listener == nil || narrower(l.GetHostname(), listener.GetHostname())) {
				listener, set = l, g.GetListenerSet()
			}
		}
	}
	domain, found := "", false
	type ranked struct {
		host, rank []byte
		answer     string
	}
	var routes []ranked
	for _, c := range w.resources {
		for _, a := range c.GetRoute().GetListeners() {
			if listener == nil || a.GetGateway() != gateway || a.GetListenerSet() != set || a.GetListener() != listener.GetName() {
				continue
			}
			for _, h := range a.GetHosts() {
				if !covers(h.GetDomain(), r.Host) || found && domain != h.GetDomain() && !narrower(h.GetDomain(), domain) {
					continue
				}
				if !found || domain != h.GetDomain() {
					domain, found, routes = h.GetDomain(), true, nil
				}
				for i, rule := range c.GetRoute().GetRules() {
					for _, m := range rule.GetMatches() {
						if matched(t, m, r) {
							s := c.GetSource()
							answer := fmt.Sprintf("%s %s/%s %d", s.GetKind(), s.GetNamespace(), s.GetName(), i)
							routes = append(routes, ranked{h.GetRank(), m.GetRank(), answer})
						}
					}
				}
			}
		}
	}
	if len(routes) == 0 {
		return ""
	}
	best := slices.MinFunc(routes, func(a, b ranked) int {
		if c := bytes.Compare(a.host, b.host); c != 0 {
			return c
		}
		return bytes.Compare(a.rank, b.rank)
	})
	return best.answer
}

func covers(hostname, host string) bool {
	suffix, wildcard := strings.CutPrefix(hostname, "*")
	return hostname == "" || hostname == host || wildcard && strings.HasSuffix(host, suffix)
}

func narrower(a, b string) bool {
	exact := func(h string) bool { return h != "" && h[0] != '*' }
	return exact(a) && !exact(b) || exact(a) == exact(b) && len(a) > len(b)
}

// matched reports whether a match of a resource is met.
func matched(t *rapid.T, in *configv1.RuleMatch, r modeltest.Request) bool {
	m := &networking.HTTPMatchRequest{}
	if in.GetMatch() != nil {
		if err := in.GetMatch().UnmarshalTo(m); err != nil {
			t.Fatal(err)
		}
	}
	text := func(m *networking.StringMatch, value string) bool {
		switch {
		case m == nil:
			return true
		case m.GetPrefix() != "" && in.GetPathElements():
			return value == m.GetPrefix() || strings.HasPrefix(value, m.GetPrefix()+"/")
		case m.GetPrefix() != "":
			return strings.HasPrefix(value, m.GetPrefix())
		default:
			return m.GetExact() == value
		}
	}
	ok := text(m.GetUri(), r.Path) && text(m.GetMethod(), r.Method)
	for k, v := range m.GetHeaders() {
		ok = ok && text(v, r.Headers[k])
	}
	for k, v := range m.GetQueryParams() {
		ok = ok && text(v, r.Query[k])
	}
	return ok
}
