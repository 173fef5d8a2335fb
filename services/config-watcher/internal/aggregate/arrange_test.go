package aggregate

import (
	"context"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
)

// TestDeclaredSources: they come after all others whatever time their objects claim, in their order, and Istio's
// objects of a withheld source do not count while it is withheld.
func TestDeclaredSources(t *testing.T) {
	kube, all := &fake{name: "kubernetes/x"}, map[string]string{}
	a := New(testkit.Logger(t), func(_ context.Context, changes []normalise.Change) {
		for _, c := range changes {
			if c.Object == nil {
				delete(all, c.Key.Name)
			} else {
				all[c.Key.Name] = c.Object.Source
			}
		}
	}, "", kube)
	deliver := func(from string, created int64, names ...string) {
		var events []source.Event
		for _, n := range names {
			k := object.Key{Group: kinds.GroupNetworking, Kind: "Gateway", Namespace: "a", Name: strings.TrimPrefix(n, "-")}
			if strings.HasPrefix(n, "namespace-") {
				k = object.Key{Kind: "Namespace", Name: n}
			}
			e := source.Event{Key: k}
			if !strings.HasPrefix(n, "-") {
				e.Object = &object.Object{Key: k, Source: from, Created: time.Unix(created, 0)}
			}
			events = append(events, e)
		}
		a.handle(context.Background(), from, events)
	}
	expect := func(step, want string) {
		t.Helper()
		var got []string
		for _, name := range []string{"one", "two", "three", "namespace-n"} {
			if from, ok := all[name]; ok {
				got = append(got, name+":"+from)
			}
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%s: %q, want %q", step, text, want)
		}
	}
	a.Arrange([]string{"mcp/first", "mcp/second"}, "")
	deliver("mcp/second", 1, "one", "two")
	deliver("mcp/first", 9, "two", "three")
	deliver(kube.name, 99, "one", "namespace-n")
	expect("the cluster, then by the order of the list", "one:kubernetes/x two:mcp/first three:mcp/first namespace-n:kubernetes/x")
	a.Arrange([]string{"mcp/second", "mcp/first"}, "")
	expect("another order", "one:kubernetes/x two:mcp/second three:mcp/first namespace-n:kubernetes/x")
	a.Arrange([]string{"mcp/second", "mcp/first"}, kube.name)
	expect("without the cluster's", "one:mcp/second two:mcp/second three:mcp/first namespace-n:kubernetes/x")
	deliver(kube.name, 99, "-one", "three")
	expect("changes of what does not count", "one:mcp/second two:mcp/second three:mcp/first namespace-n:kubernetes/x")
	if n, from := a.Withheld(); n != 1 || from != kube.name {
		t.Errorf("withheld are %d of %s", n, from)
	}
	a.Arrange(nil, "")
	deliver("mcp/first", 0, "-two", "-three")
	deliver("mcp/second", 0, "-one", "-two")
	expect("with it again", "three:kubernetes/x namespace-n:kubernetes/x")
}
