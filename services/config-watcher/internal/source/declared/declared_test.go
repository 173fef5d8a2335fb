package declared

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	mesh "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source"
)

// fake is a source that the test sends events from.
type fake struct {
	name    string
	handler source.Handler
	running chan struct{}
	ended   chan struct{}

	mu     sync.Mutex
	status source.Status
}

func (f *fake) Name() string            { return f.name }
func (f *fake) Handle(h source.Handler) { f.handler = h }
func (f *fake) HasSynced() bool         { return f.Status().Synced }
func (f *fake) Run(ctx context.Context) error {
	close(f.running)
	<-ctx.Done()
	close(f.ended)
	return nil
}

func (f *fake) Status() source.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

func (f *fake) set(s source.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status = s
}

func gateway(name string) object.Key {
	return object.Key{Group: kinds.GroupNetworking, Kind: "Gateway", Namespace: "a", Name: name}
}

func (f *fake) put(keys ...object.Key) {
	var events []source.Event
	for _, k := range keys {
		events = append(events, source.Event{Key: k, Object: &object.Object{Key: k, Source: f.name}})
	}
	f.handler(context.Background(), f.name, events)
}

// rig runs Sources and keeps what they deliver.
type rig struct {
	*Sources
	t     *testing.T
	clock *testkit.Clock

	mu      sync.Mutex
	opened  map[string]*fake // the newest of each name
	arrange string
	objects map[string]string
}

func newRig(t *testing.T, timeout ...time.Duration) *rig {
	r := &rig{t: t, clock: testkit.NewClock(time.Now()), opened: map[string]*fake{}, objects: map[string]string{}}
	r.Sources = New(Config{Log: testkit.Logger(t), Clock: r.clock, Timeout: append(timeout, 0)[0],
		Open: func(c *mesh.ConfigSource) (source.Source, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if strings.Contains(c.Address, "bad") {
				return nil, errors.New("is bad")
			}
			f := &fake{name: c.Address, running: make(chan struct{}), ended: make(chan struct{})}
			r.opened[c.Address] = f
			return f, nil
		},
		Arrange: func(names []string, kubernetes bool) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.arrange = fmt.Sprint(names, kubernetes)
		}})
	r.Handle(func(_ context.Context, from string, events []source.Event) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, e := range events {
			if e.Object == nil {
				delete(r.objects, from+" "+e.Key.Name)
			} else {
				r.objects[from+" "+e.Key.Name] = from
			}
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

// mesh puts a mesh configuration into force and waits until it is applied.
func (r *rig) mesh(text string) {
	r.t.Helper()
	k := object.Key{Kind: "ConfigMap", Namespace: kinds.MeshNamespace, Name: kinds.MeshName}
	o := &object.Object{Key: k, Body: &corev1.ConfigMap{Data: map[string]string{kinds.MeshKey: text}}}
	r.Take([]normalise.Change{{Key: k, Object: o}})
	testkit.Eventually(r.t, testkit.Patience, func() error {
		r.Sources.mu.Lock()
		defer r.Sources.mu.Unlock()
		if !r.applied {
			return errors.New("not applied")
		}
		return nil
	})
}

func (r *rig) source(name string) *fake {
	r.t.Helper()
	r.mu.Lock()
	f := r.opened[name]
	r.mu.Unlock()
	if f == nil {
		r.t.Fatalf("no source %s", name)
	}
	<-f.running
	return f
}

func (r *rig) has(want string) {
	r.t.Helper()
	testkit.Eventually(r.t, testkit.Patience, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if got := strings.Join(slices.Sorted(maps.Keys(r.objects)), ", "); got != want {
			return fmt.Errorf("got %q, want %q", got, want)
		}
		return nil
	})
}

// TestSourcesFollowTheMeshConfiguration: a new address is read, and one that is gone takes its objects with it at once.
func TestSourcesFollowTheMeshConfiguration(t *testing.T) {
	r := newRig(t)
	if !r.HasSynced() {
		t.Error("without a mesh configuration there is nothing to wait for")
	}
	r.mesh("configSources: [{address: 'xds://a:1'}, {address: 'fs:///dir'}]")
	if r.arrange != "[xds://a:1 fs:///dir] false" {
		t.Errorf("arranged as %s", r.arrange)
	}
	if r.Status().Settled() {
		t.Error("settled before its sources are")
	}
	a, dir := r.source("xds://a:1"), r.source("fs:///dir")
	a.put(gateway("one"))
	// A directory has objects of all kinds; those of a source of configuration count.
	dir.put(gateway("two"), object.Key{Kind: "Service", Namespace: "a", Name: "s"},
		object.Key{Kind: "ConfigMap", Namespace: kinds.MeshNamespace, Name: kinds.MeshName})
	r.has("fs:///dir two, xds://a:1 one")
	a.set(source.Status{Synced: true, Objects: 1})
	dir.set(source.Status{LastGood: time.Unix(7, 0), Degraded: errors.New("away")})
	if st := r.Status(); st.Synced || !st.LastGood.Equal(time.Unix(7, 0)) || st.Degraded == nil || st.Objects != 1 {
		t.Errorf("status %+v", st)
	}
	if got := fmt.Sprint(r.Counts()); got != "map[away:1 refused:0 synced:1]" {
		t.Errorf("counts %s", got)
	}
	dir.set(source.Status{LastGood: time.Unix(7, 0)})
	a.set(source.Status{})
	if got := fmt.Sprint(r.Counts()); got != "map[reading:1 refused:0 restored:1]" {
		t.Errorf("counts %s", got)
	}
	a.set(source.Status{Synced: true, Objects: 1})
	r.mesh("configSources: [{address: 'xds://a:1'}, {address: 'k8s://'}]")
	r.has("xds://a:1 one")
	<-dir.ended
	if r.arrange != "[xds://a:1] true" || r.source("xds://a:1") != a || !r.HasSynced() {
		t.Errorf("arranged as %s; the source that stays is started anew, or not synced", r.arrange)
	}
	// A mesh configuration that is not valid changes nothing.
	r.mesh("configSources: [{address: 'ftp://a:1'}]")
	r.has("xds://a:1 one")
	r.mesh("")
	r.has("")
	if r.arrange != "[] true" {
		t.Errorf("arranged as %s", r.arrange)
	}
}

// TestOtherSettingsOfAnAddress: the objects stay until the new source has been read.
func TestOtherSettingsOfAnAddress(t *testing.T) {
	r := newRig(t)
	r.mesh("configSources: [{address: 'xds://a:1'}]")
	r.source("xds://a:1").put(gateway("one"), gateway("two"))
	r.has("xds://a:1 one, xds://a:1 two")
	r.mesh("configSources: [{address: 'xds://a:1', tlsSettings: {mode: ISTIO_MUTUAL}}]")
	a := r.source("xds://a:1")
	r.has("xds://a:1 one, xds://a:1 two")
	a.put(gateway("two"), gateway("three"))
	r.has("xds://a:1 one, xds://a:1 three, xds://a:1 two")
	a.set(source.Status{Synced: true})
	testkit.Eventually(t, testkit.Patience, func() error {
		r.clock.Advance(checkEvery)
		r.mu.Lock()
		defer r.mu.Unlock()
		if got := len(r.objects); got != 2 {
			return fmt.Errorf("%d objects", got)
		}
		return nil
	})
	r.has("xds://a:1 three, xds://a:1 two")
}

// TestASourceThatCannotBeOpened is named with its field, and the others are read.
func TestASourceThatCannotBeOpened(t *testing.T) {
	r := newRig(t)
	r.mesh("configSources: [{address: 'xds://bad:1'}, {address: 'xds://a:1'}]")
	r.source("xds://a:1")
	if n := r.Counts()[Refused]; n != 1 {
		t.Errorf("%d are refused", n)
	}
	found := r.Status().Problems
	if len(found) != 1 || found[0].Field != "configSources[0].address" || found[0].Remedy == "" {
		t.Errorf("problems %v", found)
	}
}

// TestTheMeshWaitsForASource: as long as it takes, or for a time that the administrator has set.
func TestTheMeshWaitsForASource(t *testing.T) {
	for timeout, waits := range map[time.Duration]bool{0: true, time.Minute: false} {
		r := newRig(t, timeout)
		r.mesh("configSources: [{address: 'xds://a:1'}, {address: 'xds://b:1'}]")
		r.source("xds://a:1").set(source.Status{Synced: true})
		r.source("xds://b:1").set(source.Status{Degraded: errors.New("away")})
		r.clock.Advance(time.Minute - time.Second)
		if r.Status().Settled() {
			t.Errorf("%s: settled too early", timeout)
		}
		r.clock.Advance(time.Second)
		st := r.Status()
		if st.Settled() == waits || !waits && !strings.Contains(st.Degraded.Error(), "xds://b:1 was not read within 1m0s (--config") {
			t.Errorf("%s: status %+v", timeout, st)
		}
	}
}
