package background

import (
	"fmt"
	"sync"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/notify"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
)

// lookup is a source that has answered for some objects.
type lookup struct {
	mu       sync.Mutex
	answered map[string]bool
	looked   notify.Notifier
}

func (l *lookup) Reading(k object.Key) (asked, reading bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.answered[k.Name], false
}

func (l *lookup) Looked() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.looked.Changed()
}

func (l *lookup) answer(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answered[name] = true
	l.looked.Notify()
}

// TestAMissingSecretIsNamedOnceTheSourceHasAnswered: of a Secret that nobody has read yet no finding says that it does
// not exist; of one that does not exist, the answer makes the finding appear.
func TestAMissingSecretIsNamedOnceTheSourceHasAnswered(t *testing.T) {
	l := &lookup{answered: map[string]bool{}}
	a := startWith(t, Config{Lookup: l, Log: testkit.Logger(t), Clock: clock.Real()})
	gateway := func(name string) normalise.Change {
		k := object.Key{Group: kinds.GroupNetworking, Kind: "Gateway", Namespace: "apps", Name: name}
		return normalise.Change{Key: k,
			Object: &object.Object{Key: k, Body: &networking.Gateway{Selector: map[string]string{"app": "gateway"}, Servers: []*networking.Server{{
				Port: &networking.Port{Number: 443, Name: "https", Protocol: "HTTPS"}, Hosts: []string{name + ".example"},
				Tls: &networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_SIMPLE, CredentialName: name},
			}}}}}
	}
	missing := func() (out []string) {
		for _, f := range a.All() {
			if f.Code == finding.CredentialNotFound {
				out = append(out, f.Key.Name)
			}
		}
		return out
	}
	is := func(want ...string) {
		t.Helper()
		testkit.Eventually(t, testkit.Patience, func() error {
			if got := missing(); fmt.Sprint(got) != fmt.Sprint(want) {
				return fmt.Errorf("missing are %v, want %v", got, want)
			}
			return nil
		})
	}
	k := object.Key{Group: kinds.GroupNetworking, Kind: "WorkloadEntry", Namespace: "apps", Name: "gateway"}
	workload := normalise.Change{Key: k,
		Object: &object.Object{Key: k, Body: &networking.WorkloadEntry{Address: "10.0.0.1", Labels: map[string]string{"app": "gateway"}}}}
	a.submit(t, workload, gateway("one"), gateway("two"))
	if got := missing(); len(got) > 0 {
		t.Errorf("before any answer %v are missing", got)
	}
	l.answer("two")
	is("two")
	a.submit(t, gateway("three"))
	l.answer("one")
	is("one", "two")
}
