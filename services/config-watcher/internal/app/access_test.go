package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/audit"
	"fairlead.dev/services/config-watcher/internal/resource"
)

// as is a context that calls with the token of a service account.
func (r *running) as(account string) context.Context {
	r.t.Helper()
	namespace, name, _ := strings.Cut(account, "/")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	r.t.Cleanup(cancel)
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+r.issuer.Token(namespace, name, contract.AdminAudience))
}

func entry(namespace, name, host string) string {
	return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: %s, namespace: %s}\nspec: {hosts: [%s], "+
		"ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS}\n",
		name, namespace, host)
}

func entryKey(namespace, name string) *configv1.ObjectKey {
	return &configv1.ObjectKey{Kind: "ServiceEntry", Namespace: namespace, Name: name}
}

func document(text string) *configv1.ApplyRequest {
	return &configv1.ApplyRequest{Documents: []*configv1.Document{{Name: "doc.yaml", Content: []byte(text)}}}
}

const roles = `
roles:
- identities: [ops/viewer, spiffe://cluster.local/ns/ops/sa/spiffe]
  namespaces: [a]
  role: viewer
- identities: [ops/editor]
  namespaces: [a, b]
  role: editor
- identities: [ops/everywhere]
  namespaces: ["*"]
  role: editor
- identities: [ops/second]
  namespaces: ["*"]
  role: admin
- identities: [ops/creator]
  namespaces: [a]
  verbs: [get, create]
- identities: [ops/mixed]
  namespaces: [a]
  role: viewer
- identities: [ops/mixed]
  namespaces: [b]
  verbs: [delete]
`

func (f *fixture) rolesFile(text string) string {
	path := filepath.Join(f.t.TempDir(), "roles.yaml")
	testkit.WriteFile(f.t, path, []byte(text))
	return path
}

// startWithRoles runs a config-watcher in which every namespace has an object "old".
func startWithRoles(t *testing.T, change ...func(*deps)) *running {
	t.Helper()
	f := newFixture(t)
	o := f.options()
	o.RolesFile = f.rolesFile(roles)
	r := f.start(o, change...)
	r.WaitReady()
	for _, ns := range []string{"a", "b", "c", "istio-system"} {
		r.apply(entry(ns, "old", "old.example.com"))
	}
	r.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: old}\n")
	return r
}

// TestVerbsOfRoles tries every verb with every role in every kind of namespace. Each refusal names the identity, the
// object or namespace, and the remedy, and changes nothing.
func TestVerbsOfRoles(t *testing.T) {
	r := startWithRoles(t)
	client := configv1.NewConfigStoreServiceClient(r.dial(""))
	all := []string{"get", "list", "watch", "create", "update", "patch", "delete"}
	read := all[:3]
	// What each may do in a, b, c, istio-system, and to what is in no namespace.
	may := map[string][5][]string{
		"istio-system/fairlead-admin": {all, all, all, all, all},
		"ops/second":                  {all, all, all, all, all},
		"ops/everywhere":              {all, all, all, all, all},
		"ops/viewer":                  {read, nil, nil, nil, nil},
		"ops/spiffe":                  {read, nil, nil, nil, nil},
		"ops/editor":                  {all, all, nil, nil, nil},
		"ops/creator":                 {{"get", "create"}, nil, nil, nil, nil},
		"ops/mixed":                   {read, {"delete"}, nil, nil, nil},
		"ops/nobody":                  {nil, nil, nil, nil, nil},
	}
	before := r.objects()
	for account, where := range may {
		for i, ns := range []string{"a", "b", "c", "istio-system", ""} {
			for _, verb := range all {
				err := r.try(client, account, verb, ns)
				if allowed := slices.Contains(where[i], verb); allowed != (status.Code(err) == codes.OK) ||
					!allowed && status.Code(err) != codes.PermissionDenied {
					t.Errorf("%s %s in %q: %v", account, verb, ns, err)
				}
				if err == nil {
					continue
				}
				_, name, _ := strings.Cut(account, "/")
				if !strings.Contains(err.Error(), "sa/"+name) || !strings.Contains(err.Error(), "--roles-file") {
					t.Errorf("%s %s in %q: the refusal does not help: %v", account, verb, ns, err)
				}
			}
		}
	}
	if after := r.objects(); after != before {
		t.Errorf("objects were %s, are %s", before, after)
	}
}

// objects lists all.
func (r *running) objects() string {
	r.t.Helper()
	list, err := r.store().List(r.t.Context(), &configv1.ListRequest{})
	if err != nil {
		r.t.Fatal(err)
	}
	var out []string
	for _, o := range list.Objects {
		out = append(out, fmt.Sprint(o.Key.Kind, " ", o.Key.Namespace, "/", o.Key.Name))
	}
	return strings.Join(out, ", ")
}

// try does a thing as somebody, and undoes it as the administrator.
func (r *running) try(client configv1.ConfigStoreServiceClient, account, verb, ns string) error {
	r.t.Helper()
	ctx := r.as(account)
	kind, old, created := "ServiceEntry", entry(ns, "old", "old.example.com"), entry(ns, "new", "new.example.com")
	if ns == "" {
		kind = "Namespace"
		old, created = "apiVersion: v1\nkind: Namespace\nmetadata: {name: old}\n", "apiVersion: v1\nkind: Namespace\nmetadata: {name: new}\n"
	}
	k := &configv1.ObjectKey{Kind: kind, Namespace: ns, Name: "old"}
	var err error
	switch verb {
	case "get":
		_, err = client.Get(ctx, &configv1.GetRequest{Key: k})
	case "list":
		var list *configv1.ListResponse
		list, err = client.List(ctx, &configv1.ListRequest{Kind: kind, Namespace: ns})
		if ns == "" && err == nil && len(list.Objects) == 0 {
			err = status.Errorf(codes.PermissionDenied, "sees none: sa/%s --roles-file", account[strings.IndexByte(account, '/')+1:])
		}
	case "watch":
		if ns == "" {
			return r.try(client, account, "list", ns) // all namespaces may be watched by whoever may watch one
		}
		var stream grpc.ServerStreamingClient[configv1.ConfigStoreServiceWatchResponse]
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if stream, err = client.Watch(ctx, &configv1.ConfigStoreServiceWatchRequest{Kind: kind, Namespace: ns}); err == nil {
			_, err = stream.Recv()
		}
	case "create":
		if _, err = client.Create(ctx, &configv1.CreateRequest{Manifest: []byte(created)}); err == nil {
			_, undo := r.store().Delete(ctx, &configv1.DeleteRequest{Key: &configv1.ObjectKey{Kind: kind, Namespace: ns, Name: "new"}})
			err = undo
		}
	case "update":
		_, err = client.Update(ctx, &configv1.UpdateRequest{Manifest: []byte(old)})
	case "patch":
		_, err = client.Patch(ctx, &configv1.PatchRequest{Key: k, Patch: []byte(`{"metadata": {"labels": {"patched": "yes"}}}`)})
	case "delete":
		if _, err = client.Delete(ctx, &configv1.DeleteRequest{Key: k}); err == nil {
			r.apply(old)
		}
	}
	return err
}

// TestApplyIsAllOrNothing: one object that its caller may not write refuses all of them, by name; whoever may only
// create does not replace; and lists and the fleet show what of all namespaces may be seen.
func TestApplyIsAllOrNothing(t *testing.T) {
	r := startWithRoles(t)
	client := configv1.NewConfigStoreServiceClient(r.dial(""))
	before := r.objects()
	for _, dry := range []bool{false, true} {
		req := document(entry("a", "one", "one.example.com") + "---\n" + entry("c", "two", "two.example.com"))
		req.DryRun = dry
		_, err := client.Apply(r.as("ops/editor"), req)
		if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "ServiceEntry c/two") ||
			strings.Contains(err.Error(), "a/one") {
			t.Errorf("apply (dry run %v): %v", dry, err)
		}
	}
	if _, err := client.Apply(r.as("ops/creator"), document(entry("a", "old", "other.example.com"))); status.Code(
		err) != codes.PermissionDenied || !strings.Contains(err.Error(), "update") {
		t.Errorf("replace by one who may create: %v", err)
	}
	if after := r.objects(); after != before {
		t.Errorf("objects were %s, are %s", before, after)
	}
	if _, err := client.Apply(r.as("ops/creator"), document(entry("a", "made", "made.example.com"))); err != nil {
		t.Errorf("create by apply: %v", err)
	}
	list, err := client.List(r.as("ops/editor"), &configv1.ListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range list.Objects {
		if o.Key.Namespace != "a" && o.Key.Namespace != "b" {
			t.Errorf("listed %v", o.Key)
		}
	}
	if len(list.Objects) != 3 {
		t.Errorf("%d objects", len(list.Objects))
	}
	// The fleet.
	r.connect("spiffe://cluster.local/ns/shop/sa/gateway")
	fleetOf := configv1.NewFleetServiceClient(r.dial(""))
	if got, err := fleetOf.ListProxies(r.as("ops/editor"), &configv1.ListProxiesRequest{}); err != nil || len(got.Proxies) != 0 {
		t.Errorf("sees proxies of shop: %v, %v", got.GetProxies(), err)
	}
	if _, err := fleetOf.ListProxies(r.as("ops/editor"), &configv1.ListProxiesRequest{Namespace: "shop"}); status.Code(
		err) != codes.PermissionDenied {
		t.Errorf("proxies of shop: %v", err)
	}
	if got, err := fleetOf.ListProxies(r.as("ops/second"), &configv1.ListProxiesRequest{}); err != nil || len(got.Proxies) != 1 {
		t.Errorf("administrator sees %v, %v", got.GetProxies(), err)
	}
	if got, err := fleetOf.WaitAcked(r.as("ops/viewer"), &configv1.WaitAckedRequest{}); err != nil || len(got.Pending) != 0 {
		t.Errorf("waits for proxies of others: %v, %v", got, err)
	}
	if got, err := fleetOf.ListProxies(metadata.AppendToOutgoingContext(t.Context()), &configv1.ListProxiesRequest{}); status.Code(
		err) != codes.Unauthenticated {
		t.Errorf("anonymous: %v, %v", got, err)
	}
}

// TestRolesAreFollowed: a replaced file counts at once and ends watches, a broken one changes nothing and is said, and
// none that is broken is started with.
func TestRolesAreFollowed(t *testing.T) {
	r := startWithRoles(t)
	client := configv1.NewConfigStoreServiceClient(r.dial(""))
	stream, err := client.Watch(r.as("ops/viewer"), &configv1.ConfigStoreServiceWatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); err != nil || m.Object.GetKey().GetNamespace() != "a" {
		t.Fatalf("watch: %v, %v", m, err)
	}
	file := r.cfg.RolesFile
	replace := func(text string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(file+".new", []byte(text), 0o600), os.Rename(file+".new", file)); err != nil {
			t.Fatal(err)
		}
	}
	replace("roles: [{identities: [ops/editor], namespaces: [a], role: king}]")
	testkit.Eventually(t, patience, func() error {
		families, err := r.Registry.Gather()
		for _, f := range families {
			if f.GetName() == "fairlead_config_watcher_roles_file_broken" && f.GetMetric()[0].GetGauge().GetValue() == 1 {
				return nil
			}
		}
		return errors.Join(errors.New("the metric does not tell"), err)
	})
	if _, err := client.Get(r.as("ops/viewer"), &configv1.GetRequest{Key: entryKey("a", "old")}); err != nil {
		t.Errorf("with a broken file: %v", err)
	}
	replace("roles: [{identities: [ops/editor], namespaces: [a], role: viewer}]")
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Aborted {
		t.Errorf("watch ended with %v", err)
	}
	if _, err := client.Get(r.as("ops/viewer"), &configv1.GetRequest{Key: entryKey("a", "old")}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("role taken away: %v", err)
	}
	if _, err := client.Delete(r.as("ops/editor"), &configv1.DeleteRequest{Key: entryKey("a", "old")}); status.Code(
		err) != codes.PermissionDenied {
		t.Errorf("role made less: %v", err)
	}
	for name, text := range map[string]string{
		"unknown field":          "roles: [{identity: [a/b], namespaces: [a], role: viewer}]",
		"admin of one namespace": "roles: [{identities: [a/b], namespaces: [a], role: admin}]",
		"root namespace":         "roles: [{identities: [a/b], namespaces: [istio-system], role: viewer}]",
		"no identity":            "roles: [{identities: [everybody], namespaces: [a], role: viewer}]",
		"unknown verb":           "roles: [{identities: [a/b], namespaces: [a], verbs: [ban]}]",
		"no namespaces":          "roles: [{identities: [a/b], role: viewer}]",
		"both":                   "roles: [{identities: [a/b], namespaces: [a], role: viewer, verbs: [get]}]",
		"neither":                "roles: [{identities: [a/b], namespaces: [a]}]",
	} {
		o := r.options()
		o.StoreDir, o.RolesFile = "", r.rolesFile(text)
		if _, err := open(t.Context(), &o, r.deps(r.ca.NewSVID(contract.SystemNamespace, contract.ConfigWatcherAccount))); err == nil ||
			!strings.Contains(err.Error(), "--roles-file") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func banOf(name, identity, more string) string {
	return fmt.Sprintf("apiVersion: fairlead.dev/v1\nkind: IdentityBan\nmetadata: {name: %s}\nspec: {identity: %q%s}\n", name, identity, more)
}

// TestBans: only administrators ban, nobody bans what the mesh needs, or himself; a banned identity loses the
// configuration API, open watches too, xds-servers are told, and all comes back when the ban ends.
func TestBans(t *testing.T) {
	r := startWithRoles(t)
	client := configv1.NewConfigStoreServiceClient(r.dial(""))
	access := configv1.NewAccessServiceClient(r.dial(""))
	const editor = "spiffe://cluster.local/ns/ops/sa/editor"
	for name, c := range map[string]struct{ as, identity, more, want string }{
		"an editor of everything": {"ops/everywhere", editor, "", "only administrators ban"},
		"the xds-servers":         {"ops/second", "spiffe://cluster.local/ns/istio-system/sa/xds-server", "", "the mesh needs this identity"},
		"the first administrator": {"ops/second", "spiffe://cluster.local/ns/istio-system/sa/fairlead-admin", "", "the mesh needs this identity"},
		"oneself":                 {"ops/second", "spiffe://cluster.local/ns/ops/sa/second", "", "your own identity"},
		"no identity":             {"ops/second", "ops/editor", "", "write spiffe://"},
	} {
		for what, err := range map[string]error{
			"apply": func() error { _, err := client.Apply(r.as(c.as), document(banOf("x", c.identity, c.more))); return err }(),
			"create": func() error {
				_, err := client.Create(r.as(c.as), &configv1.CreateRequest{Manifest: []byte(banOf("x", c.identity, c.more))})
				return err
			}(),
		} {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s by %s: %v", name, what, err)
			}
		}
	}
	sub := r.subscribe(nil, nil)
	sub.next()
	watch, err := client.Watch(r.as("ops/editor"), &configv1.ConfigStoreServiceWatchRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Apply(r.as("ops/second"), document(banOf("editor", editor, ", reason: left the company"))); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = watch.Recv()
	}
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("open watch: %v", err)
	}
	_, err = client.Get(r.as("ops/editor"), &configv1.GetRequest{Key: entryKey("a", "old")})
	if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "banned") ||
		!strings.Contains(err.Error(), "left the company") {
		t.Errorf("banned: %v", err)
	}
	sub.next()
	if b := sub.get(resource.KindIdentityBan, "", "editor").GetIdentityBan(); b.GetIdentity() != editor {
		t.Errorf("xds-servers are told %v", b)
	}
	// A ban with an end.
	until := time.Now().Add(400 * time.Millisecond).UTC().Format(time.RFC3339Nano)
	if _, err := client.Apply(r.as("ops/second"), document(banOf("editor", editor, fmt.Sprintf(", until: %q", until)))); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, patience, func() error {
		_, err := client.Get(r.as("ops/editor"), &configv1.GetRequest{Key: entryKey("a", "old")})
		return err
	})
	for sub.get(resource.KindIdentityBan, "", "editor") != nil {
		sub.next()
	}
	who, err := access.WhoAmI(r.as("ops/editor"), &configv1.WhoAmIRequest{})
	if err != nil || who.Identity != editor || who.Method != "jwt" || len(who.Grants) != 1 ||
		!slices.Equal(who.Grants[0].Namespaces, []string{"a", "b"}) {
		t.Errorf("who am I: %v, %v", who, err)
	}
	for _, c := range []struct {
		verb, kind, namespace string
		want                  bool
	}{{"delete", "ServiceEntry", "a", true}, {"delete", "ServiceEntry", "c", false}, {"create", "Namespace", "", false},
		{"create", "IdentityBan", "", false}, {"list", "", "b", true}} {
		got, err := access.CanI(r.as("ops/editor"), &configv1.CanIRequest{Verb: c.verb, Kind: c.kind, Namespace: c.namespace})
		if err != nil || got.Allowed != c.want || got.Allowed == (got.Reason != "") {
			t.Errorf("can I %s %s in %q: %v, %v", c.verb, c.kind, c.namespace, got, err)
		}
	}
}

// TestAuditOfWrites: every write has a line with who, what and from where, refusals too; reads and dry runs have none;
// nothing of a Secret shows; and only administrators read it.
func TestAuditOfWrites(t *testing.T) {
	r := startWithRoles(t)
	client, access := configv1.NewConfigStoreServiceClient(r.dial("")), configv1.NewAccessServiceClient(r.dial(""))
	lines := func() []audit.Entry {
		t.Helper()
		got, err := access.ListAudit(r.as("ops/second"), &configv1.ListAuditRequest{Last: 1000, Verify: true})
		if err != nil || got.Broken != "" || got.Verified == "" {
			t.Fatalf("audit: %v, %v", got, err)
		}
		out := make([]audit.Entry, len(got.Lines))
		for i, text := range got.Lines {
			if err := json.Unmarshal([]byte(text), &out[i]); err != nil {
				t.Fatal(err)
			}
		}
		return out
	}
	before := len(lines())
	do := func(err error) error { return err }
	apply := func(account, text string, dry bool) error {
		req := document(text)
		req.DryRun = dry
		_, err := client.Apply(r.as(account), req)
		return do(err)
	}
	chain, key := r.ca.NewServer("shop.example.com")
	for _, step := range []struct {
		what string
		err  error
		want codes.Code
	}{
		{"dry run", apply("ops/editor", entry("a", "new", "new.example.com"), true), codes.OK},
		{"create", apply("ops/editor", entry("a", "new", "new.example.com"), false), codes.OK},
		{"unchanged", apply("ops/editor", entry("a", "new", "new.example.com"), false), codes.OK},
		{"update", apply("ops/editor", entry("a", "new", "newer.example.com"), false), codes.OK},
		{"refused", apply("ops/editor", entry("c", "new", "new.example.com"), false), codes.PermissionDenied},
		{"invalid", apply("ops/editor", "apiVersion: v1\nkind: Service\nmetadata: {name: x, namespace: a}\nspec: {}\n", false),
			codes.InvalidArgument},
		{"secret", apply("ops/editor", tlsSecret("a", "tls", chain, key), false), codes.OK},
		{"delete", func() error {
			_, err := client.Delete(r.as("ops/editor"), &configv1.DeleteRequest{Key: entryKey("a", "new")})
			return err
		}(), codes.OK},
		{"read", func() error {
			_, err := client.Get(r.as("ops/editor"), &configv1.GetRequest{Key: entryKey("a", "old")})
			return err
		}(), codes.OK},
	} {
		if status.Code(step.err) != step.want {
			t.Errorf("%s: %v", step.what, step.err)
		}
	}
	var got []string
	for _, e := range lines()[before:] {
		if e.Identity != "spiffe://cluster.local/ns/ops/sa/editor" || e.Method != "jwt" || !strings.HasPrefix(e.Address, "127.0.0.1:") ||
			e.Time.IsZero() {
			t.Errorf("who and from where: %+v", e)
		}
		text := e.Call + " " + e.Result
		for _, o := range e.Objects {
			text += fmt.Sprintf(" %s %s %s/%s", o.Verb, o.Kind, o.Namespace, o.Name)
			if (o.Before != nil) != (e.Result == audit.Accepted && o.Verb != "create") ||
				(o.After != nil) != (e.Result == audit.Accepted && o.Verb != "delete") {
				t.Errorf("%s: before %v, after %v", text, o.Before, o.After)
			}
			if o.After != nil && (o.After.Hash == "") != (o.Kind == "Secret") {
				t.Errorf("%s: hash %q", text, o.After.Hash)
			}
		}
		got = append(got, text)
	}
	want := []string{
		"Apply accepted create ServiceEntry a/new", "Apply accepted update ServiceEntry a/new", "Apply refused apply ServiceEntry c/new",
		"Apply refused",
		"Apply accepted create Secret a/tls", "Delete accepted delete ServiceEntry a/new",
	}
	if !slices.Equal(got, want) {
		t.Errorf("lines\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	raw, err := os.ReadFile(r.cfg.AuditLog)
	if err != nil {
		t.Fatal(err)
	}
	for _, form := range formsOf(key) {
		if strings.Contains(string(raw), form) {
			t.Error("a key shows in the audit log")
		}
	}
	if _, err := access.ListAudit(r.as("ops/everywhere"), &configv1.ListAuditRequest{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("read by an editor: %v", err)
	}
}

// TestNoWriteWithoutAudit: where the line cannot be written nothing is changed, and what was refused is told why.
func TestNoWriteWithoutAudit(t *testing.T) {
	f := newFixture(t)
	o := f.options()
	o.AuditLog = filepath.Join(f.dir, "audit.log")
	r := f.start(o)
	r.apply(entry("a", "first", "first.example.com"))
	before := r.objects()
	// A file that cannot grow, for whatever reason.
	if err := r.audit.Close(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(o.AuditLog), os.Mkdir(o.AuditLog, 0o700)); err != nil {
		t.Fatal(err)
	}
	_, err := r.tryApply(entry("a", "second", "second.example.com"))
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "audit log") {
		t.Errorf("apply: %v", err)
	}
	if _, err := r.store().Delete(t.Context(), &configv1.DeleteRequest{Key: entryKey("a", "first")}); status.Code(err) != codes.Unavailable {
		t.Errorf("delete: %v", err)
	}
	if after := r.objects(); after != before {
		t.Errorf("objects were %s, are %s", before, after)
	}
	// It recovers by itself.
	if err := os.Remove(o.AuditLog); err != nil {
		t.Fatal(err)
	}
	r.apply(entry("a", "second", "second.example.com"))
}
