package normalise

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/resource"
)

// registered makes what a registry's source delivers: ServiceEntry web of namespace shop and n WorkloadEntries of it.
func registered(t *testing.T, protocol string, n int, is object.Registered) []*object.Object {
	t.Helper()
	text := fmt.Sprintf(`
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: reg.web, namespace: shop, creationTimestamp: "2030-01-01T00:00:00Z"}
spec: {hosts: [web.service.consul], resolution: STATIC, location: MESH_EXTERNAL, ports: [{number: 80, name: service, protocol: %s}],
  workloadSelector: {labels: {s: web}}}
`, protocol)
	for i := range n {
		text += fmt.Sprintf(`---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: reg.web.%d, namespace: shop}
spec: {address: 10.7.0.%d, labels: {s: web, app: payments}, ports: {service: 9%d}, serviceAccount: %q}
`, i, i+1, i, is.Account)
	}
	out := objects(t, text)
	is.Service = "reg.web"
	out[0].Registered = &is
	for _, o := range out[1:] {
		o.Registered = &object.Registered{Service: "reg.web"}
	}
	return out
}

// addresses lists the endpoints of a set: "address:port".
func (s *state) addresses(namespace, name string) []string {
	var out []string
	for _, e := range s.set(namespace, name).GetEndpoints() {
		out = append(out, fmt.Sprintf("%s:%d", e.Address, e.Port))
	}
	return out
}

func (s *state) set(namespace, name string) *configv1.EndpointSet {
	return s.held[resource.Key{Kind: "EndpointSet", Namespace: namespace, Name: name}].GetEndpointSet()
}

// Whoever may register somewhere chooses labels, but not which service they lead to.
func TestLabelsOfARegistryReachNoOtherService(t *testing.T) {
	s := newState(t, `
apiVersion: v1
kind: Service
metadata: {name: payments, namespace: shop}
spec: {clusterIP: 10.96.0.1, selector: {app: payments}, ports: [{name: http, port: 80}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: mine, namespace: shop}
spec: {hosts: [mine.example.com], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}],
  workloadSelector: {labels: {app: payments}}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: own, namespace: shop}
spec: {address: 10.8.0.1, labels: {app: payments, s: web}}
`)
	s.change(put(registered(t, "HTTP", 1, object.Registered{Account: "web"})...)...)
	for host, want := range map[string]string{"payments.shop.svc.cluster.local": "10.8.0.1:80", "mine.example.com": "10.8.0.1:80",
		"web.service.consul": "10.7.0.1:90"} {
		if got := s.addresses("shop", host+":80/Kubernetes"); !slices.Equal(got, []string{want}) {
			t.Errorf("%s leads to %v, want %s", host, got, want)
		}
	}
	w := s.held[resource.Key{Kind: "Workload", Namespace: "shop", Name: "reg.web.0"}].GetWorkload()
	if len(w.GetTargets()) != 1 || w.Targets[0].Hostname != "web.service.consul" {
		t.Errorf("the instance is a target of %v", w.GetTargets())
	}
}

// The account that a rule gives is what clients accept, also before there is an instance; without one nothing is
// accepted, and no proxy can belong to an instance.
func TestTheAccountOfARegistrysRule(t *testing.T) {
	for account, want := range map[string][]string{"": nil, "web": {"spiffe://cluster.local/ns/shop/sa/web"}} {
		for n := range 2 {
			s := newState(t, "")
			s.change(put(registered(t, "HTTP", n, object.Registered{Account: account})...)...)
			if got := s.service("shop", "web.service.consul").SubjectAltNames; !slices.Equal(got, want) {
				t.Errorf("account %q, %d instances: %v is accepted, want %v", account, n, got, want)
			}
			w := s.held[resource.Key{Kind: "Workload", Namespace: "shop", Name: "reg.web.0"}].GetWorkload()
			if is := w != nil; is != (account != "" && n > 0) {
				t.Errorf("account %q, %d instances: workload %v", account, n, w)
			}
		}
	}
}

func TestHealthOfARegistrysInstance(t *testing.T) {
	list := registered(t, "HTTP", 3, object.Registered{})
	list[1].Health = &object.Health{Well: true, Counts: true}
	list[2].Health = &object.Health{Counts: true}
	list[3].Health = &object.Health{Counts: true, Draining: true}
	s := newState(t, "")
	s.change(put(list...)...)
	var got []string
	for _, e := range s.set("shop", "web.service.consul:80/Kubernetes").Endpoints {
		got = append(got, e.Health.String())
	}
	if want := []string{"HEALTH_READY", "HEALTH_NOT_READY", "HEALTH_DRAINING"}; !slices.Equal(got, want) {
		t.Errorf("health %v, want %v", got, want)
	}
}

func TestAliasesOfARegistrysService(t *testing.T) {
	s := newState(t, "")
	s.change(put(registered(t, "HTTP", 1, object.Registered{Aliases: []string{"web.virtual.consul"}})...)...)
	alias := s.held[resource.Key{Kind: "Service", Namespace: "shop", Name: "web.virtual.consul"}].GetService()
	if alias.GetExternalName() != "web.service.consul" || len(alias.Ports)+len(alias.AutoAddresses)+len(alias.Addresses) != 0 {
		t.Fatalf("alias %v", alias)
	}
	s.change(put(registered(t, "HTTP", 1, object.Registered{})...)...)
	if s.held[resource.Key{Kind: "Service", Namespace: "shop", Name: "web.virtual.consul"}] != nil {
		t.Error("an alias stays that the registry no longer has")
	}
}

// A port of bytes without an address takes every connection to its number in each proxy that does not answer DNS.
func TestAPortOfARegistryNeverTakesAllConnections(t *testing.T) {
	for protocol, own := range map[string]bool{"TCP": true, "MONGO": true, "HTTP": false, "TLS": false} {
		s := newState(t, "")
		s.change(put(registered(t, protocol, 1, object.Registered{})...)...)
		svc := s.held[resource.Key{Kind: "Service", Namespace: "shop", Name: "web.service.consul"}].GetService()
		if (len(svc.Addresses) == 2) != own || (len(svc.AutoAddresses) == 2) == own {
			t.Errorf("%s: addresses %v, allocated %v", protocol, svc.Addresses, svc.AutoAddresses)
		}
		s.change(Change{Key: svcKey("reg.web")})
		if s.held[resource.Key{Kind: "Service", Namespace: "shop", Name: "web.service.consul"}] != nil {
			t.Errorf("%s: the service stays", protocol)
		}
	}
}

func svcKey(name string) object.Key {
	return object.Key{Group: "networking.istio.io", Kind: "ServiceEntry", Namespace: "shop", Name: name}
}

// Of a registry and others that claim one host the older counts, alone.
func TestARegistrySharesNoHost(t *testing.T) {
	for created, want := range map[string]string{"2029-01-01T00:00:00Z": "10.5.0.1:80", "2031-01-01T00:00:00Z": "10.7.0.1:90"} {
		s := newState(t, fmt.Sprintf(`
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: mine, namespace: shop, creationTimestamp: %q}
spec: {hosts: [web.service.consul], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}, {number: 81, name: more, protocol: HTTP}],
  endpoints: [{address: 10.5.0.1}]}
`, created))
		s.change(put(registered(t, "HTTP", 1, object.Registered{})...)...)
		if got := s.addresses("shop", "web.service.consul:80/Kubernetes"); !slices.Equal(got, []string{want}) {
			t.Errorf("created %s: leads to %v, want %s", created, got, want)
		}
		svc := s.held[resource.Key{Kind: "Service", Namespace: "shop", Name: "web.service.consul"}].GetService()
		if older := strings.HasPrefix(created, "2029"); (len(svc.Ports) == 2) != older {
			t.Errorf("created %s: ports %v", created, svc.Ports)
		}
	}
}

const joined = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.1, selector: {app: web}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, labels: {app: web}}
spec: {serviceAccountName: web, containers: []}
status: {phase: Running, podIP: 10.1.0.1, conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-2, namespace: shop, labels: {app: web}}
spec: {serviceAccountName: web, containers: []}
status: {phase: Running, podIP: 10.1.0.2, conditions: [{type: Ready, status: "%s"}]}
`

// sums adds up the weights of the ready endpoints of the Service: its own, and the registry's.
func (s *state) sums() (own, registry int) {
	for _, e := range s.set("shop", "web.shop.svc.cluster.local:80/Kubernetes").GetEndpoints() {
		switch {
		case e.Health != configv1.Health_HEALTH_READY:
		case strings.HasPrefix(e.Address, "10.7."):
			registry += int(max(e.Weight, 1))
		default:
			own += int(max(e.Weight, 1))
		}
	}
	return own, registry
}

func TestARegistrysEndpointsJoinAServiceWithTheirShare(t *testing.T) {
	const host = "web.shop.svc.cluster.local"
	for share, want := range map[uint32]float64{0: 0, 1: 0.01, 25: 0.25, 50: 0.5, 99: 0.99, 100: 1} {
		for _, n := range []int{1, 7} {
			s := newState(t, fmt.Sprintf(joined, "True"))
			s.change(put(registered(t, "HTTP", n, object.Registered{Joins: host, Share: share})...)...)
			own, registry := s.sums()
			if got := float64(registry) / float64(own+registry); got < want-0.001 || got > want+0.001 {
				t.Errorf("share %d of %d instances: %f of the weight (%d and %d)", share, n, got, own, registry)
			}
			if got := s.addresses("shop", "web.service.consul:80/Kubernetes"); len(got) != n {
				t.Errorf("its own host leads to %v", got)
			}
		}
	}
	s := newState(t, fmt.Sprintf(joined, "False"))
	list := registered(t, "HTTP", 2, object.Registered{Joins: host, Share: 40})
	s.change(put(list...)...)
	if own, registry := s.sums(); float64(registry)/float64(own+registry) < 0.399 || registry > own {
		t.Errorf("with one Pod that is not ready: %d and %d", own, registry)
	}
	// What changes on either side is taken over at once.
	sick := *list[1]
	sick.Health = &object.Health{Counts: true}
	s.change(Change{sick.Key, &sick})
	if own, registry := s.sums(); float64(registry)/float64(own+registry) < 0.399 || registry == 0 {
		t.Errorf("with one sick instance: %d and %d", own, registry)
	}
	s.change(Change{Key: list[1].Key}, Change{Key: list[2].Key}, Change{Key: list[0].Key})
	if got := s.addresses("shop", host+":80/Kubernetes"); !slices.Equal(got, []string{"10.1.0.1:80", "10.1.0.2:80"}) {
		t.Errorf("without the registry: %v", got)
	}
	s.remove("Service", "shop", "web")
	if len(s.mesh.hosts) != 0 {
		t.Errorf("hosts are left: %v", s.mesh.hosts)
	}
}

// A registry joins a Service before, or after, the Service is there; the older of two registries counts.
func TestJoiningBeforeTheServiceIsThere(t *testing.T) {
	const host = "web.shop.svc.cluster.local"
	s := newState(t, "")
	s.change(put(registered(t, "HTTP", 1, object.Registered{Joins: host, Share: 100})...)...)
	second := objects(t, `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: other, namespace: shop, creationTimestamp: "2031-01-01T00:00:00Z"}
spec: {hosts: [other.service.consul], resolution: STATIC, ports: [{number: 80, name: service, protocol: HTTP}], workloadSelector: {labels: {s: other}}}
`)
	second[0].Registered = &object.Registered{Service: "other", Joins: host}
	second[0].Created = time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC)
	s.change(put(second...)...)
	s.apply(fmt.Sprintf(joined, "True"))
	if got := s.addresses("shop", host+":80/Kubernetes"); !slices.Equal(got, []string{"10.7.0.1:90"}) {
		t.Errorf("leads to %v", got)
	}
}
