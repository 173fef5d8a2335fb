package operator

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/service/servicetest"
	"fairlead.dev/pkg/testkit"
)

func TestMetricsFollowTheRules(t *testing.T) {
	registry := prometheus.NewRegistry()
	newMetrics(registry)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(families) != 6 {
		t.Errorf("%d metrics, want them all from the start", len(families))
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

// options are those of an operator whose API server is not there.
func options(t *testing.T) *Options {
	t.Helper()
	o := &Options{Namespace: "ops", WaitTimeout: time.Minute, Resync: time.Minute, LeaseDuration: minLease, Workers: 1}
	o.OpsAddress, o.TrustDomain, o.Timeout = "127.0.0.1:0", testkit.TrustDomain, time.Second
	o.Kubeconfig = t.TempDir() + "/kubeconfig"
	testkit.WriteFile(t, o.Kubeconfig,
		[]byte("{apiVersion: v1, kind: Config, current-context: x, clusters: [{name: x, cluster: {server: 'http://127.0.0.1:1'}}], contexts: "+
			"[{name: x, context: {cluster: x}}]}"))
	return o
}

func TestWrongOptionsAreNamedAllAtOnce(t *testing.T) {
	o := options(t)
	o.Namespace, o.Workers, o.LeaseDuration, o.Watched = "", 99, time.Second, []string{"a", ""}
	_, err := Open(t.Context(), o, servicetest.Deps(t))
	if process.ExitCode(err) != process.ExitUsage {
		t.Fatal(err)
	}
	for _, flag := range []string{"--operator-namespace", "--workers: 99", "--lease-duration: 1s is less than 3s", "--watch-namespaces"} {
		if !strings.Contains(err.Error(), flag) {
			t.Errorf("%q does not name %s", err, flag)
		}
	}
	o = options(t)
	o.Manifests = t.TempDir()
	if _, err := Open(t.Context(), o, servicetest.Deps(t)); err == nil ||
		!strings.Contains(err.Error(), "--manifests: the install package has no directory charts/") {
		t.Error(err)
	}
}

func TestAnOperatorWithoutItsAPIServerIsNotReadyAndEndsWhenTold(t *testing.T) {
	_, running := servicetest.Start(t, Open, options(t), servicetest.Deps(t))
	testkit.Eventually(t, testkit.Patience, func() error {
		code, body, err := running.Get("/readyz", "")
		if err != nil {
			return err
		}
		if code != http.StatusServiceUnavailable || !strings.Contains(body, "lease") {
			t.Fatalf("/readyz: %d %s", code, body)
		}
		if !strings.Contains(body, "lease ops/fairlead-operator") {
			return errNotYet(body)
		}
		return nil
	})
	if code, _, err := running.Get("/debug/resources", ""); err != nil || code == http.StatusOK {
		t.Errorf("/debug/resources without a token: %d, %v", code, err)
	}
	running.Stop()
}

type errNotYet string

func (e errNotYet) Error() string { return string(e) }

func TestComponentsAreNamedAsIstioNamesThem(t *testing.T) {
	for label, want := range map[string]string{"base": "Base", "xdsServer": "XdsServer",
		"ingressGateways[istio-ingressgateway]": "IngressGateways", "": ""} {
		if got := title(label); got != want {
			t.Errorf("%q is %q, want %q", label, got, want)
		}
	}
}

func TestTheWorseStatusCountsAndErrorsAddUp(t *testing.T) {
	healthy, slow, broken := component{Status: Healthy, Version: "1"}, component{Status: Reconciling, Version: "1", Error: "slow"},
		component{Status: Failed, Version: "1", Error: "broken"}
	for _, tc := range []struct{ a, b, want component }{
		{component{}, healthy, healthy},
		{healthy, slow, slow},
		{slow, healthy, slow},
		{slow, broken, component{Status: Failed, Version: "1", Error: "slow\nbroken"}},
		{broken, slow, component{Status: Failed, Version: "1", Error: "broken\nslow"}},
	} {
		if got := worse(tc.a, tc.b); got != tc.want {
			t.Errorf("%+v and %+v are %+v, want %+v", tc.a, tc.b, got, tc.want)
		}
	}
}

func TestMessagesAreCutBetweenCharacters(t *testing.T) {
	long := short(strings.Repeat("é", maxMessage))
	if len(long) > maxMessage+len("…") || !strings.HasSuffix(long, "é…") {
		t.Errorf("%d bytes, ends in %q", len(long), long[len(long)-6:])
	}
}

func TestALeaseIsFreshForTwiceItsTime(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	lease := func(holder string, age time.Duration) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
			"holderIdentity": holder, "leaseDurationSeconds": int64(15), "renewTime": now.Add(-age).Format(time.RFC3339Nano),
		}}}
	}
	for name, tc := range map[string]struct {
		lease *unstructured.Unstructured
		want  bool
	}{
		"renewed":         {lease("a", time.Second), true},
		"late":            {lease("a", 29*time.Second), true},
		"lost":            {lease("a", 31*time.Second), false},
		"given back":      {lease("", time.Second), false},
		"without a field": {&unstructured.Unstructured{Object: map[string]any{}}, false},
	} {
		if got := fresh(tc.lease, now); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestADigestChangesWithAllButTheStatus(t *testing.T) {
	object := func(replicas, available int64) map[string]string {
		t.Helper()
		u := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "x", "namespace": "n", "generation": int64(1)},
			"spec": map[string]any{"replicas": replicas},
			"status": map[string]any{"observedGeneration": int64(1), "replicas": replicas, "updatedReplicas": replicas,
				"availableReplicas": available},
		}}
		small, err := digest(u)
		if err != nil {
			t.Fatal(err)
		}
		again, err := digest(small)
		if err != nil || again != small {
			t.Errorf("the digest of a digest is another: %v, %v", again, err)
		}
		if _, found := small.(*unstructured.Unstructured).Object["spec"]; found {
			t.Error("the digest has the specification")
		}
		return small.(*unstructured.Unstructured).GetAnnotations()
	}
	two := object(2, 2)
	if other := object(2, 1); other[digestKey] != two[digestKey] || other[readyKey] == two[readyKey] {
		t.Errorf("%v, %v", two, other)
	}
	if other := object(3, 3); other[digestKey] == two[digestKey] || other[readyKey] != two[readyKey] {
		t.Errorf("%v, %v", two, other)
	}
}

func TestRepairsInARowAreAnsweredEverMoreSlowly(t *testing.T) {
	before := time.Duration(-1)
	for n := range 10 {
		if d := delay(n); d <= before {
			t.Errorf("after %d repairs %s, before %s", n, d, before)
		} else {
			before = d
		}
	}
	if delay(100) != lastDelay {
		t.Errorf("%s", delay(100))
	}
}
