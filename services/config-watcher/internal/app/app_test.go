package app

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

const shop = `
apiVersion: v1
kind: Service
metadata: {name: server, namespace: apps}
spec:
  clusterIP: 10.0.0.1
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Pod
metadata: {name: server-1, namespace: apps, labels: {app: server, version: v1, security.istio.io/tlsMode: istio}}
spec: {serviceAccountName: server, containers: []}
status: {podIP: 10.1.0.1, conditions: [{type: Ready, status: "True"}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: server, namespace: apps}
spec:
  hosts: [server]
  http:
  - route: [{destination: {host: server}}]
`

func route(weight int) string {
	return fmt.Sprintf(`
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: server, namespace: apps}
spec:
  hosts: [server]
  http:
  - route:
    - {destination: {host: server, subset: v1}, weight: %d}
    - {destination: {host: server, subset: v2}, weight: 105}
`, weight)
}

func TestApplyReachesSubscriber(t *testing.T) {
	f := newFixture(t)
	r := f.start(f.options())
	sub := r.subscribe(nil, nil)
	first := sub.next()
	if first.Sequence != 1 || sub.get("MeshConfig", "", "default") == nil || sub.server.GetInstance() == "" {
		t.Fatalf("first revision %v of %v holds %v", first, sub.server, sub.held)
	}
	out := r.apply(shop)
	if len(out.Results) != 3 || out.Results[0].Action != configv1.Action_ACTION_CREATED {
		t.Fatalf("results %v", out.Results)
	}
	sub.until(out.Revision)
	es := sub.get("EndpointSet", "apps", "server.apps.svc.cluster.local:80/Kubernetes").GetEndpointSet()
	if len(es.GetEndpoints()) != 1 {
		t.Fatalf("endpoints %v", es)
	}
	e := es.Endpoints[0]
	if e.Address != "10.1.0.1" || e.Port != 8080 || e.TlsMode != configv1.TlsMode_TLS_MODE_ISTIO ||
		e.Identity != "spiffe://cluster.local/ns/apps/sa/server" {
		t.Errorf("endpoint %v", e)
	}
	if page := r.body(t, "/debug/resources?kind=EndpointSet", f.admin()); !strings.Contains(page, "10.1.0.1") {
		t.Errorf("the debug page has no endpoint: %s", page)
	}
	vs := &networking.VirtualService{}
	if err := sub.get("VirtualService", "apps", "server").GetIstioConfig().GetSpec().UnmarshalTo(vs); err != nil {
		t.Fatal(err)
	}
	if vs.Hosts[0] != "server.apps.svc.cluster.local" || vs.Gateways[0] != "mesh" {
		t.Errorf("virtual service %v", vs)
	}
	if again := r.apply(shop); again.Revision != 0 || again.Results[2].Action != configv1.Action_ACTION_UNCHANGED {
		t.Errorf("applied again: %v", again)
	}
	if _, err := r.store().Delete(context.Background(),
		&configv1.DeleteRequest{Key: &configv1.ObjectKey{Kind: "Pod", Namespace: "apps", Name: "server-1"}}); err != nil {
		t.Fatal(err)
	}
	sub.next()
	if sub.upserts != 1 || sub.removed != 1 {
		t.Errorf("deleting a Pod upserts %d and removes %d resources, want its EndpointSet and its Workload", sub.upserts, sub.removed)
	}
}

func TestBrokenObjectIsRefusedWhole(t *testing.T) {
	f := newFixture(t)
	r := f.start(f.options())
	r.apply(shop)
	before, _ := r.revisions.Current()
	_, err := r.tryApply(route(-5)+"---"+strings.ReplaceAll(shop, "name: server,", "name: other,"), "kind: [")
	st := status.Convert(err)
	if st.Code() != codes.InvalidArgument {
		t.Fatalf("got %v", err)
	}
	if !regexp.MustCompile(`(?i)apps/server.*http\[0\]\.route\[0\].*weight`).MatchString(st.Message()) {
		t.Errorf("message %q names no weight", st.Message())
	}
	if !strings.Contains(st.Message(), "doc0.yaml:9: ") || !strings.Contains(st.Message(), "doc1.yaml:1: not valid YAML") {
		t.Errorf("message %q names not all places", st.Message())
	}
	var violations []*errdetails.BadRequest_FieldViolation
	for _, d := range st.Details() {
		if br, ok := d.(*errdetails.BadRequest); ok {
			violations = br.FieldViolations
		}
	}
	if len(violations) != 2 || violations[0].Field != "VirtualService apps/server: spec.http[0].route[0].weight" &&
		violations[1].Field != "VirtualService apps/server: spec.http[0].route[0].weight" {
		t.Errorf("violations %v", violations)
	}
	if after, _ := r.revisions.Current(); after != before {
		t.Error("a refused apply made a revision")
	}
	if _, err := r.store().Get(context.Background(),
		&configv1.GetRequest{Key: &configv1.ObjectKey{Kind: "VirtualService", Namespace: "apps", Name: "other"}}); status.Code(
		err) != codes.NotFound {
		t.Errorf("a refused apply stored something: %v", err)
	}
}

func TestWarningsAreTold(t *testing.T) {
	f := newFixture(t)
	r := f.start(f.options())
	const gateway = `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: g, namespace: apps}
spec: {selector: {a: b}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: [a.com], defaultEndpoint: "127.0.0.1:80"}]}
`
	const want = "Gateway apps/g: spec.servers[0].defaultEndpoint: has no effect: "
	if got := r.apply(gateway).Results[0].Warnings; len(got) == 0 || !strings.Contains(got[0], want) {
		t.Errorf("the answer warns %q", got)
	}
	token := f.admin()
	if page := r.body(t, "/debug/sources", token); !strings.Contains(page, want) {
		t.Errorf("the page does not warn: %s", page)
	}
	if _, err := r.store().Delete(t.Context(),
		&configv1.DeleteRequest{Key: &configv1.ObjectKey{Kind: "Gateway", Namespace: "apps", Name: "g"}}); err != nil {
		t.Fatal(err)
	}
	if page := r.body(t, "/debug/sources", token); strings.Contains(page, want) {
		t.Errorf("the page warns of an object that is gone: %s", page)
	}
}

func TestResourceVersions(t *testing.T) {
	f := newFixture(t)
	r := f.start(f.options())
	r.WaitReady()
	ctx, c := context.Background(), r.store()
	created, err := c.Create(ctx, &configv1.CreateRequest{Manifest: []byte(route(5))})
	if err != nil {
		t.Fatal(err)
	}
	if created.Object.Generation != 1 || created.Revision == 0 {
		t.Errorf("created %v", created)
	}
	if _, err := c.Create(ctx, &configv1.CreateRequest{Manifest: []byte(route(5))}); status.Code(err) != codes.AlreadyExists {
		t.Errorf("created twice: %v", err)
	}
	key := created.Object.Key
	patched, err := c.Patch(ctx, &configv1.PatchRequest{Key: key, Patch: []byte(`{"spec":{"exportTo":["."]}}`),
		ResourceVersion: created.Object.ResourceVersion})
	if err != nil || patched.Object.Generation != 2 {
		t.Fatalf("patched %v %v", patched, err)
	}
	stale := strings.Replace(route(7), "namespace: apps}",
		fmt.Sprintf("namespace: apps, resourceVersion: %q}", created.Object.ResourceVersion), 1)
	if _, err := c.Update(ctx, &configv1.UpdateRequest{Manifest: []byte(stale)}); status.Code(err) != codes.Aborted {
		t.Errorf("stale update: %v", err)
	}
	if _, err := c.Delete(ctx, &configv1.DeleteRequest{Key: key, ResourceVersion: created.Object.ResourceVersion}); status.Code(
		err) != codes.Aborted {
		t.Errorf("stale delete: %v", err)
	}
	st, err := c.UpdateStatus(ctx, &configv1.UpdateStatusRequest{Key: key, Status: []byte(`{"observedGeneration":2}`)})
	if err != nil || st.Object.Generation != 2 || st.Object.ResourceVersion == patched.Object.ResourceVersion {
		t.Errorf("status: %v %v", st, err)
	}
	updated, err := c.Update(ctx, &configv1.UpdateRequest{Manifest: []byte(route(7))})
	if err != nil || updated.Object.Generation != 3 || !strings.Contains(string(updated.Object.Manifest), "observedGeneration") {
		t.Errorf("update loses the status or miscounts: %v %v", updated, err)
	}
	if _, err := c.Patch(ctx, &configv1.PatchRequest{Key: key, Patch: []byte(`{"spec":{"htp":[]}}`)}); status.Code(
		err) != codes.InvalidArgument || !strings.Contains(err.Error(), `did you mean "http"`) {
		t.Errorf("patch with an unknown field: %v", err)
	}
}

func TestKilledProcessLosesNothing(t *testing.T) {
	f := newFixture(t)
	o := f.options()
	o.StateDir = filepath.Join(f.dir, "state")
	first := f.start(o)
	sub := first.subscribe(nil, nil)
	sub.until(first.apply(shop).Revision)
	held := sub.held
	first.Stop()

	second := f.start(o)
	again := second.subscribe(held, nil)
	rev := again.next()
	if again.upserts != 0 || again.removed != 0 {
		t.Errorf("after a restart %d upserts and %d removals were sent to a subscriber that holds everything", again.upserts, again.removed)
	}
	if string(rev.StateHash) != string(sub.revision.StateHash) || rev.Epoch == sub.revision.Epoch {
		t.Errorf("revision %v after %v", rev, sub.revision)
	}
	if rev.Sequence <= sub.revision.Sequence {
		t.Errorf("revision %d after %d: numbers go backwards over a restart", rev.Sequence, sub.revision.Sequence)
	}
	again.until(second.apply(route(5)).Revision)
	if again.upserts != 1 {
		t.Errorf("one change sent %d resources", again.upserts)
	}
}

func TestResumeSendsDifferenceOnly(t *testing.T) {
	f := newFixture(t)
	r := f.start(f.options())
	sub := r.subscribe(nil, nil)
	sub.until(r.apply(shop).Revision)
	held := sub.held
	if err := sub.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	r.apply(route(5))
	if _, err := r.store().Delete(context.Background(),
		&configv1.DeleteRequest{Key: &configv1.ObjectKey{Kind: "Service", Namespace: "apps", Name: "server"}}); err != nil {
		t.Fatal(err)
	}
	again := r.subscribe(held, nil)
	again.next()
	// Changed: the VirtualService and the Workload, which has lost its target. Removed: the Service and its
	// EndpointSet.
	if again.upserts != 2 || again.removed != 2 {
		t.Errorf("resumed with %d upserts and %d removals", again.upserts, again.removed)
	}
	narrow := r.subscribe(nil, &configv1.Interest{Kinds: []string{"Workload", "MeshConfig"}, Namespaces: []string{"other"}})
	narrow.next()
	if len(narrow.held) != 1 {
		t.Errorf("interest in another namespace holds %v", narrow.held)
	}
}

func TestBrokenFileKeepsLastGood(t *testing.T) {
	f := newFixture(t)
	dir := filepath.Join(f.dir, "mesh")
	path := filepath.Join(dir, "shop.yaml")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	testkit.WriteFile(t, path, []byte(shop))
	o := f.options()
	o.ConfigDirs = []string{dir}
	r := f.start(o)
	sub := r.subscribe(nil, nil)
	sub.next()
	if sub.get("VirtualService", "apps", "server") == nil {
		t.Fatalf("not everything of the file is in the first revision: %v", sub.held)
	}
	good := sub.get("VirtualService", "apps", "server").Hash

	broken := strings.Replace(shop, "route: [{destination: {host: server}}]", "route: [{destination: {host: server}}]\n    timout: 3s", 1)
	broken = strings.Replace(broken, "10.0.0.1", "10.0.0.2", 1)
	testkit.WriteFile(t, path, []byte(broken))
	sub.next()
	if got := sub.get("Service", "apps", "server.apps.svc.cluster.local").GetService().GetAddresses(); len(got) != 1 || got[0] != "10.0.0.2" {
		t.Errorf("the other objects of the file do not go on: %v", got)
	}
	if string(sub.get("VirtualService", "apps", "server").Hash) != string(good) {
		t.Error("the broken object's last good version did not stay")
	}
	token := f.admin()
	page := r.body(t, "/debug/sources", token)
	if !strings.Contains(page, `mesh/shop.yaml:23: VirtualService apps/server: spec.http[0].timout: unknown field`) ||
		!strings.Contains(page, "did you mean") {
		t.Errorf("sources page does not tell what is wrong: %s", page)
	}
	testkit.WriteFile(t, path, []byte("kind: [\n"))
	testkit.Eventually(t, patience, func() error {
		if page := r.body(t, "/debug/sources", token); !strings.Contains(page, "not valid YAML") {
			return fmt.Errorf("sources page: %s", page)
		}
		return nil
	})
	if sub.get("Service", "apps", "server.apps.svc.cluster.local") == nil {
		t.Error("a file that cannot be read took its objects away")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	for sub.get("Service", "apps", "server.apps.svc.cluster.local") != nil {
		sub.next()
	}
}

func (r *running) body(t *testing.T, path, token string) string {
	t.Helper()
	_, body, err := r.Get(path, token)
	if err != nil {
		t.Fatal(err)
	}
	return body
}
