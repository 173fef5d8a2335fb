package app

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	secretv1 "fairlead.dev/proto/fairlead/secret/v1"
)

const edgeOfFiles = `
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {ports: [{port: 80}]}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: edge-vm, namespace: shop}
spec: {address: 10.0.0.1, serviceAccount: edge, labels: {gateway.networking.k8s.io/gateway-name: edge}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  gatewayClassName: fairlead
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: edge-cert}]}}
`

const routeOfStore = `
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: shop}
spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: %s, port: 80}]}]}
`

// TestGatewayAPIWithoutKubernetes: Gateways of files and routes of the store are served, with a machine as gateway, and
// their statuses told and stored.
func TestGatewayAPIWithoutKubernetes(t *testing.T) {
	f := newFixture(t)
	o := f.options()
	o.ConfigDirs = []string{t.TempDir()}
	testkit.NoError(t, os.WriteFile(filepath.Join(o.ConfigDirs[0], "edge.yaml"), []byte(edgeOfFiles), 0o600))
	r := f.start(o)
	r.WaitReady()
	store := r.store()
	chain, key := f.ca.NewServer("edge.example.com")
	r.apply(fmt.Sprintf(routeOfStore, "web"),
		secret("shop", "edge-cert", "kubernetes.io/tls", map[string][]byte{"tls.crt": chain, "tls.key": key}))
	has := func(kind, name string, want ...string) {
		t.Helper()
		testkit.Eventually(t, patience, func() error {
			res, err := store.Status(t.Context(), &configv1.StatusRequest{Kind: kind + ".gateway.networking.k8s.io", Namespace: "shop", Name: name})
			if err != nil {
				return err
			}
			var got []string
			for _, o := range res.GetObjects() {
				for _, c := range o.GetConditions() {
					got = append(got, fmt.Sprintf("%s=%s/%s", c.GetType(), c.GetStatus(), c.GetReason()))
				}
			}
			if strings.Join(got, " ") != strings.Join(want, " ") {
				return fmt.Errorf("%s: got %q, want %q", name, got, want)
			}
			return nil
		})
	}
	has("Gateway", "edge", "Accepted=True/Accepted", "ResolvedRefs=True/ResolvedRefs", "Programmed=Unknown/Pending")
	report, err := configv1.NewConfigServiceClient(r.dial("xds-server")).Report(t.Context())
	testkit.NoError(t, err)
	snapshot, _ := r.revisions.Current()
	testkit.NoError(t, report.Send(&configv1.ReportRequest{Subscriber: &configv1.Subscriber{Instance: "xds-server-test"},
		Proxies: []*configv1.ProxyStatus{{NodeId: "router~10.0.0.1~edge-vm.shop~shop.svc.cluster.local", Namespace: "shop", Workload: "edge-vm",
			Identity: f.ca.ID("shop", "edge").String(), ConnectedAt: timestamppb.Now(), Acked: snapshot.Revision()}},
		Revision: snapshot.Revision()}))
	has("Gateway", "edge", "Accepted=True/Accepted", "ResolvedRefs=True/ResolvedRefs", "Programmed=True/Programmed")
	has("HTTPRoute", "web", "Accepted=True/Accepted", "ResolvedRefs=True/ResolvedRefs", "Programmed=True/Programmed")

	stream, err := secretv1.NewSecretServiceClient(r.dial("xds-server")).Watch(t.Context())
	testkit.NoError(t, err)
	testkit.NoError(t, stream.Send(&secretv1.WatchRequest{Instance: "xds-server-test", Subscribe: []*secretv1.Subscription{
		{Namespace: "shop", Name: "edge-cert", Identity: f.ca.ID("shop", "edge").String()}}}))
	if m, err := stream.Recv(); err != nil || len(m.GetCredential().GetPrivateKey()) == 0 {
		t.Errorf("the gateway gets no key: %v", err)
	}

	stored := func(want string) {
		t.Helper()
		testkit.Eventually(t, patience, func() error {
			got, err := store.Get(t.Context(), &configv1.GetRequest{Key: &configv1.ObjectKey{
				ApiVersion: "gateway.networking.k8s.io/v1", Kind: "HTTPRoute", Namespace: "shop", Name: "web"}})
			if err != nil {
				return err
			}
			var manifest struct {
				Status struct {
					Parents []struct {
						ControllerName string
						Conditions     []struct {
							Type, Status, Reason string
							ObservedGeneration   int
						}
					}
				}
			}
			if err := json.Unmarshal(got.GetObject().GetManifest(), &manifest); err != nil {
				return err
			}
			if text := fmt.Sprint(manifest.Status.Parents); text != want {
				return fmt.Errorf("stored %s, want %s", text, want)
			}
			return nil
		})
	}
	stored("[{fairlead.dev/gateway-controller [{Accepted True Accepted 1} {ResolvedRefs True ResolvedRefs 1}]}]")
	r.apply(fmt.Sprintf(routeOfStore, "nowhere"))
	stored("[{fairlead.dev/gateway-controller [{Accepted True Accepted 2} {ResolvedRefs False BackendNotFound 2}]}]")
}
