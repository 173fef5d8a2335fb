package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/protorand"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// changesOf is the number of random changes: $MCP_CHANGES, by default 100.
func changesOf(t *testing.T) int {
	t.Helper()
	text := os.Getenv("MCP_CHANGES")
	if text == "" {
		return 100
	}
	n, err := strconv.Atoi(text)
	testkit.NoError(t, err)
	return n
}

// manifest makes a random object; nil if it cannot be written down.
func manifest(random *rand.Rand, k *kind, namespace, name string) []byte {
	spec := k.spec()
	protorand.Istio.FillSeeded(random.Uint64N(5000), spec)
	out, err := json.Marshal(map[string]any{
		"apiVersion": k.Group + "/" + k.Version, "kind": k.kind, "spec": spec,
		"metadata": map[string]any{"name": name, "namespace": namespace, "labels": map[string]string{"n": strconv.Itoa(random.IntN(9))},
			"annotations": map[string]string{"example.com/a": strconv.Itoa(random.IntN(9))}},
	})
	if err != nil {
		return nil
	}
	return out
}

// TestIstiodAndConfigWatcherReadEachOther: random objects of all kinds are written, changed and deleted on both sides.
// In the end each has all, with every field, and nothing that was deleted stays, although each tells the other what it
// has.
func TestIstiodAndConfigWatcherReadEachOther(t *testing.T) {
	r := newRig(t)
	r.startWatcher()
	r.startIstiod()
	r.follow()
	changes, seed := changesOf(t), uint64(time.Now().UnixNano())
	t.Logf("%d changes, seed %d", changes, seed)
	random := rand.New(rand.NewPCG(seed, 1))
	want := set{}
	done, deleted := 0, 0
	for tries := 0; done < changes; tries++ {
		if tries > 60*changes {
			t.Fatalf("of %d objects only %d are accepted by both", tries, done)
		}
		k := &kinds[random.IntN(len(kinds))]
		namespace := []string{west, east}[random.IntN(2)]
		name := fmt.Sprintf("o%d", random.IntN(6))
		key := k.kind + " " + namespace + "/" + name
		if random.IntN(4) == 0 {
			if _, there := want[key]; !there {
				continue
			}
			testkit.NoError(t, r.remove(k, namespace, name))
			delete(want, key)
			done, deleted = done+1, deleted+1
			continue
		}
		text := manifest(random, k, namespace, name)
		if text == nil || stricter(k, text) || r.judge(text) != nil || r.write(k, namespace, name, text) != nil {
			continue // one of both takes no such object
		}
		testkit.NoError(t, want.add(text))
		if done++; done%50 == 0 {
			r.equal(want)
		}
	}
	r.equal(want)
	t.Logf("%d objects after %d deletions", len(want), deleted)
	// Everything of one side goes at once, and istiod starts anew.
	gone := set{}
	maps.Copy(gone, want)
	for i := range kinds {
		for n := range 6 {
			key := fmt.Sprintf("%s %s/o%d", kinds[i].kind, east, n)
			if _, there := want[key]; there {
				testkit.NoError(t, r.remove(&kinds[i], east, fmt.Sprintf("o%d", n)))
				delete(want, key)
			}
		}
	}
	r.equal(want)
	r.istiod.Kill()
	if got, err := r.ofWatcher(t.Context()); err != nil || got.difference(want) != "" {
		t.Errorf("with istiod away: %v, %s", err, got.difference(want))
	}
	r.startIstiod()
	r.equal(want)
}

// stricter reports whether an object is one that istiod drops in silence although API servers take it: a filter of
// access logs without an expression.
func stricter(k *kind, text []byte) bool {
	return k.kind == "Telemetry" && bytes.Contains(bytes.ReplaceAll(text, []byte(" "), nil), []byte(`"filter":{}`))
}

// equal waits until both sides have objects.
func (r *rig) equal(want set) {
	r.t.Helper()
	r.nudge()
	testkit.Eventually(r.t, testkit.Patience, func() error {
		ours, err := r.ofWatcher(r.t.Context())
		if err != nil {
			return err
		}
		if d := ours.difference(want); d != "" {
			return errors.New("config-watcher: " + d)
		}
		theirs, err := r.ofIstiod(r.t.Context())
		if err != nil {
			return err
		}
		if d := theirs.difference(want); d != "" {
			return errors.New("istiod: " + d)
		}
		return nil
	})
}

// nudge changes an object that plays no part: istiod tells what no proxy of its own needs, such as a WorkloadEntry that
// no ServiceEntry selects, with the next change that one needs.
func (r *rig) nudge() {
	r.t.Helper()
	r.nudges++
	text := fmt.Sprintf(`{"apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry", "metadata": {"name": "nudge", "namespace": %q},
		"spec": {"hosts": ["nudge.example.com"], "resolution": "DNS", "ports": [{"number": %d, "name": "http", "protocol": "HTTP"}]}}`,
		system, 1000+r.nudges)
	testkit.NoError(r.t, r.write(kindOf("ServiceEntry"), system, "nudge", []byte(text)))
}

// judge asks both sides whether they take an object, and changes nothing.
func (r *rig) judge(text []byte) error {
	_, err := r.store.Apply(r.t.Context(), &configv1.ApplyRequest{DryRun: true, Documents: []*configv1.Document{{Name: "o", Content: text}}})
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal(text, u); err != nil {
		return err
	}
	u.SetNamespace(west)
	_, err = r.objects.Resource(kindOf(u.GetKind()).GroupVersionResource).Namespace(west).Apply(r.t.Context(), u.GetName(), u,
		metav1.ApplyOptions{FieldManager: "test", Force: true, DryRun: []string{metav1.DryRunAll}})
	return err
}

// write writes an object: those of west into the API server, those of east by config-watcher's API.
func (r *rig) write(k *kind, namespace, name string, text []byte) error {
	if namespace == east {
		_, err := r.store.Apply(r.t.Context(), &configv1.ApplyRequest{Documents: []*configv1.Document{{Name: "o", Content: text}}})
		return err
	}
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal(text, u); err != nil {
		return err
	}
	client := r.objects.Resource(k.GroupVersionResource).Namespace(namespace)
	before, err := client.Get(r.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		_, err = client.Create(r.t.Context(), u, metav1.CreateOptions{})
		return err
	}
	u.SetResourceVersion(before.GetResourceVersion())
	_, err = client.Update(r.t.Context(), u, metav1.UpdateOptions{})
	return err
}

func (r *rig) remove(k *kind, namespace, name string) error {
	if namespace == west {
		return r.objects.Resource(k.GroupVersionResource).Namespace(namespace).Delete(r.t.Context(), name, metav1.DeleteOptions{})
	}
	_, err := r.store.Delete(r.t.Context(), &configv1.DeleteRequest{Key: &configv1.ObjectKey{Kind: k.kind,
		Namespace: namespace, Name: name}})
	return err
}
