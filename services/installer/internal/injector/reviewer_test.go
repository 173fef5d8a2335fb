package injector

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"fairlead.dev/pkg/service"
	"fairlead.dev/pkg/webhook"
)

// reviewing is a reviewer whose only template adds a container, and which asks no API server.
func reviewing(t testing.TB) *reviewer {
	t.Helper()
	log := slog.New(slog.DiscardHandler) // a fuzz target may not log
	registry := prometheus.NewRegistry()
	s, err := newSettings(settingsConfig{
		API: &rest.Config{Host: "127.0.0.1:1"}, Namespace: "istio-system", ConfigMap: "istio-sidecar-injector", MeshNamespace: "istio-system",
		MeshConfigMap: "istio",
		Log:           log, Registerer: registry,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.namespaces.GetStore().Add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}); err != nil {
		t.Fatal(err)
	}
	s.unlisted(t.Context(), cache.NewReflector(nil, nil, nil, 0),
		apierrors.NewNotFound(schema.GroupResource{Group: "networking.istio.io", Resource: "proxyconfigs"}, ""))
	good := texts{Origin: "a test",
		Config: "policy: enabled\ntemplates:\n  sidecar: |\n    spec: {containers: [{name: istio-proxy, image: proxy}]}\n" +
			"  ca: |\n    spec: {containers: [{name: istio-proxy, image: {{ .ProxyConfig.ProxyMetadata.CA_ADDR }}}]}\n",
		Values: "{global: {}}"}
	if err := s.putInForce(good); err != nil {
		t.Fatal(err)
	}
	return newReviewer(reviewerConfig{Settings: s, LocalCA: "ca.istio-system.svc:15012", Log: log, Registerer: registry})
}

// ask sends a review as the API server does.
func (r *reviewer) ask(body string) (*admissionv1.AdmissionReview, error) {
	return r.askAs(webhook.Caller{Address: "192.0.2.1", APIServer: true}, body)
}

func (r *reviewer) askAs(caller webhook.Caller, body string) (*admissionv1.AdmissionReview, error) {
	return r.askAt(caller, Path, body)
}

func (r *reviewer) askAt(caller webhook.Caller, path, body string) (*admissionv1.AdmissionReview, error) {
	request := httptest.NewRequest(http.MethodPost, path+"?timeout=5s", http.NoBody)
	answer, err := r.review(webhook.NewContext(request.Context(), caller), request, []byte(body))
	if err != nil {
		return nil, err
	}
	var review admissionv1.AdmissionReview
	return &review, json.Unmarshal(answer, &review)
}

func reviewOf(version, rest, object string) string {
	return `{"apiVersion":"` + version +
		`","kind":"AdmissionReview","request":{"uid":"u","namespace":"shop","operation":"CREATE","resource":{"version":"v1","resource":"pods"},` +
		rest +
		`"object":` + object + `}}`
}

const somePod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"},"spec":{"containers":[{"name":"app","image":"app"}]}}`

// TestThePathNamesTheClusterOfAPod: in another one it asks for certificates at istiod.
func TestThePathNamesTheClusterOfAPod(t *testing.T) {
	r := reviewing(t)
	pod := strings.Replace(somePod, `"name":"web"`, `"name":"web","annotations":{"inject.istio.io/templates":"ca"}`, 1)
	got, err := r.askAt(webhook.Caller{Address: "192.0.2.1", APIServer: true}, Path+"/cluster/east/net/n2",
		reviewOf("admission.k8s.io/v1", "", pod))
	if err != nil || !strings.Contains(string(got.Response.Patch), `"istiod.istio-system.svc:15012"`) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestPodsThatAreMadeAreInjected(t *testing.T) {
	r := reviewing(t)
	for _, version := range []string{"admission.k8s.io/v1", "admission.k8s.io/v1beta1"} {
		got, err := r.ask(reviewOf(version, "", somePod))
		if err != nil || got.APIVersion != version || got.Response.UID != "u" || !got.Response.Allowed ||
			!strings.Contains(string(got.Response.Patch), "istio-proxy") {
			t.Errorf("%s: %+v, %v", version, got, err)
		} else if strings.Contains(string(got.Response.Patch), `"/metadata/namespace"`) {
			t.Errorf("the patch sets the namespace: %s", got.Response.Patch)
		}
	}
	for name, body := range map[string]string{
		"a change":      strings.Replace(reviewOf("admission.k8s.io/v1", "", somePod), "CREATE", "UPDATE", 1),
		"a subresource": reviewOf("admission.k8s.io/v1", `"subResource":"ephemeralcontainers",`, somePod),
		"another kind":  strings.Replace(reviewOf("admission.k8s.io/v1", "", somePod), `"pods"`, `"services"`, 1),
		"a Pod that wants none": reviewOf("admission.k8s.io/v1", "",
			strings.Replace(somePod, `"name":"web"`, `"labels":{"sidecar.istio.io/inject":"false"}`, 1)),
	} {
		if got, err := r.ask(body); err != nil || !got.Response.Allowed || got.Response.Patch != nil {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for name, object := range map[string]string{
		"a field of another type": strings.Replace(somePod, `"image":"app"`, `"image":3`, 1),
		"a template that is none": strings.Replace(somePod, `"name":"web"`, `"name":"web","annotations":{"inject.istio.io/templates":"none"}`,
			1),
		"an annotation of no use": strings.Replace(somePod, `"name":"web"`,
			`"name":"web","annotations":{"sidecar.istio.io/interceptionMode":"MAYBE"}`, 1),
		"a Pod that is no mapping": `[]`,
		"another namespace":        strings.Replace(somePod, `"name":"web"`, `"name":"web","namespace":"bank"`, 1),
	} {
		got, err := r.ask(reviewOf("admission.k8s.io/v1", "", object))
		if err != nil || got.Response.Allowed || got.Response.Result.Code != http.StatusUnprocessableEntity ||
			!strings.Contains(got.Response.Result.Message, "shop/") {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if n := testutil.ToFloat64(r.pods.WithLabelValues(resultFailed)); n != 5 {
		t.Errorf("%v failures are counted", n)
	}
}

func TestWhatIsNoReviewIsRefused(t *testing.T) {
	r := reviewing(t)
	for name, body := range map[string]string{
		"empty": "", "no JSON": "{", "another kind": `{"apiVersion":"admission.k8s.io/v1","kind":"Pod"}`,
		"no request":      `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`,
		"no uid":          `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{}}`,
		"another version": reviewOf("admission.k8s.io/v2", "", somePod),
	} {
		_, err := r.ask(body)
		if bad, ok := errors.AsType[*webhook.Error](err); !ok || bad.Status != http.StatusBadRequest {
			t.Errorf("%s: %v", name, err)
		}
	}
	r.cfg.Settings.inForce.Store(nil)
	_, err := r.ask(reviewOf("admission.k8s.io/v1", "", somePod))
	if bad, ok := errors.AsType[*webhook.Error](err); !ok || bad.Status != http.StatusServiceUnavailable ||
		!strings.Contains(err.Error(), "no configuration") {
		t.Errorf("without a configuration: %v", err)
	}
}

// A Pod that is injected before the ProxyConfigs are read has other settings for as long as it lives.
func TestNothingIsInjectedBeforeProxyConfigsAreRead(t *testing.T) {
	r := reviewing(t)
	s := r.cfg.Settings
	forbidden := apierrors.NewForbidden(schema.GroupResource{Group: "networking.istio.io", Resource: "proxyconfigs"}, "",
		errors.New("no role"))
	s.unread = errors.New(unanswered)
	s.unlisted(t.Context(), cache.NewReflector(nil, nil, nil, 0), forbidden)
	_, err := r.ask(reviewOf("admission.k8s.io/v1", "", somePod))
	if bad, ok := errors.AsType[*webhook.Error](err); !ok || bad.Status != http.StatusServiceUnavailable ||
		!strings.Contains(err.Error(), "ProxyConfigs") || !strings.Contains(err.Error(), "allowed") {
		t.Errorf("%v", err)
	}
	if err := s.Ready(); err == nil {
		t.Error("it is ready")
	}
}

// Reviews of a namespace that the API server is slow to tell of do not hold up those of others.
func TestWhoWaitsForANamespaceHoldsNoTurn(t *testing.T) {
	r := reviewing(t)
	asked, answer := make(chan struct{}, 64), make(chan struct{})
	api := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		asked <- struct{}{}
		<-answer
	}))
	defer api.Close()
	core, err := coreclient.NewForConfig(&rest.Config{Host: api.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	r.cfg.Settings.core = core
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer close(answer)
	for i := range 4 * r.turns.each {
		body := strings.Replace(reviewOf("admission.k8s.io/v1", "", somePod), `"shop"`, `"new-`+strconv.Itoa(i)+`"`, 1)
		waiting.Go(func() { _, _ = r.ask(body) })
		<-asked
	}
	if n := r.turns.pool.Load().Held; n != 0 {
		t.Errorf("%d turns are held by reviews that wait for the API server", n)
	}
	if got, err := r.ask(reviewOf("admission.k8s.io/v1", "", somePod)); err != nil || got.Response.Patch == nil {
		t.Errorf("%+v, %v", got, err)
	}
}

// Reviews that are not proven to be the API server's cause no questions to it.
func TestTheAPIServerIsAskedForItselfAlone(t *testing.T) {
	r := reviewing(t)
	var asked atomic.Int32
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusNotFound)
	}))
	defer api.Close()
	core, err := coreclient.NewForConfig(&rest.Config{Host: api.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	r.cfg.Settings.core = core
	body := strings.Replace(reviewOf("admission.k8s.io/v1", "", somePod), `"shop"`, `"another"`, 1)
	for _, c := range []struct {
		caller webhook.Caller
		want   int32
	}{{webhook.Caller{Address: "192.0.2.9"}, 0}, {webhook.Caller{Address: "192.0.2.1", APIServer: true}, 1}} {
		got, err := r.askAs(c.caller, body)
		if err != nil || got.Response.Patch == nil {
			t.Errorf("%+v: %+v, %v", c.caller, got, err)
		}
		if n := asked.Load(); n != c.want {
			t.Errorf("%+v: %d questions, want %d", c.caller, n, c.want)
		}
	}
}

func FuzzPod(f *testing.F) {
	f.Add([]byte(somePod))
	f.Add([]byte(`{"metadata":{"annotations":{"proxy.istio.io/config":"[","sidecar.istio.io/status":"{}"}}}`))
	r := reviewing(f)
	f.Fuzz(func(t *testing.T, object []byte) {
		if !json.Valid(object) {
			return
		}
		if _, err := r.ask(reviewOf("admission.k8s.io/v1", "", string(object))); err != nil {
			t.Errorf("%s: %v", object, err)
		}
	})
}

func TestWrongFlagsAreToldTogether(t *testing.T) {
	var o Options
	o.TrustDomain = "Not One"
	err := o.check()
	for _, flag := range []string{"--trust-domain", "--webhook-address", "--namespace", "--ca-address", "--ca-token-file", "--root-cert-file",
		"--ops-address"} {
		if err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%v does not name %s", err, flag)
		}
	}
	good := Options{
		Options: service.Options{TrustDomain: "cluster.local", OpsAddress: ":1"}, WebhookAddress: ":2", Namespace: "mesh", CAAddress: "ca:1",
		CATokenFile: "t", RootCertFile: "r", Revision: "canary",
	}
	if err := good.check(); err != nil || good.own.String() != "spiffe://cluster.local/ns/mesh/sa/injector" ||
		good.configMap != "istio-sidecar-injector-canary" || good.MeshConfigNamespace != "mesh" {
		t.Errorf("%+v, %v", good, err)
	}
	good.Identity = "injector"
	if err := good.check(); err == nil || !strings.Contains(err.Error(), "--identity") {
		t.Errorf("an identity without a namespace: %v", err)
	}
}
