package app_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	networking "istio.io/api/networking/v1alpha3"
	typev1beta1 "istio.io/api/type/v1beta1"

	"fairlead.dev/pkg/rpc"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/testkit/adstest"
	"fairlead.dev/pkg/tlsconf"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	secretv1 "fairlead.dev/proto/fairlead/secret/v1"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// ofAccount makes a Workload one of a service account, with one label.
func ofAccount(account, label, value string) func(*configv1.Workload) {
	return func(w *configv1.Workload) { w.ServiceAccount, w.Labels = account, map[string]string{label: value} }
}

// claims is a node with the labels of somebody else.
func claims(id string, labels map[string]any) *core.Node {
	return adstest.Node(id, map[string]any{"LABELS": labels, "INSTANCE_IPS": "10.1.0.20,10.1.0.31"})
}

// TestClaimsGiveNoCredentials: edge/batch, an ordinary workload of a gateway's namespace, says in all ways it can that
// it were the gateway, or what a DestinationRule selects. It is given nothing of theirs, and nobody asks config-watcher
// for it on its behalf.
func TestClaimsGiveNoCredentials(t *testing.T) {
	pki := testkit.PKI(t)
	rule := func(name string, selector map[string]string, credential string) *configv1.Resource {
		spec := &networking.DestinationRule{Host: reviews, TrafficPolicy: &networking.TrafficPolicy{
			Tls: &networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_MUTUAL, CredentialName: credential},
		}}
		if selector != nil {
			spec.WorkloadSelector = &typev1beta1.WorkloadSelector{MatchLabels: selector}
		}
		return meshtest.Config(mesh.KindDestinationRule, "edge", name, spec)
	}
	simple := func(credential string) *networking.ServerTLSSettings {
		return &networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_SIMPLE, CredentialName: credential}
	}
	watcher := startWatcher(t, pki, append(bookMesh(),
		gatewayWorkload("edge", "10.1.0.20"),
		meshtest.Workload("edge", "batch", "10.1.0.30", ofAccount("batch", "app", "batch")),
		meshtest.Workload("edge", "payments", "10.1.0.31", ofAccount("payments", "app", "payments")),
		gatewayOf(httpsServer(443, "simple", "a.example.com", simple("shop-tls"))),
		meshtest.Config(mesh.KindGateway, "edge", "for-all", &networking.Gateway{
			Servers: []*networking.Server{httpsServer(8443, "all", "all.example.com", simple("for-all"))},
		}),
		rule("gateways", nil, "upstream"), rule("payments", map[string]string{"app": "payments"}, "payments"),
		rule("batch", map[string]string{"app": "batch"}, "batch"))...)
	server := startServer(t, pki, watcher.address, noop.NewTracerProvider())
	server.WaitReady()
	chain, key := pki.NewServer("a.example.com")
	all := []string{"shop-tls", "for-all", "upstream", "payments", "batch"}
	for _, name := range all {
		watcher.secrets.put("edge/"+name, &secretv1.Credential{CertificateChain: chain, PrivateKey: key})
	}
	open := func(t *testing.T, account string, node *core.Node) *proxyStream {
		t.Helper()
		p := openStream(t, dial(t, server.secure,
			rpc.ClientConfig{TLS: tlsconf.Client(pki.NewSVID("edge", account), pki.ID(contract.SystemNamespace, contract.XDSServerAccount))}))
		p.Node = node
		return p
	}
	router := map[string]any{"istio": "ingressgateway", "app": "payments"}
	for name, tc := range map[string]struct {
		account string
		node    *core.Node
		want    []string
		refused string
	}{
		"the gateway itself": {account: "gateway", node: claims("router~10.1.0.20~gateway.edge~edge.svc.cluster.local", nil),
			want: []string{"shop-tls", "for-all", "upstream"}},
		"what a rule selects": {account: "payments", node: claims("sidecar~10.1.0.31~payments.edge~x", nil),
			want: []string{"payments"}},
		"a made-up router":         {account: "batch", node: claims("router~10.1.0.66~made-up.edge~edge.svc.cluster.local", router)},
		"at the gateway's address": {account: "batch", node: claims("router~10.1.0.20~made-up.edge~edge.svc.cluster.local", router)},
		"a router that is a sidecar": {account: "batch", node: claims("router~10.1.0.30~batch.edge~edge.svc.cluster.local", router),
			want: []string{"batch"}},
		"a sidecar with other labels": {account: "batch", node: claims("sidecar~10.1.0.30~batch.edge~edge.svc.cluster.local", router),
			want: []string{"batch"}},
		"a made-up sidecar": {account: "batch", node: claims("sidecar~10.1.0.31~made-up.edge~edge.svc.cluster.local", router)},
		"the gateway's node id": {
			account: "batch", node: claims("router~10.1.0.20~gateway.edge~edge.svc.cluster.local", router),
			refused: `Workload edge/gateway of service account "gateway", the caller is spiffe://cluster.local/ns/edge/sa/batch`,
		},
		"another address, the gateway's name": {
			account: "batch", node: claims("sidecar~10.1.0.30~gateway.edge~edge.svc.cluster.local", router), refused: `Workload edge/gateway`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := open(t, tc.account, tc.node)
			if tc.refused != "" {
				testkit.NoError(t, p.Subscribe(resource.SecretType, "kubernetes://shop-tls"))
				_, err := p.Recv()
				if status.Code(err) != codes.PermissionDenied || !strings.Contains(status.Convert(err).Message(), tc.refused) {
					t.Errorf("got %v, want PermissionDenied: %s", err, tc.refused)
				}
				return
			}
			var got []string
			for _, credential := range all {
				m := p.ask(resource.SecretType, "kubernetes://"+credential)
				if len(m.GetRemovedResources()) == 0 && keyOf(secretsIn(t, m)["kubernetes://"+credential]) == string(key) {
					got = append(got, credential)
				}
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("was given %v, want %v", got, tc.want)
			}
			if tc.account == "gateway" || !strings.HasPrefix(tc.node.GetId(), "router") && len(tc.want) > 0 {
				return
			}
			// Neither do the Gateway's listeners come by labels that are claimed.
			if listeners := names(p.ask(resource.ListenerType, "*")); slices.ContainsFunc(listeners,
				func(name string) bool { return strings.HasSuffix(name, "_443") }) {
				t.Errorf("listeners %v", listeners)
			}
		})
	}
	watcher.secrets.mu.Lock()
	defer watcher.secrets.mu.Unlock()
	if n := watcher.secrets.asked["edge/shop-tls"]; n != 1 {
		t.Errorf("config-watcher was asked %d times for the gateway's credential", n)
	}
}

// TestForgedRejections: what another account says under a node id is told apart from what its owner says, and known for
// what it is.
func TestForgedRejections(t *testing.T) {
	pki := testkit.PKI(t)
	watcher := startWatcher(t, pki, append(bookMesh(),
		// A machine, whose WorkloadEntry is named otherwise than its proxy.
		meshtest.Workload("edge", "entry-of-the-machine", "10.1.0.40", ofAccount("machine", "app", "machine")),
		meshtest.Workload("edge", "batch", "10.1.0.30", ofAccount("batch", "app", "batch")))...)
	server := startServer(t, pki, watcher.address, noop.NewTracerProvider())
	server.WaitReady()
	const id = "sidecar~10.1.0.40~vm.edge~edge.svc.cluster.local"
	open := func(account string) *proxyStream {
		p := openStream(t, dial(t, server.secure,
			rpc.ClientConfig{TLS: tlsconf.Client(pki.NewSVID("edge", account), pki.ID(contract.SystemNamespace, contract.XDSServerAccount))}))
		p.Node = &core.Node{Id: id}
		return p
	}
	owner, thief := open("machine"), open("batch")
	owner.ask(resource.ClusterType, "*")
	testkit.NoError(t, thief.Subscribe(resource.ClusterType, "*"))
	m := testkit.Must(thief.Recv())(t)
	testkit.NoError(t, thief.Answer(m, errors.New("forged")))
	testkit.Eventually(t, patience, func() error {
		last := watcher.statuses()
		own, forged := last[id+" spiffe://cluster.local/ns/edge/sa/machine"], last[id+" spiffe://cluster.local/ns/edge/sa/batch"]
		switch {
		case own == nil || forged == nil || len(forged.GetTypes()) == 0 || forged.GetTypes()[0].GetRejection() == nil:
			return errNotYet
		case !forged.GetUnverified():
			t.Error("the forged status is not marked")
		case own.GetUnverified() || own.GetTypes()[0].GetRejection() != nil:
			t.Errorf("the owner's status is %v", own)
		}
		return nil
	})
	testkit.NoError(t, thief.CloseSend())
	testkit.Eventually(t, patience, func() error {
		last := watcher.statuses()
		if last[id+" spiffe://cluster.local/ns/edge/sa/batch"] != nil || last[id+" spiffe://cluster.local/ns/edge/sa/machine"] == nil {
			return errNotYet
		}
		return nil
	})
}
