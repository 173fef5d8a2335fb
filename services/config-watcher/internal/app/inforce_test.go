package app

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// filesMesh is what the tests of what is in force read from files.
const filesMesh = `apiVersion: v1
kind: Namespace
metadata: {name: apps}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: apps, labels: {a: b}}
spec: {hosts: [web], http: [{route: [{destination: {host: web}}], timeout: 1.5s}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: apps}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Secret
metadata: {name: s, namespace: apps}
stringData: {password: hunter2}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: apps}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: apps}
spec: {hostnames: [web.example.com], rules: [{backendRefs: [{name: web, port: 80}]}]}
`

const storedWeb = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: apps}
spec: {hosts: [web], http: [{route: [{destination: {host: web}}], timeout: 2s}]}
`

// key of an object of apps.
func appsKey(kind, name string) *configv1.ObjectKey {
	return &configv1.ObjectKey{Kind: kind, Namespace: "apps", Name: name}
}

func inForce(t *testing.T, r *running, kind, name string) *configv1.Object {
	t.Helper()
	res, err := r.store().Get(t.Context(), &configv1.GetRequest{Key: appsKey(kind, name), InForce: true})
	if err != nil {
		t.Fatal(err)
	}
	return res.Object
}

// describe is "source location overrides".
func describe(o *configv1.Object) string {
	text := o.Source + " " + o.Location
	for _, p := range o.Overrides {
		text += ", overrides " + p.Source + " " + p.Location
	}
	return text
}

// TestInForce follows an object of a file through the API: as it is, overridden by the store, and in force again.
func TestInForce(t *testing.T) {
	f := newFixture(t)
	o := f.options()
	file := filepath.Join(f.dir, "mesh.yaml")
	testkit.WriteFile(t, file, []byte(filesMesh))
	o.ConfigDirs = []string{file}
	r := f.start(o)
	r.WaitReady()

	web := inForce(t, r, "VirtualService", "web")
	if describe(web) != "file mesh.yaml:5" || web.Key.ApiVersion != "networking.istio.io/v1" {
		t.Errorf("in force: %s, %v", describe(web), web.Key)
	}
	for _, want := range []string{`"timeout":"1.500s"`, `"hosts":["web"]`, `"labels":{"a":"b"}`, `"kind":"VirtualService"`} {
		if !strings.Contains(strings.ReplaceAll(string(web.Manifest), " ", ""), want) {
			t.Errorf("%s lacks %s", web.Manifest, want)
		}
	}
	if svc := inForce(t, r, "Service", "web"); !strings.Contains(string(svc.Manifest), `"port":80`) ||
		strings.Contains(string(svc.Manifest), "status") {
		t.Errorf("service: %s", svc.Manifest)
	}
	if route := string(inForce(t, r, "HTTPRoute", "web").Manifest); !strings.Contains(route, `"web.example.com"`) ||
		!strings.Contains(route, `"weight":1`) || strings.Contains(route, "status") {
		t.Errorf("route, with defaults: %s", route)
	}
	secret := inForce(t, r, "Secret", "s")
	if text := string(secret.Manifest); strings.Contains(text, "hunter2") || !strings.Contains(text, "(only in mesh.yaml:15)") {
		t.Errorf("secret: %s", text)
	}
	if _, err := r.tryApply(string(secret.Manifest)); status.Code(err) != codes.InvalidArgument {
		t.Errorf("what is kept in part was written back: %v", err)
	}

	res := r.apply(string(web.Manifest))
	if len(res.Results) != 1 || len(res.Results[0].Overrides) != 1 || res.Results[0].Overrides[0].Location != "mesh.yaml:5" ||
		res.Results[0].OverriddenBy != nil {
		t.Errorf("apply: %v", res)
	}
	if res = r.apply(storedWeb); res.Results[0].Action != configv1.Action_ACTION_CONFIGURED {
		t.Errorf("apply: %v", res)
	}
	if res = r.apply(storedWeb); res.Results[0].Action != configv1.Action_ACTION_UNCHANGED ||
		res.Results[0].Overrides[0].Location != "mesh.yaml:5" {
		t.Errorf("apply again: %v", res)
	}
	if got := describe(inForce(t, r, "VirtualService", "web")); got != "memory , overrides file mesh.yaml:5" {
		t.Errorf("in force: %s", got)
	}
	list, err := r.store().List(t.Context(), &configv1.ListRequest{Namespace: "apps", InForce: true, WithoutManifests: true})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range list.Objects {
		got = append(got, o.Key.Kind+": "+describe(o))
		if len(o.Manifest) > 0 {
			t.Errorf("%v has a manifest", o.Key)
		}
	}
	if text := strings.Join(got, "; "); text != "HTTPRoute: file mesh.yaml:24; Secret: file mesh.yaml:15; Service: file mesh.yaml:10; "+
		"VirtualService: memory , overrides file mesh.yaml:5" {
		t.Errorf("list: %s", text)
	}

	findings := findingsOf(t, r, &configv1.StatusRequest{})
	for _, want := range []string{
		"UNREAD Deployment apps/web file mesh.yaml:20: kind: apps/v1 Deployment: the mesh reads Pods, not this kind",
		"OVERRIDDEN VirtualService apps/web file mesh.yaml:5: the same object of source memory counts",
	} {
		if !strings.Contains(findings, want) {
			t.Errorf("status lacks %q:\n%s", want, findings)
		}
	}
	if findings = findingsOf(t, r, &configv1.StatusRequest{Kind: "VirtualService", Namespace: "apps", Name: "web"}); strings.Contains(findings,
		"UNREAD") || !strings.Contains(findings, "OVERRIDDEN") {
		t.Errorf("status of one object:\n%s", findings)
	}

	del, err := r.store().Delete(t.Context(), &configv1.DeleteRequest{Key: appsKey("VirtualService", "web")})
	if err != nil || del.Remains.GetLocation() != "mesh.yaml:5" {
		t.Errorf("delete: %v, %v", del, err)
	}
	if got := describe(inForce(t, r, "VirtualService", "web")); got != "file mesh.yaml:5" {
		t.Errorf("in force: %s", got)
	}
}

func findingsOf(t *testing.T, r *running, req *configv1.StatusRequest) string {
	t.Helper()
	res, err := r.store().Status(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, f := range res.Findings {
		lines = append(lines, fmt.Sprintf("%s %s %s %s: %s", strings.TrimPrefix(f.Type.String(), "FINDING_TYPE_"), f.Object, f.Source, f.Location,
			f.Message))
	}
	return strings.Join(lines, "\n")
}

// TestApplyWithoutEffect: an object that a source of a higher rank has is stored, and the answer says that it does
// nothing.
func TestApplyWithoutEffect(t *testing.T) {
	f := newFixture(t)
	o := f.options()
	o.MeshConfigFile = filepath.Join(f.dir, "mesh-config.yaml")
	testkit.WriteFile(t, o.MeshConfigFile, []byte("accessLogFile: /dev/stdout\n"))
	r := f.start(o)
	r.WaitReady()
	res := r.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: \"accessLogFile: " +
		"/dev/stderr\"}\n")
	if by := res.Results[0].OverriddenBy; by.GetSource() != "mesh-config-file" || by.GetLocation() != "mesh-config.yaml:1" {
		t.Errorf("apply: %v", res)
	}
}

// TestUnreadIsRefusedOnApply: nothing is dropped in silence; whoever has such objects in the same files asks for it.
func TestUnreadIsRefusedOnApply(t *testing.T) {
	f := newFixture(t)
	r := f.start(f.options())
	r.WaitReady()
	docs := "apiVersion: v1\nkind: List\nitems:\n- apiVersion: gateway.networking.x-k8s.io/v1alpha1\n  kind: XBackend\n  " +
		"metadata: {name: r}\n- " +
		"apiVersion: v1\n  kind: Namespace\n  metadata: {name: listed}\n"
	if _, err := r.tryApply(docs); status.Code(err) != codes.InvalidArgument ||
		!strings.Contains(err.Error(), ":4: XBackend r: kind: gateway.networking.x-k8s.io/v1alpha1 XBackend: nobody reads this kind") {
		t.Errorf("apply: %v", err)
	}
	res, err := r.store().Apply(t.Context(),
		&configv1.ApplyRequest{SkipUnread: true, Documents: []*configv1.Document{{Name: "m.yaml", Content: []byte(docs)}}})
	if err != nil || len(res.Results) != 1 || len(res.Unread) != 1 || res.Unread[0].Location != "m.yaml:4" {
		t.Errorf("apply, unread ones passed over: %v, %v", res, err)
	}
}

// TestTwoKindsOfGateway: Istio's Gateway and that of the Gateway API may have the same name. The bare kind is Istio's,
// the other is asked for with its group, as its problems name it.
func TestTwoKindsOfGateway(t *testing.T) {
	f := newFixture(t)
	r := f.start(f.options())
	r.WaitReady()
	const other = "Gateway.gateway.networking.k8s.io"
	r.apply("apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: web, namespace: apps}\n" +
		"spec: {selector: {a: b}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}\n---\n" +
		"apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: web, namespace: apps}\n" +
		"spec: {gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP}]}\n")
	for _, inForce := range []bool{false, true} {
		for kind, version := range map[string]string{"Gateway": "networking.istio.io/v1", other: "gateway.networking.k8s.io/v1"} {
			list, err := r.store().List(t.Context(), &configv1.ListRequest{Kind: kind, InForce: inForce})
			if err != nil || len(list.Objects) != 1 || list.Objects[0].Key.ApiVersion != version || list.Objects[0].Key.Kind != "Gateway" {
				t.Errorf("list of %s: %v, %v", kind, list, err)
			}
			got, err := r.store().Get(t.Context(), &configv1.GetRequest{Key: appsKey(kind, "web"), InForce: inForce})
			if err != nil || got.Object.Key.ApiVersion != version {
				t.Errorf("get %s: %v, %v", kind, got, err)
			}
		}
	}
	_, err := r.tryApply("apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: web, namespace: apps}\nspec: {}\n")
	if err == nil || !strings.Contains(err.Error(), other+" apps/web: spec.gatewayClassName: missing") {
		t.Errorf("a broken one: %v", err)
	}
	if _, err := r.store().Delete(t.Context(), &configv1.DeleteRequest{Key: appsKey(other, "web")}); err != nil {
		t.Error(err)
	}
	if list, err := r.store().List(t.Context(), &configv1.ListRequest{}); err != nil || len(list.Objects) != 1 ||
		list.Objects[0].Key.ApiVersion != "networking.istio.io/v1" {
		t.Errorf("left: %v, %v", list, err)
	}
}

// TestUnknownNames: a kind or namespace that does not exist is an error with the nearest name, not an empty list.
func TestUnknownNames(t *testing.T) {
	f := newFixture(t)
	r := f.start(f.options())
	r.WaitReady()
	r.apply(storedWeb)
	list := func(kind, namespace string) error {
		_, err := r.store().List(t.Context(), &configv1.ListRequest{Kind: kind, Namespace: namespace, InForce: true})
		return err
	}
	get := func(kind, name string) error {
		_, err := r.store().Get(t.Context(), &configv1.GetRequest{Key: appsKey(kind, name), InForce: true})
		return err
	}
	_, inStatus := r.store().Status(t.Context(), &configv1.StatusRequest{Namespace: "app"})
	for want, err := range map[string]error{
		`no Namespace is called so; there are apps`:             list("", "x"),
		`did you mean "VirtualService"?`:                        list("VirtualServce", ""),
		`namespace "aps": no object is in it`:                   list("", "aps"),
		`is called so; did you mean "apps"?`:                    list("", "aps"),
		`namespace "app": no object is in it`:                   inStatus,
		`not found; did you mean "web"?`:                        get("VirtualService", "wbe"),
		`unknown kind; did you mean "Service"?`:                 get("Servce", "web"),
		`DestinationRule apps/web: not found`:                   get("DestinationRule", "web"),
		`"Nonsense": unknown kind; kinds are written like Virt`: list("Nonsense", ""),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
	for _, namespace := range []string{"", "apps", "default"} {
		if err := list("DestinationRule", namespace); err != nil {
			t.Errorf("namespace %q: %v", namespace, err)
		}
	}
}

// TestHeldClosedIsTold: what stands for a broken object is told from the user's own objects.
func TestHeldClosedIsTold(t *testing.T) {
	f := newFixture(t)
	o := f.options()
	file := filepath.Join(f.dir, "mesh.yaml")
	testkit.WriteFile(t, file, []byte("apiVersion: security.istio.io/v1\nkind: RequestAuthentication\n"+
		"metadata: {name: good, namespace: apps}\nspec: {}\n---\napiVersion: security.istio.io/v1\nkind: RequestAuthentication\n"+
		"metadata: {name: bad, namespace: apps}\nspec: {jwtRule: []}\n"))
	o.ConfigDirs = []string{file}
	r := f.start(o)
	r.WaitReady()
	for name, want := range map[string]bool{"good": false, "bad": true} {
		if got := inForce(t, r, "RequestAuthentication", name); got.HeldClosed != want {
			t.Errorf("%s: held closed is %t", name, got.HeldClosed)
		}
	}
}
