package app

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

const findingsService = "{apiVersion: v1, kind: Service, metadata: {name: server, namespace: apps}, spec: {ports: [{name: http, port: " +
	"80}]}}\n"

func findingsRoute(name, host string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %s, namespace: apps}
spec: {hosts: [%s], http: [{route: [{destination: {host: %s}}]}]}
`, name, host, host)
}

// messages are those of the status of an object of the store.
func (r *running) messages(kind, name string) []string {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	got, err := r.store().Get(ctx, &configv1.GetRequest{Key: &configv1.ObjectKey{Kind: kind, Namespace: "apps", Name: name}})
	if err != nil {
		r.t.Fatal(err)
	}
	var manifest struct {
		Status struct {
			ValidationMessages []struct{ Type struct{ Code string } }
		}
	}
	if err := json.Unmarshal(got.GetObject().GetManifest(), &manifest); err != nil {
		r.t.Fatal(err)
	}
	var out []string
	for _, m := range manifest.Status.ValidationMessages {
		out = append(out, m.Type.Code)
	}
	return out
}

func warned(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	for i, text := range want {
		if i >= len(got) || !strings.Contains(got[i], text) {
			t.Errorf("%s warns of %q, want %q", what, got, want)
			return
		}
	}
	if len(got) != len(want) {
		t.Errorf("%s warns of %q, want %q", what, got, want)
	}
}

func warningTexts(list []*configv1.Warning) []string {
	var out []string
	for _, w := range list {
		out = append(out, w.GetText())
	}
	return out
}

// TestFindings: what is wrong with an object among others is told when it is written, when others make it wrong, and in
// its status for as long as it is so.
func TestFindings(t *testing.T) {
	f := newFixture(t)
	r := f.start(f.options())
	r.WaitReady()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	dry := func(text string) *configv1.ApplyResponse {
		t.Helper()
		out, err := r.store().Apply(ctx,
			&configv1.ApplyRequest{DryRun: true, Documents: []*configv1.Document{{Name: "doc.yaml", Content: []byte(text)}}})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}

	route := findingsRoute("server", "server")
	warned(t, "a dry run in an empty namespace", dry(route).GetResults()[0].GetWarnings(), "[NamespaceEmpty]", "[HostNotFound]")
	r.apply("{apiVersion: v1, kind: Namespace, metadata: {name: apps}}")
	warned(t, "a dry run", dry(route).GetResults()[0].GetWarnings(), "[HostNotFound]")
	warned(t, "a dry run of both", dry(route + "---\n" + findingsService).GetResults()[0].GetWarnings())
	warned(t, "apply", r.apply(route).GetResults()[0].GetWarnings(),
		`spec.http[0].route[0].destination.host: "server": no Service or ServiceEntry has the host server.apps.svc.cluster.local`)
	warned(t, "the status", r.messages("VirtualService", "server"), "HostNotFound")
	warned(t, "apply of the same", r.apply(route).GetResults()[0].GetWarnings(), "[HostNotFound]")

	// What is missing comes.
	out := r.apply(findingsService)
	warned(t, "the service", out.GetResults()[0].GetWarnings())
	if len(out.GetBroken()) > 0 {
		t.Errorf("broken: %v", out.GetBroken())
	}
	warned(t, "the status", r.messages("VirtualService", "server"))

	// A younger one for the host, which is told at once; the older one goes, and it counts.
	warned(t, "the younger", r.apply(findingsRoute("young", "server.apps.svc.cluster.local")).GetResults()[0].GetWarnings(),
		"VirtualService apps/server is older")
	if _, err := r.store().Delete(ctx,
		&configv1.DeleteRequest{Key: &configv1.ObjectKey{Kind: "VirtualService", Namespace: "apps", Name: "server"}}); err != nil {
		t.Fatal(err)
	}
	warned(t, "the status", r.messages("VirtualService", "young"))

	// An object that comes with an older time takes the host from it; a Service that goes breaks both.
	old := strings.Replace(route, "{name: server,", `{name: server, creationTimestamp: "2020-01-01T00:00:00Z",`, 1)
	warned(t, "a dry run", warningTexts(dry(old).GetBroken()), "VirtualService apps/young: spec.hosts[0]")
	warned(t, "an older one", warningTexts(r.apply(old).GetBroken()), "VirtualService apps/young: spec.hosts[0]")
	deleted, err := r.store().Delete(ctx,
		&configv1.DeleteRequest{Key: &configv1.ObjectKey{Kind: "Service", Namespace: "apps", Name: "server"}})
	if err != nil {
		t.Fatal(err)
	}
	warned(t, "delete", warningTexts(deleted.GetBroken()), "VirtualService apps/server: spec.http[0]",
		"VirtualService apps/young: spec.http[0]")

	// All of them, by object and by host; none to whom may read none.
	list := func(req *configv1.ListWarningsRequest) []string {
		t.Helper()
		res, err := r.store().ListWarnings(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		return warningTexts(res.GetWarnings())
	}
	warned(t, "the list", list(&configv1.ListWarningsRequest{}), "apps/server: spec.http[0]", "apps/young: spec.hosts[0]",
		"apps/young: spec.http[0]")
	warned(t, "the list of a name", list(&configv1.ListWarningsRequest{Kind: "VirtualService", Name: "server"}), "apps/server")
	warned(t, "the list of another kind", list(&configv1.ListWarningsRequest{Kind: "Gateway"}))
	warned(t, "the host's list", list(&configv1.ListWarningsRequest{Hosts: []string{"server.apps.svc.cluster.local"}}), "apps/server",
		"apps/young", "apps/young")
	warned(t, "the object's list",
		list(&configv1.ListWarningsRequest{Objects: []*configv1.ObjectKey{{Kind: "VirtualService", Namespace: "apps", Name: "server"}}}),
		"apps/server")
}

// TestFindingsAreNotStored: what a reader is shown in a status is no change when it comes back.
func TestFindingsAreNotStored(t *testing.T) {
	f := newFixture(t)
	r := f.start(f.options())
	r.WaitReady()
	r.apply(findingsRoute("server", "server"))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	got, err := r.store().Get(ctx, &configv1.GetRequest{Key: &configv1.ObjectKey{Kind: "VirtualService", Namespace: "apps", Name: "server"}})
	if err != nil || !strings.Contains(string(got.GetObject().GetManifest()), "HostNotFound") {
		t.Fatalf("%v, %s", err, got.GetObject().GetManifest())
	}
	if out := r.apply(string(got.GetObject().GetManifest())); out.GetResults()[0].GetAction() != configv1.Action_ACTION_UNCHANGED {
		t.Errorf("action %s", out.GetResults()[0].GetAction())
	}
	updated, err := r.store().Update(ctx, &configv1.UpdateRequest{Manifest: got.GetObject().GetManifest()})
	if err != nil || updated.GetObject().GetResourceVersion() != got.GetObject().GetResourceVersion() {
		t.Errorf("%v, %v", err, updated)
	}
}

// TestFindingsOfFiles: objects of files are judged together with those of the store, once all files have been read.
func TestFindingsOfFiles(t *testing.T) {
	f := newFixture(t)
	dir := t.TempDir()
	testkit.WriteFile(t, filepath.Join(dir, "a.yaml"), []byte(findingsRoute("server", "server")+"---\n"+findingsRoute("later", "later")))
	testkit.WriteFile(t, filepath.Join(dir, "b.yaml"), []byte(findingsService))
	o := f.options()
	o.ConfigDirs, o.AdminJWKSFile, o.AdminIssuer = []string{dir}, f.issuer.JWKSFile, f.issuer.Name
	r := f.start(o)
	r.WaitReady()
	page := func() []string {
		t.Helper()
		var out struct{ Findings []string }
		text := r.body(t, "/debug/sources", f.admin())
		if err := json.Unmarshal([]byte(text), &out); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		return out.Findings
	}
	testkit.Eventually(t, patience, func() error {
		if got := page(); len(got) != 1 || !strings.Contains(got[0], "a.yaml:6: VirtualService apps/later") {
			return fmt.Errorf("findings %q", got)
		}
		return nil
	})
	// A younger one of the store loses to the file's, which has no time.
	warned(t, "apply", r.apply(findingsRoute("stored", "server")).GetResults()[0].GetWarnings(), "VirtualService apps/server is older")
	warned(t, "apply of the service",
		r.apply(strings.Replace(findingsService, "name: server", "name: later", 1)).GetResults()[0].GetWarnings())
	if got := page(); len(got) != 1 || !strings.Contains(got[0], "apps/stored") {
		t.Errorf("findings %q", got)
	}
}

// TestFindingsShown: nobody is told of objects that they may not read.
func TestFindingsShown(t *testing.T) {
	r := startWithRoles(t)
	client := configv1.NewConfigStoreServiceClient(r.dial(""))
	in := func(ns, text string) string { return strings.Replace(text, "namespace: apps", "namespace: "+ns, 1) }
	service := in("b", findingsService)
	r.apply(service, in("a", findingsRoute("server", "server.b.svc.cluster.local")),
		in("c", findingsRoute("server", "server.b.svc.cluster.local")))
	remove := func(account string) []string {
		t.Helper()
		out, err := client.Delete(r.as(account),
			&configv1.DeleteRequest{Key: &configv1.ObjectKey{Kind: "Service", Namespace: "b", Name: "server"}})
		if err != nil {
			t.Fatal(err)
		}
		r.apply(service)
		return warningTexts(out.GetBroken())
	}
	warned(t, "the editor of a and b", remove("ops/editor"), "VirtualService a/server")
	warned(t, "an editor of all", remove("ops/everywhere"), "VirtualService a/server", "VirtualService c/server")
	r.apply(in("a", findingsRoute("server", "nobody.b.svc.cluster.local")), in("c", findingsRoute("server", "nobody.b.svc.cluster.local")))
	for account, want := range map[string]int{"ops/viewer": 1, "ops/everywhere": 3} {
		out, err := client.ListWarnings(r.as(account), &configv1.ListWarningsRequest{})
		if err != nil || len(out.GetWarnings()) != want {
			t.Errorf("%s is shown %q, %v", account, warningTexts(out.GetWarnings()), err)
		}
	}
	if _, err := client.ListWarnings(r.as("ops/viewer"), &configv1.ListWarningsRequest{Namespace: "c"}); err == nil ||
		!strings.Contains(err.Error(), "--roles-file") {
		t.Errorf("a namespace that the caller may not read: %v", err)
	}
}
