package serve_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/xds-server/internal/meshtest"
)

// podOf is the Workload of a Pod in the namespace "default".
func podOf(name, account string) *configv1.Resource {
	return meshtest.Workload("default", name, "10.0.0.1", func(w *configv1.Workload) {
		w.ServiceAccount, w.Source = account, &configv1.SourceRef{Kind: "Pod"}
	})
}

// refused waits until the stream ends with PermissionDenied and a message that contains these texts.
func (c *deltaClient) refused(naming ...string) {
	c.t.Helper()
	err := c.ended()
	if status.Code(err) != codes.PermissionDenied {
		c.t.Fatalf("ended with %v, want PermissionDenied", err)
	}
	for _, text := range naming {
		if !strings.Contains(status.Convert(err).Message(), text) {
			c.t.Errorf("%q does not name %q", status.Convert(err).Message(), text)
		}
	}
}

// TestWorkloadArrivesAfterItsProxy: in Kubernetes, the proxy of a Pod may connect before xds-server knows the Pod.
// Until then it gets the configuration of its namespace and counts as unverified; afterwards it gets what its labels
// select.
func TestWorkloadArrivesAfterItsProxy(t *testing.T) {
	r := start(t, append(basicMesh(), onlyA())...)
	pki := testkit.PKI(t)
	c := r.deltaOver(context.Background(), r.secure(t, pki)(pki.NewSVID("default", "web")), node("pod", "default"))
	c.subscribe(cds, "*")
	c.ack(c.expect(cds, "+80|"+hostA, "+80|"+hostB))
	if !r.acked("pod").GetUnverified() {
		t.Error("a proxy without a Workload counts as verified")
	}
	r.edit(podOf("pod", "web"))
	c.ack(c.expect(cds, "-80|"+hostB))
	if r.acked("pod").GetUnverified() {
		t.Error("a proxy of its Workload's account counts as unverified")
	}
	r.remove(podOf("pod", "web"))
	c.ack(c.expect(cds, "+80|"+hostB))
	if !r.acked("pod").GetUnverified() {
		t.Error("a proxy whose Workload is gone counts as verified")
	}
}

// TestWorkloadOfAnotherAccount: a node id that names the Workload of another service account is refused, also if the
// Workload arrives later.
func TestWorkloadOfAnotherAccount(t *testing.T) {
	r := start(t, append(basicMesh(), podOf("taken", "web"), podOf("plain", ""))...)
	pki := testkit.PKI(t)
	connect := r.secure(t, pki)
	thief, owner := connect(pki.NewSVID("default", "thief")), connect(pki.NewSVID("default", "web"))
	open := func(of string) *deltaClient {
		c := r.deltaOver(context.Background(), thief, node(of, "default"))
		c.subscribe(cds, "*")
		return c
	}
	open("taken").refused(`Workload default/taken of service account "web"`, "the caller is spiffe://cluster.local/ns/default/sa/thief")
	open("plain").refused(`Workload default/plain of service account "default"`)
	appears, changes := open("appears"), r.deltaOver(context.Background(), owner, node("changes", "default"))
	appears.ack(appears.next())
	r.edit(podOf("changes", "web"))
	changes.subscribe(cds, "*")
	changes.ack(changes.next())
	r.acked("changes")

	r.edit(podOf("appears", "web"))
	appears.refused("Workload default/appears")
	r.edit(podOf("changes", "other"))
	changes.refused(`Workload default/changes of service account "other"`)
	testkit.Eventually(t, patience, func() error {
		if left := r.ADS.Statuses(); len(left) > 0 {
			return fmt.Errorf("left: %v", left)
		}
		return nil
	})
}

// TestPlaintextCallerIsNeverVerified: a caller without an identity is not verified, whatever Workload its node id
// names.
func TestPlaintextCallerIsNeverVerified(t *testing.T) {
	r := start(t, append(basicMesh(), onlyA(), podOf("pod", "web"))...)
	c := r.delta("pod", "default")
	c.subscribe(cds, "*")
	c.ack(c.expect(cds, "+80|"+hostA)) // as the labels of the Workload that it names select
	if !r.acked("pod").GetUnverified() {
		t.Error("verified without an identity")
	}
}

// TestIdentitiesShareANodeID: each identity that uses a node id has a status of its own. Of one identity's streams the
// newest counts.
func TestIdentitiesShareANodeID(t *testing.T) {
	r := start(t, basicMesh()...)
	pki := testkit.PKI(t)
	connect := r.secure(t, pki)
	open := func(account string) *deltaClient {
		c := r.deltaOver(context.Background(), connect(pki.NewSVID("default", account)), node("vm", "default"))
		c.subscribe(cds, "*")
		c.ack(c.next())
		return c
	}
	identities := func(statuses []*configv1.ProxyStatus) (found []string) {
		for _, p := range statuses {
			found = append(found, p.GetIdentity()[strings.LastIndexByte(p.GetIdentity(), '/')+1:])
		}
		return found
	}
	expect := func(step string, want ...string) {
		t.Helper()
		testkit.Eventually(t, patience, func() error {
			if got := identities(r.ADS.Statuses()); !slices.Equal(got, want) {
				return fmt.Errorf("%s: %v, want %v", step, got, want)
			}
			return nil
		})
	}
	open("a")
	expect("one", "a")
	b, again := open("b"), open("a")
	expect("two accounts, three streams", "a", "b")
	r.ADS.Report(true)
	again.cancel()
	expect("an older stream of the account is left", "a", "b")
	b.cancel()
	expect("one account has left", "a")
	// A report that the node id has left comes with the statuses of the identities that stay.
	var gone []string
	var stay []*configv1.ProxyStatus
	testkit.Eventually(t, patience, func() error {
		statuses, left := r.ADS.Report(false)
		if len(left) > 0 {
			gone, stay = left, statuses
		}
		if len(gone) == 0 {
			return fmt.Errorf("nothing has left")
		}
		return nil
	})
	if id := node("vm", "default").GetId(); !slices.Equal(gone, []string{id}) || !slices.Equal(identities(stay), []string{"a"}) {
		t.Errorf("gone %v, reported anew %v", gone, stay)
	}
}

// TestClassDoesNotDependOnTheDomainOfTheNodeID: the DNS domain is the mesh's, whatever a node id ends in.
func TestClassDoesNotDependOnTheDomainOfTheNodeID(t *testing.T) {
	r := start(t, basicMesh()...)
	classes := map[string]bool{}
	for i, domain := range []string{"default.svc.cluster.local", "", "example.com", "default.svc.made.up"} {
		pod := fmt.Sprint("pod-", i)
		c := r.deltaOver(context.Background(), r.Conn, &core.Node{Id: "sidecar~10.0.0.1~" + pod + ".default~" + domain})
		c.subscribe(cds, "*")
		c.ack(c.next())
		classes[r.acked(pod).GetClass()] = true
	}
	if len(classes) != 1 {
		t.Errorf("%d classes", len(classes))
	}
}
