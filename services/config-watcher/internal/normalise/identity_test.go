package normalise

import (
	"fmt"
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"
	"pgregory.net/rapid"
)

// TestNoLabelIsAnIdentity: whatever labels and annotations ServiceEntries and WorkloadEntries have, from whatever
// source, the identities and names that servers may have are those of serviceAccount and subjectAltNames alone.
func TestNoLabelIsAnIdentity(t *testing.T) {
	keys := []string{"security.istio.io/tlsMode", "istio.io/service-account", "serviceAccount", "service-account", "account", "spiffe",
		"alpha.istio.io/kubernetes-serviceaccounts", "alpha.istio.io/canonical-serviceaccounts", "istio.io/rev", "app", "s",
		"service.istio.io/canonical-name", "networking.istio.io/exportTo", "topology.istio.io/network", "kubernetes.io/service-account.name"}
	values := []string{"thief", "istio", "spiffe://cluster.local/ns/shop/sa/thief", "shop/thief", "web"}
	rapid.Check(t, func(r *rapid.T) {
		texts := func(name string) map[string]string {
			return rapid.MapOfN(rapid.SampledFrom(keys), rapid.SampledFrom(values), 0, 6).Draw(r, name)
		}
		account := rapid.SampledFrom([]string{"", "honest"}).Draw(r, "account")
		list := objects(t, `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec: {hosts: [web.example.com], resolution: STATIC, location: MESH_INTERNAL, ports: [{number: 80, name: http, protocol: HTTP}],
  workloadSelector: {labels: {of: web}}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: inline, namespace: shop}
spec: {hosts: [inline.example.com], resolution: STATIC, location: MESH_INTERNAL, ports: [{number: 80, name: http, protocol: HTTP}],
  endpoints: [{address: 10.7.0.2}]}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: web-1, namespace: shop}
spec: {address: 10.7.0.1, labels: {of: web}}
`)
		for _, o := range list {
			o.Source = rapid.SampledFrom([]string{"memory", "mcp/a:1", "consul/b", "kubernetes/c"}).Draw(r, "source")
			o.Labels, o.Annotations = texts("labels"), texts("annotations")
			switch b := o.Body.(type) {
			case *networking.WorkloadEntry:
				b.ServiceAccount = account
				for k, v := range texts("workload") {
					b.Labels[k] = v
				}
			case *networking.ServiceEntry:
				for _, e := range b.Endpoints {
					e.Labels = texts("endpoint")
				}
			}
		}
		s := newState(t, "")
		s.change(put(list...)...)
		var got []string
		for k, res := range s.held {
			if w := res.GetWorkload(); w.GetIdentity() != "" {
				got = append(got, w.GetIdentity())
			}
			if names := res.GetService().GetSubjectAltNames(); len(names) > 0 {
				got = append(got, fmt.Sprint(k, names))
			}
			for _, e := range res.GetEndpointSet().GetEndpoints() {
				if e.Identity != "" {
					got = append(got, e.Identity)
				}
			}
		}
		var want []string
		if account != "" {
			want = []string{"spiffe://cluster.local/ns/shop/sa/honest"}
		}
		slices.Sort(got)
		if got = slices.Compact(got); !slices.Equal(got, want) {
			r.Fatalf("identities %q, want %q", got, want)
		}
	})
}
