package app

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

const machines = `
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: machines, namespace: shop}
spec:
  metadata: {labels: {app: machine}}
  template: {serviceAccount: vm}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: machines, namespace: shop}
spec:
  hosts: [machines.shop.example]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: machine}}
`

// machinesMesh is a config-watcher with machines in a file, an xds-server that reports, and a subscriber.
type machinesMesh struct {
	*running
	report grpc.BidiStreamingClient[configv1.ReportRequest, configv1.ReportResponse]
	sub    *subscriber
}

func startMachines(t *testing.T, objects string) *machinesMesh {
	t.Helper()
	f := newFixture(t)
	o := f.options()
	files := t.TempDir()
	o.ConfigDirs = []string{files}
	if err := os.WriteFile(filepath.Join(files, "machines.yaml"), []byte(objects), 0o600); err != nil {
		t.Fatal(err)
	}
	m := &machinesMesh{running: f.start(o)}
	m.WaitReady()
	var err error
	if m.report, err = configv1.NewConfigServiceClient(m.dial("xds-server")).Report(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.sub = m.subscribe(nil, nil)
	return m
}

func (m *machinesMesh) send(report *configv1.ReportRequest) {
	m.t.Helper()
	report.Subscriber = &configv1.Subscriber{Instance: "xds-server-test"}
	if err := m.report.Send(report); err != nil {
		m.t.Fatal(err)
	}
}

// wantEndpoints takes revisions until the endpoints of machines.shop.example, each with its health, are these.
func (m *machinesMesh) wantEndpoints(endpoints string) {
	m.t.Helper()
	for got := "-"; got != endpoints; {
		m.sub.next() // fails if there is none in time
		got = ""
		for _, e := range m.sub.get("EndpointSet", "shop", "machines.shop.example:80/Kubernetes").GetEndpointSet().GetEndpoints() {
			got += fmt.Sprintf("%s %s ", e.GetAddress(), e.GetHealth())
		}
	}
}

// TestMachinesRegisterThemselves: of a group in a file, entries are made in the store of the configuration API, become
// endpoints, and go with their proxies. A proxy that is not entitled is refused through its xds-server.
func TestMachinesRegisterThemselves(t *testing.T) {
	r := startMachines(t, machines)
	proxy := func(name, address string) *configv1.ProxyStatus {
		return &configv1.ProxyStatus{
			NodeId: name, Namespace: "shop", Identity: "spiffe://cluster.local/ns/shop/sa/vm", Unverified: true, ConnectedAt: timestamppb.Now(),
			Registration: &configv1.Registration{Group: "machines", Address: address, PeerAddress: "10.1.1.1"},
		}
	}
	r.send(&configv1.ReportRequest{Proxies: []*configv1.ProxyStatus{proxy("vm", "10.1.1.1"), proxy("spoof", "10.9.9.9")}})
	r.wantEndpoints("10.1.1.1 HEALTH_READY ")
	for refused := false; !refused; {
		m, err := r.report.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, of := range m.GetRefused() {
			if of.GetNodeId() != "spoof" || !strings.Contains(of.GetMessage(), `its connection comes from "10.1.1.1"`) {
				t.Errorf("refused %v", of)
			}
			refused = true
		}
	}
	res, err := r.store().Get(t.Context(),
		&configv1.GetRequest{Key: &configv1.ObjectKey{Kind: "WorkloadEntry", Namespace: "shop", Name: "machines-10.1.1.1"}})
	if err != nil || !strings.Contains(string(res.GetObject().GetManifest()), `"istio.io/autoRegistrationGroup":"machines"`) {
		t.Errorf("%v %v", res, err)
	}
	r.send(&configv1.ReportRequest{Disconnected: []string{"vm"}})
	r.wantEndpoints("")
}
