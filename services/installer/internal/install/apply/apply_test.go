package apply

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/inventory"
)

func TestFieldsThatTheClusterDecidesAreYielded(t *testing.T) {
	deployment := &unstructured.Unstructured{Object: map[string]any{"kind": "Deployment",
		"spec": map[string]any{"replicas": int64(2), "paused": false}}}
	fields := []cluster.ConflictField{{Manager: "x", Field: ".spec.replicas"}, {Manager: "x", Field: ".spec.paused"}}
	if _, found, _ := unstructured.NestedInt64(yield(deployment, fields, false).Object, "spec", "replicas"); !found {
		t.Error("the replicas of a workload that is not scaled are yielded")
	}
	got := yield(deployment, fields, true)
	if _, found, _ := unstructured.NestedInt64(got.Object, "spec", "replicas"); found {
		t.Error("the replicas of a workload that is scaled are not yielded")
	}
	if _, found, _ := unstructured.NestedBool(got.Object, "spec", "paused"); !found {
		t.Error("another field is yielded")
	}
	hook := func(name string) map[string]any {
		return map[string]any{"name": name, "failurePolicy": "Ignore", "sideEffects": "None",
			"clientConfig": map[string]any{"caBundle": "x", "url": "y"}}
	}
	hooks := &unstructured.Unstructured{Object: map[string]any{"kind": "ValidatingWebhookConfiguration",
		"webhooks": []any{hook("a.b"), hook("c")}}}
	got = yield(hooks, []cluster.ConflictField{
		{Field: `.webhooks[name="a.b"].failurePolicy`}, {Field: `.webhooks[name="c"].clientConfig.caBundle`},
		{Field: `.webhooks[name="c"].sideEffects`}, {Field: ".webhooks["},
	}, false)
	list, _, _ := unstructured.NestedSlice(got.Object, "webhooks")
	a, c := list[0].(map[string]any), list[1].(map[string]any)
	if a["failurePolicy"] != nil || c["failurePolicy"] != "Ignore" || c["sideEffects"] != "None" ||
		c["clientConfig"].(map[string]any)["caBundle"] != nil || a["clientConfig"].(map[string]any)["caBundle"] != "x" {
		t.Errorf("%v", list)
	}
}

func TestValuesOfSecretsAreNotShown(t *testing.T) {
	secret := func(value string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"kind": "Secret", "data": map[string]any{"key": value, "same": "s"}}}
	}
	before, after := Shown(secret("old"), secret("new"))
	a, b := before["data"].(map[string]any), after["data"].(map[string]any)
	if a["key"] != "***" || b["key"] != "*** (new)" || a["same"] != b["same"] || b["same"] != "***" {
		t.Errorf("%v, %v", a, b)
	}
}

// TestAServiceWaitsForPodsThatItsNewSelectorLeadsTo: but only if the selector that it has leads to Pods meanwhile.
func TestAServiceWaitsForPodsThatItsNewSelectorLeadsTo(t *testing.T) {
	change := func(group, kind, namespace string, live, after map[string]any) *Change {
		ch := &Change{Entry: inventory.Entry{ID: cluster.ID{Group: group, Kind: kind, Namespace: namespace, Name: "x"}}}
		for at, spec := range map[**unstructured.Unstructured]map[string]any{&ch.Live: live, &ch.After: after} {
			if spec != nil {
				*at = &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
			}
		}
		return ch
	}
	selects := func(key string) map[string]any { return map[string]any{"selector": map[string]any{key: "yes"}} }
	workload := func(namespace string, keys ...string) *Change {
		of := map[string]any{}
		for _, key := range keys {
			of[key] = "yes"
		}
		return change("apps", "Deployment", namespace, nil,
			map[string]any{"template": map[string]any{"metadata": map[string]any{"labels": of}}})
	}
	for name, tc := range map[string]struct {
		service, workload *Change
		want              bool
	}{
		"both lead there":           {change("", "Service", "n", selects("old"), selects("new")), workload("n", "old", "new"), true},
		"only the new one does":     {change("", "Service", "n", selects("old"), selects("new")), workload("n", "new"), false},
		"in another namespace":      {change("", "Service", "n", selects("old"), selects("new")), workload("m", "old", "new"), false},
		"the selector stays":        {change("", "Service", "n", selects("old"), selects("old")), workload("n", "old"), false},
		"it is new":                 {change("", "Service", "n", nil, selects("new")), workload("n", "old", "new"), false},
		"it goes":                   {change("", "Service", "n", selects("old"), nil), workload("n", "old", "new"), false},
		"it had no selector":        {change("", "Service", "n", map[string]any{}, selects("new")), workload("n", "new"), false},
		"something else selects so": {change("apps", "ReplicaSet", "n", selects("old"), selects("new")), workload("n", "old", "new"), false},
	} {
		if got := reselects(tc.service, []*Change{tc.service, tc.workload}); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestDeletionIsInReverse(t *testing.T) {
	verdict := func(group, kind, name string) Verdict {
		return Verdict{Entry: inventory.Entry{ID: cluster.ID{Group: group, Kind: kind, Name: name}}, Fate: Delete}
	}
	got := tiers([]Verdict{
		verdict("", "Namespace", "n"), verdict("apiextensions.k8s.io", "CustomResourceDefinition", "d"), verdict("", "ServiceAccount", "a"),
		verdict("apps", "Deployment", "b"),
	})
	if len(got[0]) != 2 || got[0][0].Name != "b" || got[0][1].Name != "a" || len(got[1]) != 1 || got[1][0].Name != "d" || len(got[2]) != 1 {
		t.Errorf("%v", got)
	}
}

func TestTagsOfARevisionThatGoesAreToldOf(t *testing.T) {
	hook := func(name, service, url string) *unstructured.Unstructured {
		client := map[string]any{"url": url}
		if service != "" {
			client = map[string]any{"service": map[string]any{"namespace": "mesh", "name": service}}
		}
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
			"metadata": map[string]any{"name": name, "labels": map[string]any{tagLabel: "prod"}},
			"webhooks": []any{map[string]any{"clientConfig": client}},
		}}
	}
	entry := func(group, kind, name string) inventory.Entry {
		return inventory.Entry{ID: cluster.ID{Group: group, Version: "v1", Kind: kind, Namespace: "mesh", Name: name}}
	}
	verdicts := []Verdict{
		{Entry: entry("", "Service", "injector-canary"), Fate: Delete},
		{Entry: entry("", "Service", "shared"), Fate: Release, Live: &unstructured.Unstructured{}},
		{Entry: entry("", "Service", "deleted"), Fate: Release},
		{Entry: entry("admissionregistration.k8s.io", "MutatingWebhookConfiguration", "own"), Fate: Delete,
			Live: hook("own", "", "https://ours/inject")},
	}
	for _, tc := range []struct {
		service, url string
		want         bool
	}{{"injector-canary", "", true}, {"deleted", "", true}, {"shared", "", false}, {"istiod", "", false}, {"", "https://ours/inject", true},
		{"", "https://theirs/inject", false}} {
		if got := leadsToGone(hook("tag", tc.service, tc.url), verdicts); got != tc.want {
			t.Errorf("a tag that calls %s%s leads to what goes: %v, want %v", tc.service, tc.url, got, tc.want)
		}
	}
	if v := tagVerdict(hook("tag", "injector-canary", ""), false); v.Fate != Keep || !strings.Contains(v.Reason, "fairlead tag remove prod") {
		t.Errorf("without a purge: %+v", v)
	}
	if v := tagVerdict(hook("tag", "injector-canary", ""), true); v.Fate != Delete {
		t.Errorf("with a purge: %+v", v)
	}
}
