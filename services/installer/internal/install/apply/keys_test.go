package apply

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// ca is a workload of the ca with arguments.
func ca(kind string, args ...any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"kind": kind, "metadata": map[string]any{"name": "ca"},
		"spec": map[string]any{"template": map[string]any{"spec": map[string]any{
			"containers": []any{map[string]any{"name": "other"}, map[string]any{"name": "ca", "args": args}}}}}}}
}

func TestTheRootOfTheCAIsNotLost(t *testing.T) {
	const state = "--state-secret=istio-system/ca-state"
	disk, single, several := ca("Deployment", "--ca-dir=/d"), ca("Deployment", "--ca-dir=/d", state), ca("StatefulSet", state, "--lease=ca")
	for name, tc := range map[string]struct {
		changes []*Change
		prunes  []Verdict
		want    string
	}{
		"a new mesh":            {changes: []*Change{{After: several}}},
		"an upgrade":            {changes: []*Change{{Live: disk, After: disk}}},
		"a swap of a single ca": {changes: []*Change{{Live: disk, After: single}}},
		"replicas after it":     {changes: []*Change{{After: several}}, prunes: []Verdict{{Fate: Delete, Live: single}}},
		"one of them again":     {changes: []*Change{{After: single}}, prunes: []Verdict{{Fate: Delete, Live: several}}},
		"replicas at once":      {[]*Change{{After: several}}, []Verdict{{Fate: Delete, Live: disk}}, "values.ca.replicaCount=1"},
		"the volume again":      {[]*Change{{Live: single, After: disk}}, nil, "keep values.ca.signer"},
		"from replicas":         {[]*Change{{After: disk}}, []Verdict{{Fate: Delete, Live: several}}, "keep values.ca.signer"},
		"a ca that others keep": {[]*Change{{After: several}}, []Verdict{{Fate: Keep, Live: disk}}, ""},
		"no ca":                 {[]*Change{{Live: several}}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := &Plan{Changes: tc.changes, Prunes: tc.prunes}
			err := p.keysStay(false)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			if err := p.keysStay(true); err != nil || (len(p.Notes) == 0) != (tc.want == "") {
				t.Errorf("with force: %v, notes %q", err, p.Notes)
			}
		})
	}
}
