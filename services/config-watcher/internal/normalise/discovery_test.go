package normalise

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"fairlead.dev/services/config-watcher/internal/object"
)

const selectedMesh = `
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    discoverySelectors:
    - matchLabels: {team: a}
    - matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [named]}]
---
`

const threeNamespaces = `
apiVersion: v1
kind: Namespace
metadata: {name: a, labels: {team: a}}
---
apiVersion: v1
kind: Namespace
metadata: {name: b, labels: {team: b}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: a}
spec: {ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: b}
spec: {ports: [{port: 80}]}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: vm, namespace: b}
spec: {address: 10.0.0.1}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web, namespace: b}
spec: {host: web}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: istio-system}
spec: {egress: [{hosts: ["*/*"]}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: named}
spec: {ports: [{port: 80}]}
`

// namespaces lists the namespaces of which the state has a resource other than the Namespace itself.
func (s *state) namespaces() string {
	var out []string
	for k := range s.held {
		if k.Namespace != "" && !slices.Contains(out, k.Namespace) {
			out = append(out, k.Namespace)
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// TestDiscoverySelectors: objects of an undiscovered namespace have no effect; they come and go with the namespace's
// labels and with the selectors.
func TestDiscoverySelectors(t *testing.T) {
	const all, some = "a b istio-system named", "a istio-system named"
	selected := objects(t, selectedMesh)
	for name, order := range map[string][]*object.Object{
		"selectors first": append(objects(t, selectedMesh), objects(t, threeNamespaces)...),
		"selectors last":  append(objects(t, threeNamespaces), selected...),
	} {
		t.Run(name, func(t *testing.T) {
			s := newState(t, "")
			for _, o := range order {
				s.change(put(o)...)
			}
			if got := s.namespaces(); got != some {
				t.Fatalf("sees %q, want %q", got, some)
			}
			s.apply("{apiVersion: v1, kind: Namespace, metadata: {name: b, labels: {team: a}}}")
			if got := s.namespaces(); got != all {
				t.Fatalf("with b selected: sees %q, want %q", got, all)
			}
			s.apply("{apiVersion: v1, kind: Namespace, metadata: {name: b}}")
			if got := s.namespaces(); got != some {
				t.Fatalf("with b left out again: sees %q, want %q", got, some)
			}
			// An object removed while its namespace was undiscovered does not come back.
			for _, o := range order {
				if o.Key.Namespace == "b" && o.Key.Kind == "DestinationRule" {
					s.change(Change{o.Key, nil})
				}
			}
			s.change(Change{selected[0].Key, nil})
			if got := s.namespaces(); got != all {
				t.Fatalf("without selectors: sees %q, want %q", got, all)
			}
			for k := range s.held {
				if k.Kind == "DestinationRule" {
					t.Errorf("%v is back", k)
				}
			}
		})
	}
}

// TestHiddenEndpointsComeBack: an Endpoints object of a namespace that is left out and selected again has its endpoints
// again.
func TestHiddenEndpointsComeBack(t *testing.T) {
	s := newState(t, selectedMesh+`
---
{apiVersion: v1, kind: Namespace, metadata: {name: b, labels: {team: a}}}
---
{apiVersion: v1, kind: Service, metadata: {name: outside, namespace: b}, spec: {clusterIP: 10.0.0.9, ports: [{name: http, port: 80}]}}
---
{apiVersion: v1, kind: Endpoints, metadata: {name: outside, namespace: b}, subsets: [{addresses: [{ip: 10.9.0.1}], ports: [{name: http, port: 80}]}]}
`)
	const name = "outside.b.svc.cluster.local:80/Kubernetes"
	want := s.endpoints("b", name)
	if !strings.Contains(want, "10.9.0.1:80") {
		t.Fatalf("endpoints %q", want)
	}
	for range 2 {
		s.apply("{apiVersion: v1, kind: Namespace, metadata: {name: b}}")
		if got := s.namespaces(); strings.Contains(got, "b") {
			t.Fatalf("sees %q", got)
		}
		s.apply("{apiVersion: v1, kind: Namespace, metadata: {name: b, labels: {team: a}}}")
		if got := s.endpoints("b", name); got != want {
			t.Fatalf("endpoints %q, want %q", got, want)
		}
	}
}

// TestOneAddressInTwoSlices: of an address that two slices list in different states, the ready one counts, whichever
// came first.
func TestOneAddressInTwoSlices(t *testing.T) {
	slice := func(name string, ready bool) string {
		return fmt.Sprintf("{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %s, namespace: apps, labels: "+
			"{kubernetes.io/service-name: s}}, "+
			"addressType: IPv4, endpoints: [{addresses: [10.9.0.1], conditions: {ready: %v}}], ports: [{name: http, port: 80}]}", name, ready)
	}
	const svc = "{apiVersion: v1, kind: Service, metadata: {name: s, namespace: apps}, spec: {clusterIP: 10.0.0.9, ports: [{name: http, " +
		"port: 80}]}}"
	var seen []string
	for _, order := range [][]string{{slice("x", true), slice("z", false)}, {slice("z", false), slice("x", true)},
		{slice("x", false), slice("z", true)}} {
		s := newState(t, svc)
		for _, one := range order {
			s.apply(one)
		}
		seen = append(seen, s.endpoints("apps", "s.apps.svc.cluster.local:80/Kubernetes"))
	}
	ready := newState(t, svc+"\n---\n"+slice("x", true)).endpoints("apps", "s.apps.svc.cluster.local:80/Kubernetes")
	for _, got := range seen {
		if got != ready {
			t.Errorf("endpoints %q, want %q", seen, ready)
		}
	}
}
