package attack

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	secretv1 "fairlead.dev/proto/fairlead/secret/v1"
	"fairlead.dev/tests/e2e/internal/fleet"
)

// asked is how long an attacker waits for a secret that is not sent at once.
const asked = 2 * time.Second

// loot asks as a node for everything there is and for secrets by name, and returns all bytes that come within a while,
// and how the stream ended.
func loot(ctx context.Context, id *identity, address string, n *corev3.Node, secrets ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, asked)
	defer cancel()
	stream, closeAll, err := openDelta(ctx, id, address, n)
	if err != nil {
		return nil, err
	}
	defer closeAll()
	if errors.Join(stream.Subscribe(resource.ClusterType, "*"), stream.Subscribe(resource.ListenerType, "*"),
		stream.Subscribe(resource.SecretType, secrets...)) != nil {
		return nil, stream.Drain()
	}
	var all []byte
	var broken error
	ended := stream.Follow(func(m *discovery.DeltaDiscoveryResponse) error {
		content, err := proto.Marshal(m)
		broken = errors.Join(broken, err)
		all = append(all, content...)
		return nil
	})
	if status.Code(ended) == codes.DeadlineExceeded || errors.Is(ended, context.DeadlineExceeded) {
		ended = nil
	}
	return all, errors.Join(broken, ended)
}

// holds is true if loot has a private key in it.
func holds(loot, key []byte) bool { return bytes.Contains(loot, bytes.TrimSpace(key)) }

// testCredentials: who shares a namespace with a gateway, or with a sidecar that has a key, does not receive the key,
// whatever it says of itself.
func testCredentials(t *testing.T, f *fixture) {
	thief, owner := f.identity(t, batch, time.Hour), f.identity(t, payer, time.Hour)
	gateway := f.Pod(t, "edge-gateway-0")
	address := f.service(t, "xds-server-0").GRPCAddress

	// The keys are there, for those whose they are: otherwise nothing below would mean anything.
	f.Eventually(t, fleet.Ready, func() error { return f.gatewayShows("shop.example.com", gateway) })
	f.Eventually(t, fleet.Ready, func() error {
		got, err := loot(t.Context(), owner, address, withLabels(node(owner.pod), map[string]any{"app": "payer"}), "kubernetes://payer-tls")
		if err == nil && !holds(got, f.payerKey) {
			err = errors.New("the sidecar payer does not receive its own key")
		}
		return err
	})

	domain := "edge.svc.cluster.local"
	for what, n := range map[string]*corev3.Node{
		"as a router with a made-up name": nodeNamed("router", thief.pod.IP, "made-up", "edge", domain),
		"as a router with its own name":   nodeNamed("router", thief.pod.IP, thief.pod.Name, "edge", domain),
		"with the gateway's node id":      nodeNamed("router", gateway.IP, gateway.Name, "edge", domain),
		"with the gateway's node id and label": withLabels(nodeNamed("router", gateway.IP, gateway.Name, "edge", domain),
			map[string]any{"app": "edge-gateway"}),
		"as a router with the gateway's label": withLabels(nodeNamed("router", thief.pod.IP, "made-up", "edge", domain),
			map[string]any{"app": "edge-gateway"}),
		"with the gateway's address and label": withLabels(nodeNamed("router", gateway.IP, "made-up", "edge", domain),
			map[string]any{"app": "edge-gateway"}),
		"under its name with the gateway's label": withLabels(nodeNamed("router", thief.pod.IP, thief.pod.Name, "edge", domain),
			map[string]any{"app": "edge-gateway"}),
		"as a sidecar with the payer's label": withLabels(node(thief.pod), map[string]any{"app": "payer"}),
		"as a made-up sidecar, payer's label": withLabels(nodeNamed("sidecar", thief.pod.IP, "made-up", "edge", domain),
			map[string]any{"app": "payer"}),
		"with the payer's node id": withLabels(node(owner.pod), map[string]any{"app": "payer"}),
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel() // each waits for what does not come
			got, err := loot(t.Context(), thief, address, n, "kubernetes://edge-tls", "kubernetes://payer-tls", "kubernetes://unused-tls",
				"kubernetes://edge/edge-tls", "kubernetes-gateway://edge/edge-tls")
			t.Logf("received %d bytes; the stream ended with %v", len(got), err)
			if code := status.Code(err); err != nil && code != codes.PermissionDenied {
				t.Errorf("it was not decided who asks: %v", err)
			}
			for name, key := range map[string][]byte{"the gateway": f.edgeKey, "the sidecar payer": f.payerKey} {
				if holds(got, key) {
					t.Errorf("the private key of %s was sent to %s", name, thief.pod.Identity)
				}
			}
		})
	}
}

// gatewayShows asks the gateway itself, as a browser, for the certificate of a host.
func (f *fixture) gatewayShows(host string, gateway *fleet.Pod) error {
	roots := x509.NewCertPool()
	roots.AddCert(f.web.Cert)
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", net.JoinHostPort(gateway.IP, "8443"),
		&tls.Config{RootCAs: roots, ServerName: host, MinVersion: tls.VersionTLS12, InsecureSkipVerify: true})
	if err != nil {
		return err
	}
	return conn.Close()
}

// testForgedRejection: a neighbour connects with the gateway's node id and rejects what it is sent. Nobody believes
// that of the gateway.
func testForgedRejection(t *testing.T, f *fixture) {
	const lie = "forged: the gateway rejects this"
	thief := f.identity(t, batch, time.Hour)
	gateway := f.Pod(t, "edge-gateway-0")
	for _, kind := range []string{"router", "sidecar"} {
		n := nodeNamed(kind, gateway.IP, gateway.Name, gateway.Namespace, "edge.svc.cluster.local")
		if kind == "router" {
			n.Id = gateway.NodeID
		}
		stream, closeAll, err := openDelta(t.Context(), thief, f.service(t, "xds-server-0").GRPCAddress, n)
		if err != nil {
			t.Fatal(err)
		}
		defer closeAll()
		_ = stream.Subscribe(resource.ClusterType, "*") // Recv tells why the stream has ended
		m, err := stream.Recv()
		if err != nil {
			t.Logf("%s: refused: %v", kind, err)
			continue
		}
		testkit.NoError(t, stream.Answer(m, errors.New(lie)))
		t.Logf("%s: served %d clusters, and rejected them", kind, len(m.GetResources()))
	}
	// Whatever was believed is reported after the rejection, so a change is made and waited for; what the list then
	// says of the gateway is the truth.
	if _, err := f.change(t.Context(), 99*time.Second); err != nil {
		t.Fatal(err)
	}
	conn := configv1.NewFleetServiceClient(f.admin(t))
	ctx, cancel := context.WithTimeout(t.Context(), asked)
	defer cancel()
	waited, err := conn.WaitAcked(ctx, &configv1.WaitAckedRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Logf("WaitAcked: %v", err) // others may hold it up, which is not what this is about
	}
	for _, p := range waited.GetRejected() {
		if p.GetNodeId() == gateway.NodeID {
			t.Errorf("WaitAcked believes that %s has rejected", p.GetNodeId())
		}
	}
	code, out, errOut := f.CLI(t, "proxy-status", "-o", "json")
	if code != 0 {
		t.Fatalf("proxy-status: %s", errOut)
	}
	var list struct {
		Proxies []json.RawMessage `json:"proxies"`
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatal(err)
	}
	for _, p := range list.Proxies {
		if text := string(p); strings.Contains(text, lie) && strings.Contains(text, gateway.Name) {
			t.Errorf("proxy-status believes it: %s", text)
		}
	}
}

// testSecretService: somebody who holds an xds-server's token is still given only what a Gateway or DestinationRule
// names, and only for proxies that are connected.
func testSecretService(t *testing.T, f *fixture) {
	cert, err := f.issue(t.Context(), f.service(t, "ca").GRPCAddress, f.Path("tokens", "xds-server-0"), "127.0.0.1", time.Hour)
	if err != nil {
		t.Fatalf("a certificate for the token of xds-server-0: %v", err)
	}
	id := &identity{pod: f.Pod(t, batch), certificate: cert}
	conn, err := id.dial(f.service(t, "config-watcher").GRPCAddress)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for what, s := range map[string]*secretv1.Subscription{
		"a Secret that nothing names": {Namespace: "edge", Name: "unused-tls",
			Identity: f.Pod(t, "edge-gateway-0").Identity},
		"the gateway's for another account": {Namespace: "edge", Name: "edge-tls", Identity: f.Pod(t, batch).Identity},
		"the gateway's for an account that does not exist": {Namespace: "edge", Name: "edge-tls",
			Identity: "spiffe://cluster.local/ns/edge/sa/made-up"},
	} {
		t.Run(what, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), asked)
			defer cancel()
			stream, err := secretv1.NewSecretServiceClient(conn).Watch(ctx, grpc.WaitForReady(true))
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Send(&secretv1.WatchRequest{Subscribe: []*secretv1.Subscription{s}}); err != nil {
				t.Fatal(err)
			}
			m, err := stream.Recv()
			if len(m.GetCredential().GetPrivateKey()) > 0 {
				t.Errorf("the private key was handed out")
			}
			t.Logf("answered with credential: %t, %v", m.GetCredential() != nil, fmt.Sprint(err))
		})
	}
}
