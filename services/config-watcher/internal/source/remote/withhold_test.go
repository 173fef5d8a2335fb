package remote

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/fake"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/source/lastgood"
	"fairlead.dev/services/config-watcher/internal/source/withheld"
)

// played are Clusters whose lists and events the test makes.
type played struct {
	*Clusters
	t     *testing.T
	clock *testkit.Clock
	known []string
}

func newPlayed(t *testing.T, known ...string) *played {
	t.Helper()
	p := &played{t: t, clock: testkit.NewClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)), known: known}
	p.Clusters = New(Config{
		Own: "west", Secrets: fake.NewClientset().CoreV1().Secrets("istio-system"), Namespace: "istio-system",
		Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Timeout: time.Hour, QPS: 50, Burst: 50, UserAgent: "test",
		Submit: func(context.Context, []normalise.Change) {}, Log: testkit.Logger(t), Clock: p.clock,
		Saved: lastgood.New(lastgood.Config{Path: t.TempDir(), Log: testkit.Logger(t), Clock: p.clock}),
	})
	t.Cleanup(p.stopAll)
	return p
}

// list takes over a list; read and held are the clusters that are read after it, and how many of them are withheld.
func (p *played) list(held int, read []string, secrets ...*corev1.Secret) {
	p.t.Helper()
	var all []any
	for _, s := range secrets {
		all = append(all, s)
	}
	testkit.NoError(p.t, p.secrets.Replace(all, ""))
	p.check(held, read)
}

func (p *played) check(held int, read []string) {
	p.t.Helper()
	p.apply(p.t.Context(), p.secrets.State(), p.known, make(chan error, 9))
	p.known = nil
	var got []string
	for _, s := range p.Sources() {
		got = append(got, s.Name()[len("kubernetes/"):])
	}
	n := 0
	for _, w := range p.Status().Withheld {
		n += w.Objects
	}
	if !slices.Equal(got, read) || n != held {
		p.t.Errorf("reads %v, withholds %d; want %v, %d", got, n, read, held)
	}
}

func secretOf(cluster string) *corev1.Secret {
	return labelled(cluster, 1, map[string]string{cluster: kubeconfigOf(`server: "https://127.0.0.1:1"`, "token: a")})
}

// TestClustersThatAListLacksAreReadOn: until a second list lacks them too, or an administrator accepts it; what an
// event says counts at once.
func TestClustersThatAListLacksAreReadOn(t *testing.T) {
	p := newPlayed(t)
	p.list(0, []string{"east", "north", "south"}, secretOf("east"), secretOf("north"), secretOf("south"))
	p.list(2, []string{"east", "north", "south"}, secretOf("north"))
	testkit.NoError(t, p.secrets.Put(secretOf("south"), false))
	p.check(1, []string{"east", "north", "south"})
	testkit.NoError(t, p.secrets.Put(secretOf("south"), true))
	p.check(1, []string{"east", "north"})
	p.clock.Advance(withheld.Wait)
	p.check(1, []string{"east", "north"}) // no list
	p.list(0, []string{"north"}, secretOf("north"))
	p.list(1, []string{"north"})
	if n := p.Accept(); n != 1 {
		t.Errorf("accepts %d", n)
	}
	p.check(0, nil)
}

// TestClustersOfTheLastRunAreReadOn: those that the first list after a restart lacks.
func TestClustersOfTheLastRunAreReadOn(t *testing.T) {
	p := newPlayed(t, "east", "north")
	p.list(1, []string{"east", "north"}, secretOf("north"))
	p.clock.Advance(withheld.Wait)
	p.list(0, []string{"north"}, secretOf("north"))
}

// TestTheSecretsAreListedAgain: when it is due, once.
func TestTheSecretsAreListedAgain(t *testing.T) {
	p := newPlayed(t)
	asked := 0
	p.relist = func() { asked++ }
	p.list(0, []string{"east"}, secretOf("east"))
	p.list(1, []string{"east"})
	p.confirm()
	p.clock.Advance(withheld.Wait)
	p.confirm()
	p.confirm()
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
	p.list(0, nil)
}
