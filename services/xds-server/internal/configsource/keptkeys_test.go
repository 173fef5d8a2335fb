package configsource_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	security "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/configsource"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/translate/policy"
)

const (
	pending     = configv1.JwksProblem_JWKS_PROBLEM_PENDING
	unreachable = configv1.JwksProblem_JWKS_PROBLEM_UNREACHABLE
	unusable    = configv1.JwksProblem_JWKS_PROBLEM_UNUSABLE
)

var issuer = contract.KeySourceOf("", "https://issuer.example")

// keysOf is what config-watcher tells of the issuer: keys, or why there are none.
func keysOf(keys string, problem configv1.JwksProblem) *configv1.Resource {
	return meshtest.Resource(mesh.KindJwks, "", issuer.Name(), &configv1.Resource{Body: &configv1.Resource_Jwks{
		Jwks: &configv1.Jwks{Issuer: issuer.Issuer, Keys: []byte(keys), Problem: problem},
	}})
}

// translated is the filter of tokens that a sidecar gets.
func translated(t *testing.T, state *mesh.Snapshot) string {
	t.Helper()
	r := input.NewView(&class.Key{
		Type: class.Sidecar, Namespace: "apps", TrustDomain: "cluster.local", DNSDomain: "apps.svc.cluster.local", Interception: class.Redirect,
		Filters: class.FilterChains | class.RBAC | class.ExtAuthz | class.JWT,
	}, state).Reader()
	slot, err := policy.Slot(r, "fairlead.jwt")
	if err != nil {
		t.Fatal(err)
	}
	return prototext.Format(slot)
}

// following is a client that has the keys "keys-1" of the issuer.
type following struct {
	t      *testing.T
	fake   *watcherFake
	watch  *watchFake
	states chan *mesh.Snapshot
	clock  *testkit.Clock
	next   uint64
}

func withKeys(t *testing.T) *following {
	t.Helper()
	f := &following{t: t, states: make(chan *mesh.Snapshot, 100), clock: testkit.NewClock(meshtest.Epoch)}
	f.fake, _, _ = followWith(t, nil, func(cfg *configsource.Config) {
		cfg.Clock = f.clock
		cfg.Apply = func(s *mesh.Snapshot, _ *mesh.Change) { f.states <- s }
	})
	f.watch = take(t, f.fake.streams)
	f.has("keys-1", meshtest.Config(mesh.KindRequestAuthentication, "apps", "tokens", &security.RequestAuthentication{
		JwtRules: []*security.JWTRule{{Issuer: issuer.Issuer}},
	}), keysOf("keys-1", 0))
	return f
}

// has sends a revision and checks the keys that a sidecar gets then; "" if it gets none.
func (f *following) has(keys string, upserts ...*configv1.Resource) {
	f.t.Helper()
	f.next++
	f.watch.send <- chunk("e", f.next, true, upserts...)
	f.gets(keys)
	take(f.t, f.watch.acks)
}

func (f *following) gets(keys string) {
	f.t.Helper()
	got := translated(f.t, take(f.t, f.states))
	for _, each := range []string{"keys-1", "keys-2", "no-usable-key"} {
		if want := each == keys || keys == "" && each == "no-usable-key"; strings.Contains(got, each) != want {
			f.t.Fatalf("want keys %q, %q is in it: %v:\n%s", keys, each, !want, got)
		}
	}
}

func TestKeysOutliveAConfigWatcherThatHasNone(t *testing.T) {
	f := withKeys(t)
	f.has("keys-1", keysOf("", pending))
	f.clock.Advance(24 * time.Hour)
	f.has("keys-1", keysOf("", unreachable))

	// Another config-watcher has none either. Days count from the first that had none.
	const pause = time.Second // before the watch is opened again
	f.watch.end <- status.Error(codes.Unavailable, "gone")
	f.clock.WaitFor(t, 2)
	f.clock.Advance(pause)
	f.watch = take(t, f.fake.streams)
	f.has("keys-1", keysOf("", pending))
	f.clock.Advance(6*24*time.Hour - pause - time.Second)
	f.has("keys-1", keysOf("", unreachable))
	f.clock.WaitFor(t, 1)
	f.clock.Advance(time.Second)
	f.gets("")

	f.has("keys-2", keysOf("keys-2", 0))
	f.has("keys-2", keysOf("", unreachable))
	f.clock.Advance(contract.KeysMaxAge - time.Second)
	f.has("keys-2", keysOf("keys-2", 0)) // as before: the issuer is back
	f.clock.Advance(time.Second)
	f.has("keys-2", keysOf("", unreachable))
}

func TestKeysAreReplacedAtOnceByWhatIsKnown(t *testing.T) {
	for _, tc := range []struct {
		name string
		then *configv1.Resource
		want string
	}{
		{"other keys", keysOf("keys-2", 0), "keys-2"},
		{"a set without a usable key", keysOf("", unusable), ""},
		{"an address that is not fetched from", keysOf("", configv1.JwksProblem_JWKS_PROBLEM_FORBIDDEN), ""},
		{"keys that are too old", keysOf("", configv1.JwksProblem_JWKS_PROBLEM_EXPIRED), ""},
		{"a source that is left out", keysOf("", configv1.JwksProblem_JWKS_PROBLEM_LEFT_OUT), ""},
	} {
		for _, between := range []configv1.JwksProblem{0, pending, unreachable} {
			t.Run(tc.name+" after "+between.String(), func(t *testing.T) {
				f := withKeys(t)
				if between != 0 {
					f.has("keys-1", keysOf("", between))
				}
				f.has(tc.want, tc.then)
				f.has(tc.want, keysOf("", unreachable))
			})
		}
	}
}

func TestKeysOfARemovedSourceAreForgotten(t *testing.T) {
	f := withKeys(t)
	f.has("keys-1", keysOf("", pending))
	f.next++
	m := chunk("e", f.next, true)
	m.Removed = []*configv1.ResourceKey{keysOf("", 0).GetKey()}
	f.watch.send <- m
	f.gets("")
	f.has("", keysOf("", pending))
}
