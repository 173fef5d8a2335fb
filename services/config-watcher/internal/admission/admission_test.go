package admission

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/pkg/webhook"
	"fairlead.dev/services/config-watcher/internal/normalise"
	"fairlead.dev/services/config-watcher/internal/quota"
)

func handler(t testing.TB) *Handler {
	return NewHandler(Config{Log: testkit.Logger(t), Registerer: prometheus.NewRegistry()})
}

// post sends a body as the API server does.
func post(h http.Handler, body []byte) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, Path+"?timeout=10s", bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// review asks about objects in YAML; an empty one is not there.
func review(t testing.TB, h http.Handler, op admissionv1.Operation, object, old string,
	change ...func(*admissionv1.AdmissionRequest)) *admissionv1.AdmissionResponse {
	t.Helper()
	js := func(y string) []byte {
		if y == "" {
			return nil
		}
		out, err := yaml.YAMLToJSON([]byte(y))
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	request := &admissionv1.AdmissionRequest{UID: "u1", Operation: op, Object: runtime.RawExtension{Raw: js(object)},
		OldObject: runtime.RawExtension{Raw: js(old)}}
	var meta metav1.PartialObjectMetadata
	if err := yaml.Unmarshal([]byte(object+old), &meta); err != nil && old == "" {
		t.Fatal(err)
	}
	gvk := meta.GroupVersionKind()
	request.Kind = metav1.GroupVersionKind{Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind}
	for _, c := range change {
		c(request)
	}
	body, err := json.Marshal(admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1",
		Kind: "AdmissionReview"}, Request: request})
	if err != nil {
		t.Fatal(err)
	}
	w := post(h, body)
	if w.Code != http.StatusOK {
		t.Fatalf("%d: %s", w.Code, w.Body)
	}
	var out admissionv1.AdmissionReview
	if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil {
		t.Fatal(err)
	}
	if out.APIVersion != "admission.k8s.io/v1" || out.Response == nil || out.Response.UID != "u1" {
		t.Fatalf("answer %s", w.Body)
	}
	return out.Response
}

const (
	good = `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: server, namespace: apps}
spec: {hosts: [server], http: [{route: [{destination: {host: server}}]}]}
`
	bad = `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: server, namespace: apps, finalizers: [a.example/b]}
spec: {hosts: [server], http: [{route: [{destination: {host: server}, weight: -5}], timeuot: 1s}]}
`
)

func TestVerdictIsThatOfValidation(t *testing.T) {
	h := handler(t)
	if got := review(t, h, admissionv1.Create, good, ""); !got.Allowed || len(got.Warnings) != 0 {
		t.Errorf("valid object: %v", got)
	}
	got := review(t, h, admissionv1.Create, bad, "")
	if got.Allowed || got.Result.Code != 422 || got.Result.Reason != metav1.StatusReasonInvalid {
		t.Fatalf("broken object: %v", got)
	}
	for _, want := range []string{"VirtualService apps/server: spec.http[0].route[0].weight: ", "timeuot", `did you mean "timeout"`} {
		if !strings.Contains(got.Result.Message, want) {
			t.Errorf("message %q lacks %q", got.Result.Message, want)
		}
	}
	fields := map[string]bool{}
	for _, c := range got.Result.Details.Causes {
		fields[c.Field] = true
	}
	if !fields["spec.http[0].route[0].weight"] || len(fields) != 2 {
		t.Errorf("causes name the fields %v", fields)
	}
	warned := review(t, h, admissionv1.Create, `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: warned, namespace: apps}
spec: {hosts: [server], http: [{redirect: {uri: /a}, mirror: {host: b}}]}
`, "")
	if !warned.Allowed || len(warned.Warnings) != 1 || !strings.Contains(warned.Warnings[0], "has no effect") ||
		len(warned.Warnings[0]) > maxWarningBytes {
		t.Errorf("field without effect: %v", warned)
	}
	if got := testutil.ToFloat64(h.reviews.WithLabelValues("VirtualService", "denied")); got != 1 {
		t.Errorf("%v denials counted", got)
	}
}

func TestGeneratedNamesAreNotMissing(t *testing.T) {
	for _, prefix := range []string{"server-", strings.Repeat("a", 300) + "-"} { // of the second one the API server takes a part
		if got := review(t, handler(t), admissionv1.Create, strings.Replace(good, "name: server,", "generateName: "+prefix+",", 1),
			""); !got.Allowed {
			t.Errorf("denied: %v", got.Result)
		}
	}
}

func TestWhatIsStoredAlreadyStaysWritable(t *testing.T) {
	h := handler(t)
	for name, c := range map[string]struct{ object, old string }{
		"a finalizer is removed": {strings.Replace(bad, "[a.example/b]", "[]", 1), bad},
		"a finalizer of what is deleted": {strings.Replace(bad, "finalizers: [a.example/b]", `deletionTimestamp: "2026-01-01T00:00:00Z"`, 1),
			bad},
		"the object is valid now": {good, bad},
	} {
		if got := review(t, h, admissionv1.Update, c.object, c.old); !got.Allowed {
			t.Errorf("%s: denied: %v", name, got.Result.Message)
		}
	}
	kept := review(t, h, admissionv1.Update, strings.Replace(bad, "[a.example/b]", "[]", 1), bad)
	if len(kept.Warnings) != 1 || !strings.Contains(kept.Warnings[0], "not valid") {
		t.Errorf("a broken object that stays is not told: %v", kept.Warnings)
	}
	if got := review(t, h, admissionv1.Update, strings.Replace(bad, "-5", "-6", 1), bad); got.Allowed {
		t.Error("a change from one mistake to another is allowed")
	}
	if got := review(t, h, admissionv1.Update, bad, good); got.Allowed {
		t.Error("a change to a broken object is allowed")
	}
	if got := review(t, h, admissionv1.Update, ending(strings.Replace(bad, "-5", "-6", 1)), ending(bad)); got.Allowed {
		t.Error("a change of what is being deleted is allowed")
	}
	if got := review(t, h, admissionv1.Delete, "", bad); !got.Allowed {
		t.Error("a deletion is denied")
	}
	status := func(r *admissionv1.AdmissionRequest) { r.SubResource = "status" }
	if got := review(t, h, admissionv1.Update, strings.Replace(bad, "-5", "-6", 1), bad, status); !got.Allowed {
		t.Error("a write of the status is denied")
	}
}

// ending marks an object as one that is being deleted and that a finalizer keeps.
func ending(object string) string {
	return strings.Replace(object, "namespace: apps", `namespace: apps, deletionTimestamp: "2026-01-01T00:00:00Z", finalizers: [a.example/b]`,
		1)
}

// A finalizer keeps an object that is being deleted, whose content may still grow: it costs as much as any.
func TestWhatIsBeingDeletedCounts(t *testing.T) {
	root := func() []string { return []string{"istio-system"} }
	h := NewHandler(Config{
		Log: testkit.Logger(t), Registerer: prometheus.NewRegistry(), Quota: quota.New(1<<20, root, testkit.NewClock(time.Now())),
		Tenancy: normalise.Tenancy{Enabled: true, Domain: "cluster.local"}, Root: func() string { return "istio-system" },
	})
	var hosts strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&hosts, ", a-long-name-of-a-host-%d", i)
	}
	large := strings.Replace(good, "hosts: [server]", "hosts: [server"+hosts.String()+"]", 1)
	if got := review(t, h, admissionv1.Update, ending(large), ending(good)); got.Allowed ||
		!strings.Contains(got.Result.Message, "the limit is 1 MiB") {
		t.Errorf("it grows beyond the limit: %v", got)
	}
	if got := review(t, h, admissionv1.Update, strings.Replace(ending(large), "[a.example/b]", "[]", 1), ending(large)); !got.Allowed {
		t.Errorf("its finalizer stays: %v", got.Result)
	}
	foreign := strings.Replace(good, "hosts: [server]", "hosts: [www.example.com], exportTo: ['*']", 1)
	if got := review(t, h, admissionv1.Update, ending(foreign), ending(good)); got.Allowed ||
		!strings.Contains(got.Result.Message, "the mesh has tenants") {
		t.Errorf("it takes others' requests: %v", got)
	}
}

func TestOnlyMeshKindsAreChecked(t *testing.T) {
	h := handler(t)
	if got := review(t, h, admissionv1.Create,
		"{apiVersion: v1, kind: Service, metadata: {name: x, namespace: y}, spec: {ports: [{port: -1}]}}", ""); !got.Allowed {
		t.Errorf("Service: %v", got)
	}
	if got := review(t, h, admissionv1.Create, "{apiVersion: networking.istio.io/v1, kind: VirtualServce, metadata: {name: x, namespace: y}}",
		""); got.Allowed {
		t.Error("an unknown kind of Istio's group is allowed")
	}
}

// TestGatewayAPIIsJudgedByTheAPIServer: what the definitions say is the API server's to judge, which may have newer
// ones; whoever uses a field that Fairlead does not know is told so.
func TestGatewayAPIIsJudgedByTheAPIServer(t *testing.T) {
	h := handler(t)
	const route = "{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: x, namespace: shop}, spec: "
	for spec, warning := range map[string]string{
		"{rules: [{filters: [{type: URLRewrite}]}]}": "",
		"{rules: [{name: UPPER, soon: 1}]}": `HTTPRoute shop/x: spec.rules[0].soon: is left out: unknown field "soon"; ` +
			"remove it, or use one of name, ",
	} {
		got := review(t, h, admissionv1.Create, route+spec+"}", "")
		if !got.Allowed || len(got.Warnings) != min(len(warning), 1) ||
			warning != "" && !strings.HasPrefix(got.Warnings[0], warning) {
			t.Errorf("%s: %v", spec, got)
		}
	}
}

// What is no review is an error of HTTP, after which the API server follows failurePolicy; it never panics.
func TestOtherRequestsAreRefused(t *testing.T) {
	h := handler(t)
	request := func(method, path, contentType, body string) int {
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set("Content-Type", contentType)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	const js = "application/json"
	for _, c := range []struct {
		name                            string
		method, path, contentType, body string
		want                            int
	}{
		{"ready", "GET", webhook.ReadyPath, "", "", 200},
		{"another path", "POST", "/", js, "{}", 404},
		{"another method", "GET", Path, js, "", 405},
		{"another type", "POST", Path, "text/plain", "{}", 415},
		{"empty", "POST", Path, js, "", 400},
		{"no JSON", "POST", Path, js, "{", 400},
		{"no request", "POST", Path, js, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, 400},
		{"no uid", "POST", Path, js, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{}}`, 400},
		{"another version", "POST", Path, js, `{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{"uid":"1"}}`, 400},
		{"more than 3 MiB", "POST", Path, js, `{"a":"` + strings.Repeat("x", webhook.MaxBodyBytes) + `"}`, 413},
	} {
		if got := request(c.method, c.path, c.contentType, c.body); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func FuzzReview(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"networking.istio.io/v1","kind":"VirtualService","metadata":{"name":"x"},"spec":{"hosts":["a"]}}`),
		[]byte(`{}`))
	f.Add([]byte(`{"apiVersion":"networking.istio.io/v1","kind":"VirtualService","metadata":[]}`), []byte(`null`))
	f.Add([]byte(`[]`), []byte(`{"metadata":1}`))
	h := NewHandler(Config{Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	f.Fuzz(func(t *testing.T, object, old []byte) {
		if !json.Valid(object) || !json.Valid(old) {
			return
		}
		body, err := json.Marshal(admissionv1.AdmissionReview{
			TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
			Request: &admissionv1.AdmissionRequest{
				UID: "u", Operation: admissionv1.Update, Kind: metav1.GroupVersionKind{Group: "networking.istio.io", Kind: "VirtualService"},
				Object: runtime.RawExtension{Raw: object}, OldObject: runtime.RawExtension{Raw: old},
			},
		})
		if err != nil {
			return
		}
		if w := post(h, body); w.Code != http.StatusOK {
			t.Errorf("%d: %s", w.Code, w.Body)
		}
	})
}

// TestTenants: where the mesh has tenants, an object that is exported beyond its namespace and is not about its own
// Services is refused; what is stored already stays writable as it is, and everything is as before elsewhere.
func TestTenants(t *testing.T) {
	h := NewHandler(Config{
		Log: testkit.Logger(t), Registerer: prometheus.NewRegistry(), Tenancy: normalise.Tenancy{Enabled: true, Domain: "cluster.local"},
		Root: func() string { return "istio-system" },
	})
	route := func(namespace, host, exportTo string) string {
		return "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: r, namespace: " + namespace + "}\nspec: {hosts: [" +
			host + "], exportTo: [" + exportTo +
			"], http: [{route: [{destination: {host: a}}]}]}\n"
	}
	theft := route("a", "server.b.svc.cluster.local", `"*"`)
	for name, c := range map[string]struct {
		object  string
		allowed bool
	}{
		"another's host":                       {theft, false},
		"another's host, for one namespace":    {route("a", "server.b.svc.cluster.local", "b"), false},
		"another's host, for its own clients":  {route("a", "server.b.svc.cluster.local", `"."`), true},
		"its own host":                         {route("a", "server", `"*"`), true},
		"an administrator's":                   {route("istio-system", "www.example.com", `"*"`), true},
		"another's host, with the mesh's word": {strings.Replace(theft, `exportTo: ["*"], `, "", 1), true},
	} {
		t.Run(name, func(t *testing.T) {
			answer := review(t, h, admissionv1.Create, c.object, "")
			if answer.Allowed != c.allowed {
				t.Fatalf("%+v", answer)
			}
			if !c.allowed && (!strings.Contains(answer.Result.Message, "spec.exportTo") ||
				!strings.Contains(answer.Result.Message, "server.b.svc.cluster.local") || !strings.Contains(answer.Result.Message, `exportTo: ["."]`)) {
				t.Error(answer.Result.Message)
			}
			if answer := review(t, handler(t), admissionv1.Create, c.object, ""); !answer.Allowed {
				t.Errorf("without tenants: %+v", answer)
			}
		})
	}
	if answer := review(t, h, admissionv1.Update, theft, theft); !answer.Allowed {
		t.Errorf("an object that does not change: %+v", answer)
	}
	if answer := review(t, h, admissionv1.Update, theft, route("a", "server", `"*"`)); answer.Allowed {
		t.Error("an object may become what it may not be at first")
	}
}
