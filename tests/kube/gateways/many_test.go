package gateways

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/pkg/testkit"
)

// versions are those of all objects of Gateways.
func (r *rig) versions() map[string]string {
	r.t.Helper()
	out := map[string]string{}
	for _, kind := range made {
		list, err := r.objects.Resource(resources[kind]).List(r.t.Context(), metav1.ListOptions{LabelSelector: "gateway.istio.io/managed"})
		testkit.NoError(r.t, err)
		for _, o := range list.Items {
			out[kind+" "+o.GetNamespace()+"/"+o.GetName()] = o.GetResourceVersion()
		}
	}
	return out
}

// TestAHundredGateways made at once: each object is written once, a Gateway of another namespace does not wait for
// them, and nothing is written while nothing changes, not by another leader either.
func TestAHundredGateways(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.namespace("team-b", nil)
	d := r.start()
	var all strings.Builder
	const n = 100
	for i := range n {
		all.WriteString(gateway(apart, fmt.Sprintf("web-%d", i), "", ""))
	}
	r.Apply(t, all.String())
	r.Apply(t, gateway("team-b", "web", "", ""))
	begin := time.Now()
	r.has("team-b", "web-istio", standard...)
	alone := time.Since(begin)
	want := len(standard) * (n + 1)
	testkit.Eventually(t, patience, func() error {
		if got := len(r.versions()); got != want {
			return fmt.Errorf("%d objects of %d", got, want)
		}
		return nil
	})
	t.Logf("the Gateway of another namespace has its objects after %v, all after %v", alone, time.Since(begin))
	settled := func(d *deployer, most float64) {
		t.Helper()
		testkit.Eventually(t, patience, func() error {
			if got := d.metric(t, `fairlead_gateways_gateways{result="ok"}`); got != n+1 {
				return fmt.Errorf("%v Gateways are as they are to be", got)
			}
			return nil
		})
		if got := d.metric(t, `fairlead_gateways_writes_total{verb="apply"}`); got > most {
			t.Errorf("%v writes, want %v", got, most)
		}
	}
	settled(d, float64(want))
	before, looks := r.versions(), d.metric(t, `fairlead_gateways_reconciles_total{result="ok"}`)
	// A status is no reason to look.
	_, err := r.objects.Resource(resources["Gateway"]).Namespace(apart).Patch(t.Context(), "web-0", types.MergePatchType,
		[]byte(`{"status":{"conditions":[]}}`), metav1.PatchOptions{}, "status")
	testkit.NoError(t, err)
	r.Apply(t, gateway("team-b", "last", "", "")) // which comes after it
	r.has("team-b", "last-istio", standard...)
	if got := d.metric(t, `fairlead_gateways_writes_total{verb="apply"}`); got != float64(want+len(standard)) {
		t.Errorf("%v writes after one more Gateway, want %d", got, want+len(standard))
	}
	if got := d.metric(t, `fairlead_gateways_reconciles_total{result="ok"}`); got > looks+8 {
		t.Errorf("%v looks at Gateways while one was made", got-looks)
	}
	r.remove("Gateway", "team-b", "last")

	// The next leader does not know what was written, and changes nothing.
	testkit.NoError(t, d.Stop(patience))
	settled(r.start(), float64(want+len(standard)))
	after := r.versions()
	maps.DeleteFunc(after, func(o, _ string) bool { return strings.HasSuffix(o, "/last-istio") })
	if !maps.Equal(before, after) {
		t.Error("another leader has written objects that were as they are to be")
	}
}

// TestRevisionsDeployTheirOwn: a Gateway's label, or that of its namespace, says which revision deploys it, by its name
// or a tag, and nobody else does.
func TestRevisionsDeployTheirOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Apply(t, r.fairlead("manifest", "generate", "--set", "profile=minimal", "--set", "values.base.enableGatewayAPICRDs=true", "--set", "revision=canary"))
	r.namespace("of-canary", map[string]string{"istio.io/rev": "canary"})
	r.namespace("of-tag", map[string]string{"istio.io/rev": "prod"})
	r.start()
	r.start("--revision", "canary")
	tag := func(to string) {
		t.Helper()
		r.Apply(t, "apiVersion: admissionregistration.k8s.io/v1\nkind: MutatingWebhookConfiguration\n"+
			"metadata: {name: istio-revision-tag-prod, labels: {istio.io/tag: prod, istio.io/rev: "+to+"}}\n")
	}
	tag("default")
	r.Apply(
		t,
		gateway(apart, "plain", "", "")+gateway(apart, "new", ", labels: {istio.io/rev: canary}", "")+gateway("of-canary", "web", "", "")+
			gateway("of-tag", "web", "", "")+gateway(apart, "nobody", ", labels: {istio.io/rev: gone}", ""),
	)
	of := func(namespace, name, revision string) {
		t.Helper()
		r.has(namespace, name, standard...)
		testkit.Eventually(t, patience, func() error {
			if got := r.get("Deployment", namespace, name).GetLabels()["istio.io/rev"]; got != revision {
				return fmt.Errorf("%s/%s is of revision %s, not %s", namespace, name, got, revision)
			}
			return nil
		})
	}
	of(apart, "plain-istio", "default")
	of(apart, "new-istio", "canary")
	of("of-canary", "web-istio", "canary")
	of("of-tag", "web-istio", "default")
	r.has(apart, "nobody-istio")
	before := r.versions()
	tag("canary")
	of("of-tag", "web-istio", "canary")
	after := r.versions()
	for o, version := range before {
		if !strings.Contains(o, "of-tag/") && after[o] != version {
			t.Errorf("%s was written", o)
		}
	}
}
