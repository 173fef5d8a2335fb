package clusters

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/adstest"
)

// primaryInjector is the name by which API servers of other clusters know the injector of the control plane.
const primaryInjector = "istiod.istio-system.svc"

// TestExternalControlPlane has all processes of the control plane in west, with west's tokens, and the configuration in
// east, with the objects and rights of profile external: config-watcher and the injector reach it by a kubeconfig, and
// the ca takes its tokens by its keys. Nothing of west's own configuration counts.
func TestExternalControlPlane(t *testing.T) {
	servers := startClusters(t, "west", "east")
	east := servers["east"]
	east.ApplyCRDs(t)
	applyProfile(t, east, "external")
	watcher := east.ServiceAccount(t, meshNamespace, "config-watcher")
	m := startMesh(t, servers, "--kubernetes", "--kubeconfig", watcher, "--cluster-id", "east")
	m.trust("east", "--namespaces", "shop,"+remoteNamespace)
	m.states("trusted", 1)
	m.xdsKnows("east")

	for cluster, host := range map[string]string{"east": "cart", "west": "never"} {
		servers[cluster].Apply(t, fmt.Sprintf(`{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: Service, metadata: {name: %[1]s, namespace: shop}, spec: {ports: [{name: http, port: 80}]}}
`, host))
	}
	east.Apply(t, `{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: out, namespace: shop}, spec: {
hosts: [out.example.com], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS}}`)

	t.Run("serves a workload what the config cluster has", func(t *testing.T) {
		token := m.token("east", "shop", "web")
		identity, _, err := m.certify(as(t.Context(), token), m.dial(m.xdsAddr, xdsName, nil))
		if err != nil || identity != "spiffe://cluster.local/ns/shop/sa/web" {
			t.Fatalf("%s, %v", identity, err)
		}
		m.clusters(t, token, []string{"outbound|80||cart.shop.svc.cluster.local", "outbound|80||out.example.com"},
			"outbound|80||never.shop.svc.cluster.local")
		m.allowed(t)
	})
	t.Run("injects for it", func(t *testing.T) {
		r := &remote{mesh: m, east: east, name: primaryInjector}
		r.install()
		ops := testkit.FreeAddress(t).String()
		r.address = testkit.FreeAddress(t).String()
		m.west.ServiceAccount(t, meshNamespace, "injector")
		token := filepath.Join(m.dir, "injector.token")
		testkit.WriteFile(t, token, []byte(m.token("west", meshNamespace, "injector")))
		m.run("fairlead-injector", ops, "--kubeconfig", east.ServiceAccount(t, remoteNamespace, "injector"), "--namespace", remoteNamespace,
			"--mesh-config-namespace", meshNamespace, "--webhook-configuration", "istio-sidecar-injector", "--webhook-address", r.address,
			"--ops-address", ops, "--ca-address", m.caAddr, "--ca-identity", "istio-system/ca", "--identity", "istio-system/injector",
			"--ca-token-file", token, "--root-cert-file", m.roots)
		testkit.Eventually(t, patience, r.review)
	})
}

// allowed fails if config-watcher lacks a right.
func (m *mesh) allowed(t *testing.T) {
	t.Helper()
	for line := range strings.Lines(string(testkit.Must(os.ReadFile(m.log("config-watcher")))(t))) {
		if strings.Contains(line, "forbidden") {
			t.Error(line)
		}
	}
}

// clusters waits until a proxy of shop has clusters of Envoy, and not another one.
func (m *mesh) clusters(t *testing.T, token string, want []string, not string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	node := adstest.Node(adstest.Sidecar("10.9.9.9", "web-0", "shop"), map[string]any{"CLUSTER_ID": "east", "NAMESPACE": "shop"})
	s, err := adstest.OpenDelta(as(ctx, token), m.dial(m.xdsAddr, xdsName, nil), node)
	testkit.NoError(t, err)
	const url = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	testkit.NoError(t, s.Subscribe(url, "*"))
	var got []string
	for {
		response, err := s.Next(url)
		if err != nil {
			t.Fatalf("%v; the proxy has %v, want %v", err, got, want)
		}
		got = append(got, names(response)...)
		testkit.NoError(t, s.Answer(response, nil))
		if slices.Contains(got, not) {
			t.Fatalf("the proxy has %s", not)
		}
		if !slices.ContainsFunc(want, func(name string) bool { return !slices.Contains(got, name) }) {
			return
		}
	}
}

func names(m *discovery.DeltaDiscoveryResponse) (out []string) {
	for _, r := range m.GetResources() {
		out = append(out, r.GetName())
	}
	return out
}
