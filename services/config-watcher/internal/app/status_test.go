package app

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

const statusGateway = `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: shop, namespace: apps}
spec:
  selector: {istio: ingressgateway}
  servers:
  - port: {number: 443, name: https, protocol: HTTPS}
    hosts: [%s]
    tls: {mode: SIMPLE, credentialName: shop}
  - port: {number: 80, name: http, protocol: HTTP}
    hosts: ["*"]
`

const statusPod = `
apiVersion: v1
kind: Pod
metadata: {name: ingress, namespace: gateways, labels: {istio: ingressgateway}}
spec: {serviceAccountName: ingress, containers: [{name: proxy}]}
status: {phase: Running, podIP: 10.0.0.1, conditions: [{type: Ready, status: "True"}]}
`

// gatewayStatus is what a user reads.
type gatewayStatus struct {
	ObservedGeneration int64 `json:"observedGeneration"`
	Conditions         []struct {
		Type, Status, Reason, Message string
		LastTransitionTime            time.Time
	} `json:"conditions"`
	Servers []struct{ Name, Port, Hosts, Reason, Message string } `json:"servers"`
}

func (s gatewayStatus) text() string {
	out := []string{fmt.Sprintf("generation %d", s.ObservedGeneration)}
	for _, c := range s.Conditions {
		out = append(out, c.Type+"="+c.Status+"/"+c.Reason)
	}
	for _, server := range s.Servers {
		out = append(out, server.Name+" "+server.Port+"="+server.Reason)
	}
	return strings.Join(out, ", ")
}

// TestGatewayStatus: the status of a Gateway follows the proxies' answers and the credentials, and is no change of the
// mesh.
func TestGatewayStatus(t *testing.T) {
	f := newFixture(t)
	r := f.start(f.options())
	r.WaitReady()
	applied := r.apply(fmt.Sprintf(statusGateway, "shop.example.com"), statusPod)
	read := func() (out gatewayStatus, err error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		got, err := r.store().Get(ctx,
			&configv1.GetRequest{Key: &configv1.ObjectKey{ApiVersion: "networking.istio.io/v1", Kind: "Gateway", Namespace: "apps", Name: "shop"}})
		if err != nil {
			return out, err
		}
		var manifest struct{ Status gatewayStatus }
		err = json.Unmarshal(got.GetObject().GetManifest(), &manifest)
		return manifest.Status, err
	}
	becomes := func(want string) gatewayStatus {
		t.Helper()
		var last gatewayStatus
		testkit.Eventually(t, patience, func() error {
			var err error
			if last, err = read(); err != nil {
				return err
			}
			if got := last.text(); got != want {
				return fmt.Errorf("got  %s\nwant %s", got, want)
			}
			return nil
		})
		return last
	}
	becomes("generation 1, Accepted=True/Accepted, ResolvedRefs=True/Resolved, Programmed=Unknown/NoReport, https 443/HTTPS=NoReport, http " +
		"80/HTTP=NoReport")

	// A gateway connects, and has not answered yet.
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	report, err := configv1.NewConfigServiceClient(r.dial("xds-server")).Report(ctx)
	if err != nil {
		t.Fatal(err)
	}
	say := func(change func(*configv1.ProxyStatus)) {
		t.Helper()
		p := &configv1.ProxyStatus{NodeId: "router~10.0.0.1~ingress.gateways~gateways.svc.cluster.local", Namespace: "gateways",
			Workload: "ingress", ConnectedAt: timestamppb.Now()}
		change(p)
		if err := report.Send(&configv1.ReportRequest{Subscriber: &configv1.Subscriber{Instance: "xds-server-test"},
			Proxies: []*configv1.ProxyStatus{p}}); err != nil {
			t.Fatal(err)
		}
	}
	revision := func() *configv1.Revision {
		snapshot, _ := r.revisions.Current()
		return snapshot.Revision()
	}
	say(func(*configv1.ProxyStatus) {})
	becomes("generation 1, Accepted=True/Accepted, ResolvedRefs=False/CredentialMissing, Programmed=False/Pending, https " +
		"443/HTTPS=CredentialMissing, http 80/HTTP=Pending")
	say(func(p *configv1.ProxyStatus) { p.Acked = revision() })
	becomes("generation 1, Accepted=True/Accepted, ResolvedRefs=False/CredentialMissing, Programmed=True/Programmed, https " +
		"443/HTTPS=CredentialMissing, http 80/HTTP=Programmed")

	// The credential comes.
	chain, key := f.ca.NewServer("shop.example.com")
	r.apply(tlsSecret("gateways", "shop", chain, key))
	done := becomes("generation 1, Accepted=True/Accepted, ResolvedRefs=True/Resolved, Programmed=True/Programmed, https " +
		"443/HTTPS=Programmed, http 80/HTTP=Programmed")
	if at := done.Conditions[0].LastTransitionTime; at.IsZero() || time.Since(at) > patience {
		t.Errorf("lastTransitionTime %s", at)
	}
	if got := revision().GetSequence(); got != applied.GetRevision() {
		t.Errorf("statuses have made revisions: %d, was %d", got, applied.GetRevision())
	}

	// A change is refused by the proxy.
	r.apply(fmt.Sprintf(statusGateway, "new.example.com"))
	becomes("generation 2, Accepted=True/Accepted, ResolvedRefs=True/Resolved, Programmed=False/Pending, https 443/HTTPS=Pending, http " +
		"80/HTTP=Pending")
	say(func(p *configv1.ProxyStatus) {
		p.Types = []*configv1.ProxyTypeStatus{{
			TypeUrl:   "type.googleapis.com/envoy.config.listener.v3.Listener",
			Rejection: &configv1.Rejection{ResourceNames: []string{"0.0.0.0_443"}, Message: "no such thing", Revision: revision()},
		}}
	})
	refused := becomes("generation 2, Accepted=True/Accepted, ResolvedRefs=True/Resolved, Programmed=False/Rejected, https " +
		"443/HTTPS=Rejected, http 80/HTTP=Rejected")
	if got, want := refused.Conditions[2].Message, "gateways/ingress: Listener 0.0.0.0_443: no such thing"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
