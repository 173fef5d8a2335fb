package kube

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"k8s.io/client-go/dynamic"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/tests/internal/kubeapi"
)

var (
	historySeed   = flag.Uint64("history.seed", 0, "draws the same random history again; 0 draws a new one")
	historyEvents = flag.Int("history.events", 90, "random events in a history")
)

// TestStreamedStateIsThatOfAFreshStart makes random changes in a real API server, the configuration API and a file,
// while connections are cut or silent, the API server is restarted and namespaces are deleted. What a subscriber then
// holds must be, byte for byte, what a config-watcher sends that starts afresh from the same sources. Before that, the
// newest valid state of each object must be in force. package differential of config-watcher does the same with an API
// server in the process, a thousand times faster.
func TestStreamedStateIsThatOfAFreshStart(t *testing.T) {
	seed := *historySeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("repeat this history with -history.seed=%d", seed)
	s := kubeapi.Start(t, kubeapi.Options{Controllers: []string{"namespace-controller"}})
	s.ApplyCRDs(t)
	s.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: apps}}\n---\n{apiVersion: v1, kind: Namespace, metadata: {name: other}}")
	client, err := dynamic.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	wire, kubeconfig := newCable(t, s)
	dir, store := t.TempDir(), filepath.Join(t.TempDir(), "store")
	if err := os.Mkdir(store, 0o700); err != nil {
		t.Fatal(err)
	}
	h := &history{
		t: t, server: s, client: client, wire: wire, dir: dir, random: rand.New(rand.NewPCG(seed, 1)),
		cluster: map[objectID]*versionOf{}, store: map[objectID]*versionOf{}, file: map[objectID]*versionOf{},
	}
	h.write()
	args := []string{"--config-dir", dir, "--store-dir", store}
	h.w = startWatcher(t, kubeconfig, args...)
	v := h.w.subscribe()
	for range 2 {
		for range *historyEvents / 2 {
			h.event()
		}
		h.settle()
	}
	h.repair()
	h.settle()
	t.Logf("%d states of objects were written", h.serial)

	h.w.stop() // a store belongs to one process
	fresh := newReplica(t, h.w.ca, s.Kubeconfig, args...)
	fresh.start()
	fresh.ready()
	want := fresh.subscribe()
	testkit.Eventually(t, patience, func() error { return equal(t, want, v) })
}

// equal compares what two subscribers hold.
func equal(t *testing.T, want, got *view) error {
	t.Helper()
	w, g := want.all(), got.all()
	if a, b := slices.Sorted(maps.Keys(w)), slices.Sorted(maps.Keys(g)); !slices.Equal(a, b) {
		return fmt.Errorf("resources held (-fresh +held):\n%s", cmp.Diff(a, b))
	}
	for k, r := range w {
		a, errA := proto.MarshalOptions{Deterministic: true}.Marshal(r)
		b, errB := proto.MarshalOptions{Deterministic: true}.Marshal(g[k])
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		if !slices.Equal(a, b) {
			return fmt.Errorf("%s (-fresh +held):\n%s", k, cmp.Diff(r, g[k], protocmp.Transform()))
		}
	}
	if len(w) == 0 {
		return fmt.Errorf("nothing is held")
	}
	return nil
}

func (v *view) all() map[string]*configv1.Resource {
	v.mu.Lock()
	defer v.mu.Unlock()
	return maps.Clone(v.held)
}
