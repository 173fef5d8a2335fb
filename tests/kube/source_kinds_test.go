package kube

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/tests/internal/kubeapi"
)

// sample is an object of a kind, without its metadata.
type sample struct {
	resource schema.GroupVersionResource
	kind     string
	cluster  bool
	rest     string
}

func istio(group, version, kind, plural, spec string) sample {
	return sample{resource: schema.GroupVersionResource{Group: group, Version: version, Resource: plural}, kind: kind, rest: "spec: " + spec}
}

func core(kind, rest string) sample {
	return sample{resource: schema.GroupVersionResource{Version: "v1", Resource: strings.ToLower(kind) + "s"}, kind: kind, rest: rest}
}

// samples has one object of each kind that config-watcher watches.
func samples() []sample {
	const networking, security, gatewayAPI = "networking.istio.io", "security.istio.io", gatewayAPIGroup
	node, namespace := core("Node", "{}"), core("Namespace", "{}")
	node.cluster, namespace.cluster = true, true
	node.rest, namespace.rest = "", ""
	ban := istio("fairlead.dev", "v1", "IdentityBan", "identitybans", `{identity: "spiffe://`+testkit.TrustDomain+`/ns/apps/sa/banned"}`)
	ban.cluster = true
	class := istio(gatewayAPI, "v1", "GatewayClass", "gatewayclasses", "{controllerName: example.com/a}")
	class.cluster = true
	endpointSlice := core("EndpointSlice", "addressType: IPv4\nendpoints: [{addresses: [10.1.2.3]}]\nports: [{name: http, port: 8080}]")
	endpointSlice.resource.Group = "discovery.k8s.io"
	return []sample{
		core("Service", "spec: {ports: [{name: http, port: 80}]}"), core("Pod", "spec: {containers: [{name: a, image: a}]}"), node, namespace,
		endpointSlice, ban,
		istio(networking, "v1", "VirtualService", "virtualservices", "{hosts: [a.example], http: [{route: [{destination: {host: a.example}}]}]}"),
		istio(networking, "v1", "DestinationRule", "destinationrules", "{host: a.example}"),
		istio(networking, "v1", "Gateway", "gateways",
			"{selector: {a: b}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}"),
		istio(networking, "v1", "Sidecar", "sidecars", "{egress: [{hosts: ['./*']}]}"),
		istio(networking, "v1", "ServiceEntry", "serviceentries",
			"{hosts: [a.example], resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}]}"),
		istio(networking, "v1", "WorkloadEntry", "workloadentries", "{address: 10.1.2.4}"),
		istio(networking, "v1", "WorkloadGroup", "workloadgroups", "{template: {}}"),
		istio(networking, "v1alpha3", "EnvoyFilter", "envoyfilters", "{}"),
		istio(networking, "v1beta1", "ProxyConfig", "proxyconfigs", "{concurrency: 2}"),
		istio(security, "v1", "PeerAuthentication", "peerauthentications", "{mtls: {mode: STRICT}}"),
		istio(security, "v1", "RequestAuthentication", "requestauthentications", `{jwtRules: [{issuer: a}]}`),
		istio(security, "v1", "AuthorizationPolicy", "authorizationpolicies", `{action: DENY, rules: [{}]}`),
		istio("telemetry.istio.io", "v1", "Telemetry", "telemetries", "{accessLogging: [{}]}"),
		istio("extensions.istio.io", "v1alpha1", "WasmPlugin", "wasmplugins", "{url: 'https://a.example/a.wasm', sha256: "+
			strings.Repeat("ab", 32)+"}"),
		istio("extensions.istio.io", "v1alpha1", "TrafficExtension", "trafficextensions", "{wasm: {url: 'https://a.example/a.wasm', sha256: "+
			strings.Repeat("ab", 32)+"}}"),
		class, istio(gatewayAPI, "v1", "Gateway", "gateways", "{gatewayClassName: a, listeners: [{name: a, port: 80, protocol: HTTP}]}"),
		istio(gatewayAPI, "v1", "ListenerSet", "listenersets", "{parentRef: {name: a}, listeners: [{name: a, port: 80, protocol: HTTP}]}"),
		istio(gatewayAPI, "v1", "HTTPRoute", "httproutes", "{rules: [{backendRefs: [{name: a, port: 80}]}]}"),
		istio(gatewayAPI, "v1", "GRPCRoute", "grpcroutes", "{rules: [{backendRefs: [{name: a, port: 80}]}]}"),
		istio(gatewayAPI, "v1", "TLSRoute", "tlsroutes", "{hostnames: [a.example], rules: [{backendRefs: [{name: a, port: 80}]}]}"),
		istio(gatewayAPI, "v1", "TCPRoute", "tcproutes", "{rules: [{backendRefs: [{name: a, port: 80}]}]}"),
		istio(gatewayAPI, "v1", "UDPRoute", "udproutes", "{rules: [{backendRefs: [{name: a, port: 80}]}]}"),
		istio(gatewayAPI, "v1", "BackendTLSPolicy", "backendtlspolicies", "{targetRefs: [{group: '', kind: Service, name: a}], "+
			"validation: {hostname: a.example, wellKnownCACertificates: System}}"),
		istio(gatewayAPI, "v1", "ReferenceGrant", "referencegrants", "{from: [{group: "+gatewayAPI+", kind: HTTPRoute, namespace: a}], "+
			"to: [{group: '', kind: Service}]}"),
	}
}

const (
	appsNamespace   = "apps"
	gatewayAPIGroup = "gateway.networking.k8s.io"
)

// name of object i. There are two kinds of Gateway.
func (s sample) name(i int) string {
	kind := strings.ToLower(s.kind)
	if s.resource.Group == gatewayAPIGroup {
		kind = "api-" + kind
	}
	return fmt.Sprintf("%s-%d", kind, i)
}

// manifest is object i of the kind, with a label that tells its states apart.
func (s sample) manifest(i int, state string) string {
	namespace := "namespace: " + appsNamespace
	if s.cluster {
		namespace = ""
	}
	return fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: %s, labels: {state: %s}, %s}\n%s\n---\n",
		s.resource.GroupVersion(), s.kind, s.name(i), state, namespace, s.rest)
}

// mesh are the objects of all kinds in an API server: their states by name.
type mesh struct {
	t      testing.TB
	server *kubeapi.Server
	client dynamic.Interface
	all    []sample
	state  map[string]string
}

func newMesh(t testing.TB, s *kubeapi.Server) *mesh {
	t.Helper()
	client, err := dynamic.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	s.ApplyCRDs(t, kubeapi.MeshCRDs(t), kubeapi.GatewayAPICRDs(t, "experimental"))
	s.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+appsNamespace+"}}")
	return &mesh{t: t, server: s, client: client, all: samples(), state: map[string]string{}}
}

// apply brings object i of all kinds to a state.
func (m *mesh) apply(i int, state string) {
	m.t.Helper()
	var text strings.Builder
	for _, s := range m.all {
		text.WriteString(s.manifest(i, state))
		m.state[s.name(i)] = state
	}
	m.server.Apply(m.t, text.String())
}

// remove deletes object i of all kinds.
func (m *mesh) remove(i int) {
	m.t.Helper()
	for _, s := range m.all {
		delete(m.state, s.name(i))
		var r dynamic.ResourceInterface = m.client.Resource(s.resource)
		if !s.cluster {
			r = m.client.Resource(s.resource).Namespace(appsNamespace)
		}
		now := int64(0)
		if err := r.Delete(m.t.Context(), s.name(i), metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			m.t.Fatalf("%s: %v", s.name(i), err)
		}
	}
}

// check waits until config-watcher has the objects of all kinds in their state, and no others.
func (m *mesh) check(w *watcher, objects ...int) {
	m.t.Helper()
	admin := w.admin()
	for _, s := range m.all {
		for _, i := range objects {
			testkit.Eventually(m.t, patience, func() error {
				want := m.state[s.name(i)]
				namespace := appsNamespace
				if s.cluster {
					namespace = ""
				}
				key := &configv1.ObjectKey{ApiVersion: s.resource.GroupVersion().String(), Kind: s.kind, Namespace: namespace, Name: s.name(i)}
				got, err := admin.Get(m.t.Context(), &configv1.GetRequest{Key: key, InForce: true})
				o := got.GetObject()
				switch {
				case want == "" && status.Code(err) == codes.NotFound:
					return nil
				case want == "" && err == nil:
					return fmt.Errorf("%s is in force", s.name(i))
				case err != nil:
					return err
				case o.GetSource() != sourceName || !strings.Contains(string(o.GetManifest()), `"state":"`+want+`"`):
					return fmt.Errorf("%s, to be in state %s, is from %s: %s", s.name(i), want, o.GetSource(), o.GetManifest())
				}
				return nil
			})
		}
	}
}

// A cluster without the definitions of the Gateway API is a cluster like any other; those of the standard channel are
// found when they come.
func TestDefinitionsOfTheGatewayAPIComeLater(t *testing.T) {
	s := kubeapi.Start(t, kubeapi.Options{})
	s.ApplyCRDs(t)
	w := startWatcher(t, s.Kubeconfig)
	w.until("synced", func(st sourceState) bool { return st.Synced && st.Degraded == "" })
	s.ApplyCRDs(t, kubeapi.GatewayAPICRDs(t, "standard"))
	s.Apply(t, "{apiVersion: "+gatewayAPIGroup+"/v1, kind: HTTPRoute, metadata: {name: late, namespace: default}, "+
		"spec: {hostnames: [a.example]}}")
	admin, key := w.admin(), &configv1.ObjectKey{Kind: "HTTPRoute", Namespace: "default", Name: "late"}
	testkit.Eventually(t, patience, func() error {
		_, err := admin.Get(t.Context(), &configv1.GetRequest{Key: key, InForce: true})
		return err
	})
	w.until("synced", func(st sourceState) bool { return st.Synced && st.Degraded == "" })
}

func TestEveryKindIsFollowed(t *testing.T) {
	s := kubeapi.Start(t, kubeapi.Options{Controllers: []string{"namespace-controller"}})
	m := newMesh(t, s)
	m.apply(1, "first")
	w := startWatcher(t, s.Kubeconfig)

	t.Run("objects from before the start", func(t *testing.T) { m.check(w, 1) })
	t.Run("no kind is degraded, each has one watch", func(t *testing.T) {
		w.until("synced", func(st sourceState) bool { return st.Synced && st.Degraded == "" })
		for _, sample := range m.all {
			kind := schema.GroupKind{Group: sample.resource.Group, Kind: sample.kind}.String()
			if n := w.metric("source_kind_watches", `kind="`+kind+`"`); n != 1 {
				t.Errorf("%s has %v watches", kind, n)
			}
		}
	})
	t.Run("create and update", func(t *testing.T) {
		m.apply(2, "first")
		m.apply(1, "second")
		m.check(w, 1, 2)
	})
	t.Run("delete, and create again", func(t *testing.T) {
		m.remove(2)
		m.check(w, 1, 2)
		m.apply(2, "again")
		m.check(w, 1, 2)
	})
	t.Run("a restart of the API server, after which watches have nothing to resume from", func(t *testing.T) {
		before := w.metric("source_kind_watch_restarts_total")
		s.Restart(t)
		m.apply(1, "third")
		m.remove(2)
		m.check(w, 1, 2)
		if n := w.metric("source_kind_watch_restarts_total") - before; n < float64(len(m.all)) {
			t.Errorf("only %v watches were opened again", n)
		}
	})
	t.Run("what changed and went while nobody watched and the history is gone", func(t *testing.T) {
		m.apply(2, "later")
		m.check(w, 1, 2)
		w.signal(syscall.SIGSTOP)
		s.Kill() // all connections break
		s.Resume(t)
		m.apply(1, "fourth")
		m.remove(2)
		m.apply(3, "new")
		s.Compact(t)
		w.signal(syscall.SIGCONT)
		m.check(w, 1, 2, 3)
	})
	t.Run("a namespace that is deleted with everything in it", func(t *testing.T) {
		if err := s.Client(t).CoreV1().Namespaces().Delete(t.Context(), appsNamespace, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		for _, sample := range m.all {
			if !sample.cluster {
				delete(m.state, sample.name(1))
				delete(m.state, sample.name(3))
			}
		}
		m.check(w, 1, 3)
		testkit.Eventually(t, patience, func() error {
			if n := w.metric("source_kind_objects", `kind="Pod"`); n != 0 {
				return fmt.Errorf("%v Pods are left", n)
			}
			return nil
		})
	})
	if left := slices.Collect(maps.Keys(m.state)); len(left) == 0 {
		t.Error(errors.New("no object is left to show that others stay"))
	}
}
