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
)

const statusRule = `
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web, namespace: shop%s}
spec:
  host: web.shop.svc.cluster.local
  trafficPolicy: {connectionPool: {tcp: {maxConnections: %s}}}
`

// statuses asks Status for the objects of a name, as "<source> <generation>: <conditions>", one a line.
func statuses(t *testing.T, store configv1.ConfigStoreServiceClient, name string) (string, *configv1.StatusResponse, error) {
	res, err := store.Status(t.Context(), &configv1.StatusRequest{Kind: "DestinationRule", Namespace: "shop", Name: name})
	if err != nil {
		return "", nil, err
	}
	var lines []string
	for _, o := range res.GetObjects() {
		line := fmt.Sprintf("%s %d %v:", o.GetSource(), o.GetObservedGeneration(), o.GetInForce())
		for _, c := range o.GetConditions() {
			line += " " + c.GetType() + "=" + c.GetStatus() + "/" + c.GetReason()
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n"), res, nil
}

func statusBecomes(t *testing.T, store configv1.ConfigStoreServiceClient, name string, want ...string) *configv1.StatusResponse {
	t.Helper()
	var last *configv1.StatusResponse
	testkit.Eventually(t, patience, func() error {
		got, res, err := statuses(t, store, name)
		if last = res; err == nil && got != strings.Join(want, "\n") {
			err = fmt.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
		}
		return err
	})
	return last
}

// TestStatusOfEverySource: objects of files have the same conditions as those of the store, which are written there
// too.
func TestStatusOfEverySource(t *testing.T) {
	w := newFixture(t)
	o := w.options()
	files := t.TempDir()
	o.ConfigDirs = []string{files}
	write := func(max, meta string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(files, "rule.yaml"), fmt.Appendf(nil, statusRule, meta, max), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("10", "")
	r := w.start(o)
	r.WaitReady()
	ctx, store := t.Context(), r.store()
	report, err := configv1.NewConfigServiceClient(r.dial("xds-server")).Report(ctx)
	if err != nil {
		t.Fatal(err)
	}
	say := func(change func(*configv1.ProxyStatus)) {
		t.Helper()
		p := &configv1.ProxyStatus{NodeId: "sidecar~10.0.0.1~web.shop~shop.svc.cluster.local", Namespace: "shop", Workload: "web",
			ConnectedAt: timestamppb.Now()}
		change(p)
		snapshot, _ := r.revisions.Current()
		if err := report.Send(&configv1.ReportRequest{Subscriber: &configv1.Subscriber{Instance: "xds-server-test"},
			Proxies: []*configv1.ProxyStatus{p}, Revision: snapshot.Revision()}); err != nil {
			t.Fatal(err)
		}
	}
	revision := func() *configv1.Revision {
		snapshot, _ := r.revisions.Current()
		return snapshot.Revision()
	}
	say(func(p *configv1.ProxyStatus) {
		p.Types = []*configv1.ProxyTypeStatus{{TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster", Awaiting: true}}
	})
	statusBecomes(t, store, "web", "file 0 true: Accepted=True/Accepted Programmed=False/Pending")
	say(func(p *configv1.ProxyStatus) { p.Acked = revision() })
	statusBecomes(t, store, "web", "file 0 true: Accepted=True/Accepted Programmed=True/Programmed")

	// The same object in the store is in force: it has a creation time.
	r.apply(fmt.Sprintf(statusRule, "", "20"))
	say(func(p *configv1.ProxyStatus) { p.Acked = revision() })
	res := statusBecomes(t, store, "web", "memory 1 true: Accepted=True/Accepted Programmed=True/Programmed",
		"file 0 false: Accepted=False/Overridden Programmed=False/Overridden")
	if got := res.GetObjects()[1].GetConditions()[0].GetMessage(); got != "the same object of source memory is in force; remove one of them" {
		t.Error(got)
	}
	stored := func() string {
		t.Helper()
		got, err := store.Get(ctx, &configv1.GetRequest{Key: &configv1.ObjectKey{Kind: "DestinationRule", Namespace: "shop", Name: "web"}})
		if err != nil {
			t.Fatal(err)
		}
		var manifest struct{ Status gatewayStatus }
		if err := json.Unmarshal(got.GetObject().GetManifest(), &manifest); err != nil {
			t.Fatal(err)
		}
		return manifest.Status.text()
	}
	becomes := func(want string) {
		t.Helper()
		testkit.Eventually(t, patience, func() error {
			if got := stored(); got != want {
				return fmt.Errorf("stored %s, want %s", got, want)
			}
			return nil
		})
	}
	becomes("generation 1, Accepted=True/Accepted, Programmed=True/Programmed")

	// A change is rejected: Envoy's words are in the status, with the generation that they are about.
	r.apply(fmt.Sprintf(statusRule, "", "30"))
	say(func(p *configv1.ProxyStatus) {
		p.Types = []*configv1.ProxyTypeStatus{{TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster", Rejection: &configv1.Rejection{
			ResourceNames: []string{"outbound|80||web.shop.svc.cluster.local"}, Message: "no such thing", Revision: revision(),
		}}}
	})
	becomes("generation 2, Accepted=True/Accepted, Programmed=False/Rejected")
	_, res, err = statuses(t, store, "web")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := res.GetObjects()[0].GetConditions()[1].GetMessage(),
		"0 of 1 proxies acknowledged; rejected by shop/web: Cluster outbound|80||web.shop.svc.cluster.local: no such thing"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}

	// A file that states an earlier time is the older object. It is broken first, and the status says so.
	write("-1", ", creationTimestamp: \"2020-01-01T00:00:00Z\"")
	statusBecomes(t, store, "web", "memory 2 true: Accepted=True/Accepted Programmed=False/Rejected",
		"file 0 false: Accepted=False/Invalid Programmed=False/Invalid")
	write("40", ", creationTimestamp: \"2020-01-01T00:00:00Z\"")
	statusBecomes(t, store, "web", "file 0 true: Accepted=True/Accepted Programmed=False/Pending",
		"memory 2 false: Accepted=False/Overridden Programmed=False/Overridden")
	becomes("generation 2, Accepted=False/Overridden, Programmed=False/Overridden")

	// The loser is deleted, and comes back as the winner when the file goes.
	say(func(p *configv1.ProxyStatus) { p.Acked = revision() })
	if err := os.Remove(filepath.Join(files, "rule.yaml")); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, patience, func() error {
		say(func(p *configv1.ProxyStatus) { p.Acked = revision() })
		if got := stored(); got != "generation 2, Accepted=True/Accepted, Programmed=True/Programmed" {
			return fmt.Errorf("stored %s", got)
		}
		return nil
	})
}
