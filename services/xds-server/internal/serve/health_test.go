package serve_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

const healthInformation = "type.googleapis.com/istio.v1.HealthInformation"

// entryOf is the Workload of a WorkloadEntry at the address of the proxies vm-<n>.
func entryOf(name, account string) *configv1.Resource {
	return meshtest.Workload("default", name, "10.0.4.118", func(w *configv1.Workload) {
		w.ServiceAccount, w.Source = account, &configv1.SourceRef{Kind: "WorkloadEntry"}
	})
}

// tell sends what an agent tells of its workload: that it is well, if problem is empty.
func (c *deltaClient) tell(problem string) {
	c.t.Helper()
	r := &discovery.DeltaDiscoveryRequest{TypeUrl: healthInformation}
	if problem != "" {
		r.ErrorDetail = &status.Status{Code: 13, Message: problem}
	}
	if err := c.stream.Send(r); err != nil {
		c.t.Fatal(err)
	}
}

// TestHealthOfAWorkload: what an agent tells of its workload is reported under the name of the Workload that the
// proxy's identity owns, whatever its own name, and no caller without an identity or a Workload reports any.
func TestHealthOfAWorkload(t *testing.T) {
	r := start(t, append(basicMesh(), entryOf("entry", "web"))...)
	pki := testkit.PKI(t)
	connect := r.secure(t, pki)
	want := func(pod, text string) {
		t.Helper()
		testkit.Eventually(t, patience, func() error {
			h := r.status(pod).GetHealth()
			got := "none"
			if h != nil {
				got = fmt.Sprintf("%s %t %.20s %d", h.GetWorkload(), h.GetHealthy(), h.GetMessage(), len(h.GetMessage()))
			}
			if got != text {
				return fmt.Errorf("health of %s is %q, want %q", pod, got, text)
			}
			return nil
		})
	}
	open := func(pod, account string) *deltaClient {
		c := r.deltaOver(context.Background(), connect(pki.NewSVID("default", account)), node(pod, "default"))
		c.subscribe(cds, "*")
		c.ack(c.next())
		return c
	}
	vm, thief := open("vm-1", "web"), open("vm-2", "thief")
	want("vm-1", "none")
	vm.tell("")
	want("vm-1", "entry true  0")
	vm.tell("refused")
	want("vm-1", "entry false refused 7")
	if r.status("vm-1").GetHealth().GetToldAt() == nil {
		t.Error("without the time")
	}
	vm.tell(strings.Repeat("é", 4000))
	want("vm-1", fmt.Sprintf("entry false %.20s 1024", strings.Repeat("é", 20)))
	vm.tell("")
	want("vm-1", "entry true  0")
	thief.tell("the workload of somebody else")
	plain := r.delta("vm-3", "default")
	plain.subscribe(cds, "*")
	plain.ack(plain.next())
	plain.tell("no identity")
	// An answer to a later request shows that the ones before were read.
	for _, c := range []*deltaClient{thief, plain} {
		c.subscribe(lds, "*")
		c.next()
	}
	want("vm-2", "none")
	want("vm-3", "none")
	// The health belongs to the Workload, and goes and comes with it.
	r.remove(entryOf("entry", "web"))
	want("vm-1", "none")
	r.edit(entryOf("other", "web"))
	want("vm-1", "other true  0")

	sotw := r.sotw("vm-4", "default")
	sotw.subscribe(cds)
	sotw.send(healthInformation, nil)
	want("vm-4", "none")
}
