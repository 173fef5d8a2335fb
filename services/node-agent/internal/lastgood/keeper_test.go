package lastgood

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/tlsconf"
)

const endpointType = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"

// rig is a Keeper that a test runs, stops and starts again on one directory.
type rig struct {
	t      *testing.T
	path   string
	source *testkit.Static
	clock  *testkit.Clock
	log    testkit.Buffer
	fs     fileio.FS
	node   string
	most   int
	*Keeper
	stop func()
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, path: filepath.Join(t.TempDir(), "last-good"), source: testkit.PKI(t).NewSVID("shop", "web"),
		clock: testkit.NewClock(time.Now()), node: "node"}
	r.start()
	return r
}

func (r *rig) start() {
	r.t.Helper()
	k := New(Config{
		Path: r.path, Source: r.source, Identity: "spiffe://cluster.local/ns/shop/sa/web", Node: r.node, MaxAge: 24 * time.Hour, MaxBytes: r.most,
		Log: slog.New(slog.NewTextHandler(&r.log, nil)), Registerer: prometheus.NewRegistry(), Clock: r.clock, FS: r.fs,
	})
	r.Keeper = k
	r.stop = testkit.Background(r.t, func(ctx context.Context) error { return k.Run(ctx) })
}

func (r *rig) restart() {
	r.stop()
	r.start()
}

// written waits until the file was written after a change that Envoy has just accepted, or fails.
func (r *rig) written() {
	r.t.Helper()
	before := testutil.ToFloat64(r.metrics.sealed)
	testkit.Eventually(r.t, testkit.Patience, func() error {
		r.clock.Advance(every)
		if now := testutil.ToFloat64(r.metrics.sealed); now == before {
			return errors.New("not written")
		}
		return nil
	})
}

func encoded(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func cluster(t *testing.T, name string, text string) *anypb.Any {
	t.Helper()
	a, err := anypb.New(&clusterv3.Cluster{Name: name, AltStatName: text})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// deltaEnvoy is the delta stream of an Envoy.
type deltaEnvoy struct {
	t *testing.T
	*Recorder
}

func (r *rig) delta() deltaEnvoy { return deltaEnvoy{r.t, r.Stream(true)} }

func (e deltaEnvoy) ask(url string, held map[string]string, names ...string) {
	e.Request(encoded(e.t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: url, InitialResourceVersions: held, ResourceNamesSubscribe: names}))
}

// take receives a response with resources "name=version" and answers it.
func (e deltaEnvoy) take(url string, removed []string, reject string, resources ...string) {
	e.t.Helper()
	m := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: url, Nonce: url + reject, RemovedResources: removed}
	for _, r := range resources {
		name, version, _ := strings.Cut(r, "=")
		m.Resources = append(m.Resources, &discoveryv3.Resource{Name: name, Version: version, Resource: cluster(e.t, name, version)})
	}
	e.Response(encoded(e.t, m))
	req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: url, ResponseNonce: m.GetNonce()}
	if reject != "" {
		req.ErrorDetail = &status.Status{Code: 3, Message: reject}
	}
	e.Request(encoded(e.t, req))
}

// start is what every Envoy begins with.
func (e deltaEnvoy) start(clusters ...string) {
	e.ask(clusterType, nil)
	e.take(clusterType, nil, "", clusters...)
	e.ask(listenerType, nil)
	e.take(listenerType, nil, "", "l=1")
}

// has lists what Last has of a type, as "name=version".
func (r *rig) has(url string) string {
	r.t.Helper()
	v := r.Last()
	if v == nil {
		return "nothing"
	}
	var all []string
	if k := v.contents[url]; k != nil {
		for name, resource := range k.resources {
			all = append(all, name+"="+string(field(resource, resourceVersion)))
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func (r *rig) want(url, want string) {
	r.t.Helper()
	if got := r.has(url); got != want {
		r.t.Errorf("kept of %s: %q, want %q", url, got, want)
	}
}

func TestWhatEnvoyAcceptedSurvivesARestart(t *testing.T) {
	r := newRig(t)
	e := r.delta()
	e.start("a=1", "b=1", "c=1")
	e.ask(endpointType, nil, "a", "b")
	e.take(endpointType, nil, "", "a=1", "b=1")
	r.written()
	e.take(clusterType, []string{"b"}, "", "a=2")
	e.take(clusterType, []string{"c"}, "bad", "a=3")
	e.Response(encoded(t, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: clusterType, Nonce: "unanswered", RemovedResources: []string{"a"}}))
	e.Request(encoded(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResponseNonce: "unknown"}))
	e.Request(encoded(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType, ResponseNonce: "unanswered"}))
	r.want(clusterType, "a=2 c=1")
	r.restart() // writes at the end
	r.want(clusterType, "a=2 c=1")
	r.want(endpointType, "a=1 b=1")
	r.want(listenerType, "l=1")
	if info, err := os.Stat(r.path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

func TestStateOfTheWorldSurvivesARestart(t *testing.T) {
	r := newRig(t)
	s := r.Stream(false)
	ask := func(url, version, nonce string, names ...string) {
		s.Request(encoded(t, &discoveryv3.DiscoveryRequest{TypeUrl: url, VersionInfo: version, ResponseNonce: nonce, ResourceNames: names}))
	}
	take := func(url, version string, names []string, resources ...string) {
		m := &discoveryv3.DiscoveryResponse{TypeUrl: url, VersionInfo: version, Nonce: version}
		for _, name := range resources {
			m.Resources = append(m.Resources, cluster(t, name, ""))
		}
		s.Response(encoded(t, m))
		ask(url, version, version, names...)
	}
	ask(clusterType, "", "")
	take(clusterType, "1", nil, "a", "b")
	ask(listenerType, "", "")
	take(listenerType, "1", nil, "l")
	both := []string{"a", "b"}
	ask(endpointType, "", "", both...)
	take(endpointType, "1", both, "a", "b")
	take(endpointType, "2", both, "a") // the other stays
	take(clusterType, "3", nil, "a")   // all that there are
	take(endpointType, "4", []string{"a"}, "a")
	r.restart()
	r.want(clusterType, "a=3")
	r.want(endpointType, "a=4")
	if v := r.Last().contents[clusterType].version; v != "3" {
		t.Errorf("version %q", v)
	}
}

// The next Envoy begins with nothing. Until it has clusters and listeners, what the last one had is kept.
func TestConfigurationOfTheLastEnvoyStaysUntilTheNextHasItsOwn(t *testing.T) {
	r := newRig(t)
	r.delta().start("a=1")
	r.written()
	e := r.delta()
	e.ask(clusterType, nil)
	e.take(clusterType, nil, "", "b=2")
	r.want(clusterType, "a=1")
	r.restart()
	r.want(clusterType, "a=1")
	e = r.delta()
	e.start("b=2")
	r.want(clusterType, "b=2")
	r.restart()
	r.want(clusterType, "b=2")
}

// An Envoy that reconnects says what it holds; what it does not name it has not.
func TestReconnectKeepsWhatEnvoyHolds(t *testing.T) {
	r := newRig(t)
	r.delta().start("a=1", "b=1", "c=1")
	e := r.delta()
	e.ask(clusterType, map[string]string{"a": "1", "b": "0"})
	e.ask(listenerType, map[string]string{"l": "1"})
	r.want(clusterType, "a=1")
	e.take(clusterType, nil, "", "d=1")
	r.restart()
	r.want(clusterType, "a=1 d=1")
	r.want(listenerType, "l=1")
}

func TestAgentsOwnResourceIsKept(t *testing.T) {
	r := newRig(t)
	r.Keep("table", "t", "7", []byte("body"))
	r.delta().start("a=1")
	r.delta().start("a=1") // another Envoy
	r.restart()
	if name, version, body := r.Last().One("table"); name != "t" || version != "7" || string(body) != "body" {
		t.Errorf("%q %q %q", name, version, body)
	}
	if name, _, _ := r.Last().One("other"); name != "" {
		t.Errorf("%q of a type that was not kept", name)
	}
}

// The file follows the key: after a renewal only the new key opens it.
func TestFileIsSealedAgainAfterARenewal(t *testing.T) {
	r := newRig(t)
	r.delta().start("a=1")
	r.written()
	old, _ := r.source.Current()
	renewed := *old
	fresh, _ := testkit.PKI(t).NewSVID("shop", "web").Current()
	renewed.Certificate = fresh.Certificate
	r.source.Set(&renewed)
	r.written()
	r.restart()
	r.want(clusterType, "a=1")
	r.stop()
	r.source.Set(old)
	r.start()
	r.want(clusterType, "nothing")
}

// While an xds-server serves Envoy the file stays young, also in a mesh where nothing changes. Without one it grows
// old, however often the agent starts.
func TestAgeCountsFromTheLastTimeThatAServerServed(t *testing.T) {
	r := newRig(t)
	end := r.Live()
	r.delta().start("a=1")
	r.written()
	for range 6 {
		before := testutil.ToFloat64(r.metrics.sealed)
		r.clock.Advance(6 * time.Hour)
		testkit.Eventually(t, testkit.Patience, func() error {
			r.clock.Advance(time.Second)
			if testutil.ToFloat64(r.metrics.sealed) == before {
				return errors.New("not written again")
			}
			return nil
		})
	}
	end()
	r.restart()
	for range 3 { // the third time it is a day old
		v := r.Last()
		if v == nil {
			t.Fatal("refused too early")
		}
		r.Adopt(v)
		r.Keep("table", "t", "1", nil) // is written
		r.clock.Advance(9 * time.Hour)
		r.restart()
	}
	r.want(clusterType, "nothing")
}

func TestRefusedFilesAreLoggedAndCounted(t *testing.T) {
	for _, tc := range []struct {
		reason string
		spoil  func(*rig)
	}{
		{reasonCorrupt, func(r *rig) { testkit.WriteFile(r.t, r.path, []byte("FLGOOD1\nshort")) }},
		{reasonCorrupt, func(r *rig) {
			file, err := os.ReadFile(r.path)
			if err != nil {
				r.t.Fatal(err)
			}
			testkit.WriteFile(r.t, r.path, file[:len(file)-1])
		}},
		{reasonForeign, func(r *rig) { r.node = "another" }},
		{reasonOld, func(r *rig) { r.clock.Advance(25 * time.Hour) }},
		{reasonUnreadable, func(r *rig) {
			if err := errors.Join(os.Remove(r.path), os.Mkdir(r.path, 0o700)); err != nil {
				r.t.Fatal(err)
			}
		}},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			r := newRig(t)
			r.delta().start("a=1")
			r.stop()
			tc.spoil(r)
			r.start()
			for range 3 {
				r.want(clusterType, "nothing")
			}
			if n := testutil.ToFloat64(r.metrics.refusals.WithLabelValues(tc.reason)); n != 1 {
				t.Errorf("counted %v times", n)
			}
			if text := r.log.String(); strings.Count(text, "sealed configuration is not used") != 1 {
				t.Errorf("logged %s", text)
			}
		})
	}
	r := newRig(t)
	r.want(clusterType, "nothing")
	if text := r.log.String(); text != "" {
		t.Errorf("a file that does not exist is logged: %s", text)
	}
}

// Without a certificate the file cannot be opened yet; that is no refusal.
func TestFileIsOpenedOnceThereIsAKey(t *testing.T) {
	r := newRig(t)
	r.delta().start("a=1")
	r.stop()
	m, _ := r.source.Current()
	r.source.Set(&tlsconf.Material{Roots: m.Roots, RootsPEM: m.RootsPEM})
	r.start()
	r.want(clusterType, "nothing")
	r.source.Set(m)
	r.want(clusterType, "a=1")
}

// A full disk costs the file, not the configuration in memory, and is mended by the next write.
func TestDiskThatIsFull(t *testing.T) {
	r := newRig(t)
	r.stop()
	var full atomic.Bool
	full.Store(true)
	r.fs.Fault = func(fileio.Step, string) error {
		if full.Load() {
			return syscall.ENOSPC
		}
		return nil
	}
	r.start()
	r.delta().start("a=1")
	for n := 1; n <= 2; n++ {
		testkit.Eventually(t, testkit.Patience, func() error {
			r.clock.Advance(every)
			if got := testutil.ToFloat64(r.metrics.failures); got < float64(n) {
				return fmt.Errorf("%v failures, want %d", got, n)
			}
			return nil
		})
	}
	if text := r.log.String(); strings.Count(text, "not kept for the next start") != 1 {
		t.Errorf("logged %s", text)
	}
	r.want(clusterType, "a=1")
	full.Store(false)
	r.written()
	r.restart()
	r.want(clusterType, "a=1")
}

func TestSizeIsBounded(t *testing.T) {
	r := newRig(t)
	r.stop()
	r.most = 2000
	r.start()
	e := r.delta()
	e.start("a=1")
	e.take(clusterType, nil, "", "b="+strings.Repeat("x", 2000))
	r.want(clusterType, "nothing")
	e.take(clusterType, nil, "", "c=1")
	r.want(clusterType, "nothing")
	if n := r.size; n > r.most {
		t.Errorf("%d bytes are kept", n)
	}
	r.delta().start("d=1") // the next Envoy
	r.want(clusterType, "d=1")
}

// A mesh whose endpoints change all the time is written once in 30 s, not never and not always.
func TestWritesAreSpacedAndNotPutOffForEver(t *testing.T) {
	r := newRig(t)
	e := r.delta()
	e.start("a=0")
	writes := func() float64 { return testutil.ToFloat64(r.metrics.sealed) }
	var seen []float64
	for i := range 120 {
		e.take(clusterType, nil, "", fmt.Sprintf("a=%d", i))
		testkit.Eventually(t, testkit.Patience, func() error { // Run has taken the change
			if len(r.changed) > 0 {
				return errors.New("not taken")
			}
			return nil
		})
		r.clock.Advance(time.Second)
		if w := writes(); w > 0 && !slices.Contains(seen, w) {
			seen = append(seen, w)
		}
	}
	if len(seen) < 2 || len(seen) > 5 {
		t.Errorf("%d writes in two minutes of changes", len(seen))
	}
}
