package normalise

import (
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
