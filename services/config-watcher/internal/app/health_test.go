package app

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

const machine = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: machines, namespace: shop}
spec:
  hosts: [machines.shop.example]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: machine}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: vm-1, namespace: shop, annotations: {proxy.istio.io/health-checks-enabled: "true"}}
spec: {address: 10.1.1.1, serviceAccount: vm, labels: {app: machine}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: vm-2, namespace: shop}
spec: {address: 10.1.1.2, serviceAccount: vm, labels: {app: machine}}
`

// TestEndpointsFollowTheHealthOfWorkloads: xds-servers are told which endpoints take traffic, and whoever reads the
// WorkloadEntry is told why.
func TestEndpointsFollowTheHealthOfWorkloads(t *testing.T) {
	r := startMachines(t, machine)
	say := func(problem string) {
		t.Helper()
		p := &configv1.ProxyStatus{
			NodeId: "sidecar~10.1.1.1~machine.shop~shop.svc.cluster.local", Namespace: "shop", Workload: "machine",
			Identity:    "spiffe://cluster.local/ns/shop/sa/vm",
			ConnectedAt: timestamppb.Now(), Health: &configv1.WorkloadHealth{Workload: "vm-1", Healthy: problem == "", Message: problem},
		}
		r.send(&configv1.ReportRequest{Proxies: []*configv1.ProxyStatus{p}})
	}
	want := func(endpoints, condition string) {
		t.Helper()
		r.wantEndpoints(endpoints)
		testkit.Eventually(t, patience, func() error {
			res, err := r.store().Status(t.Context(), &configv1.StatusRequest{Kind: "WorkloadEntry", Namespace: "shop"})
			if err != nil {
				return err
			}
			said := ""
			for _, o := range res.GetObjects() {
				for _, c := range o.GetConditions() {
					if c.GetType() == "Healthy" {
						said += fmt.Sprintf("%s %s %s %s", o.GetKey().GetName(), c.GetStatus(), c.GetReason(), c.GetMessage())
					}
				}
			}
			if said != condition {
				return fmt.Errorf("conditions %q, want %q", said, condition)
			}
			return nil
		})
	}
	say("connection refused")
	want("10.1.1.1 HEALTH_NOT_READY 10.1.1.2 HEALTH_READY ", "vm-1 False Unhealthy connection refused")
	say("")
	want("10.1.1.1 HEALTH_READY 10.1.1.2 HEALTH_READY ", "vm-1 True Healthy ")
	say("the disk is full")
	want("10.1.1.1 HEALTH_NOT_READY 10.1.1.2 HEALTH_READY ", "vm-1 False Unhealthy the disk is full")
}
