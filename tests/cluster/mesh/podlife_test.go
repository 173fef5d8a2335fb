package mesh

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/load"
)

// Annotations of Pods.
const (
	// classic sidecars are ordinary containers, which start and end beside the application.
	classic = `sidecar.istio.io/nativeSidecar: "false"`
	// held is an application that starts once its sidecar is ready.
	held = classic + `, proxy.istio.io/config: '{"holdApplicationUntilProxyStarts": true}'`
)

// lifeOfPods is about the beginning and the end of Pods with a sidecar.
func (c *cluster) lifeOfPods(t *testing.T) {
	const ns = shop
	c.fairlead(t, append([]string{"install", "-y"}, images...)...)
	c.injectedNamespace(t, ns, "istio-injection=enabled")
	drains := func(seconds int) string {
		return fmt.Sprintf(`%s, proxy.istio.io/config: '{"terminationDrainDuration": "%ds"}'`, classic, seconds)
	}
	c.apply(t, strictMesh+shopRoute+app(ns, "one", 1, "")+app(ns, "long", 1, drains(15))+app(ns, "short", 1, drains(1))+
		app(ns, "native", 1, ""))
	c.available(t, ns, "one", "long", "short", "native")
	c.sidecars(t, ns)

	// The application's first and only request, as soon as it starts. Servers take mutual TLS alone, so it arrives only
	// through the sidecar.
	for name, annotations := range map[string]string{"native": "", "held": held} {
		t.Run("a Job whose sidecar is "+name+" reaches the mesh at once, and completes", func(t *testing.T) {
			t.Parallel()
			c.apply(t, job(ns, "job-"+name, annotations, "http://one:8080/"))
			c.completes(t, ns, "job-"+name)
		})
	}
	t.Run("without a sidecar the Job's request is refused", func(t *testing.T) {
		t.Parallel()
		c.apply(t, job(ns, "job-naked", `sidecar.istio.io/inject: "false"`, "http://one:8080/"))
		testkit.Eventually(t, patience, func() error {
			j, err := c.BatchV1().Jobs(ns).Get(t.Context(), "job-naked", metav1.GetOptions{})
			if err == nil && j.Status.Failed == 0 {
				err = fmt.Errorf("Job %s: %+v", j.Name, j.Status)
			}
			return err
		})
	})

	t.Run("a stock Istio sidecar joins, and speaks mutual TLS with ours both ways", func(t *testing.T) {
		t.Parallel()
		c.apply(t, stock+app(ns, "ratings", 1, "", "fairlead/bookinfo:dev", "ratings"))
		c.available(t, ns, "stock", "ratings")
		testkit.Eventually(t, patience, func() error {
			body, err := get(c.ingress(t) + "/reviews/0")
			var a struct{ Caller string }
			if err == nil {
				err = json.Unmarshal([]byte(body), &a)
			}
			if err == nil && (a.Caller != "spiffe://cluster.local/ns/istio-system/sa/istio-ingressgateway-service-account" ||
				!strings.Contains(body, `"stars"`)) {
				err = fmt.Errorf("the answer is %s, want it to name the gateway as the caller, and to have the stars of Service ratings", body)
			}
			return err
		})
	})

	// A request that takes 8 seconds is under way when the Pod is told to end, and so is its answer.
	const takes = 8 * time.Second
	for name, end := range map[string]struct {
		app     string
		atLeast time.Duration
		lost    bool
	}{
		"a native sidecar ends after its application":                       {app: "native", atLeast: takes - time.Second},
		"a sidecar drains for its terminationDrainDuration":                 {app: "long", atLeast: 15 * time.Second},
		"a terminationDrainDuration that is too short cuts the request off": {app: "short", atLeast: time.Second, lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.endsWhileAnswering(t, ns, end.app, takes, end.atLeast, end.lost)
		})
	}
}

// endsWhileAnswering deletes a Deployment's only Pod while it answers a request that passes its sidecar.
func (c *cluster) endsWhileAnswering(t *testing.T, namespace, name string, takes, atLeast time.Duration, lost bool) {
	t.Helper()
	url := c.ingress(t) + "/" + name
	testkit.Eventually(t, patience, func() error { return load.Once(load.Config{URL: url}) })
	pods, err := c.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + name})
	if err != nil || len(pods.Items) != 1 {
		t.Fatalf("%d Pods, %v", len(pods.Items), err)
	}
	pod := pods.Items[0]
	answered := make(chan error, 1)
	go func() {
		answered <- load.Once(load.Config{URL: fmt.Sprintf("%s?delay=%s", url, takes)})
	}()
	testkit.Eventually(t, patience, func() error { return busy(url) })
	began := time.Now()
	if err := c.CoreV1().Pods(namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	err = <-answered
	if (err != nil) != lost {
		t.Errorf("the request under way: %v; want it to be lost: %t", err, lost)
	}
	testkit.Eventually(t, patience, func() error {
		_, err := c.CoreV1().Pods(namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("Pod %s is there, %w", pod.Name, err)
	})
	took := time.Since(began)
	t.Logf("the Pod has ended after %.1f s", took.Seconds())
	if took < atLeast || took > 28*time.Second { // Kubernetes kills after 30
		t.Errorf("the Pod ended after %s, want at least %s, and by itself", took, atLeast)
	}
}

// get is the body of an answer, which must be 200.
func get(url string) (string, error) {
	resp, err := (&http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}).Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, resp.Status, body)
	}
	return string(body), err
}

// stock is a Pod whose owner has written Istio's own proxy into it; injection completes it. Its application calls
// Service ratings.
const stock = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: stock, namespace: shop}
spec:
  selector: {matchLabels: {app: stock}}
  template:
    metadata: {labels: {app: stock}, annotations: {sidecar.istio.io/nativeSidecar: "false"}}
    spec:
      containers:
        - name: app
          image: fairlead/bookinfo:dev
          imagePullPolicy: IfNotPresent
          args: [reviews, --version=v3, "--ratings-url=http://ratings:8080"]
          env: [{name: HOST, value: 0.0.0.0}, {name: PORT, value: "8080"}]
          securityContext: {runAsUser: 1000, runAsGroup: 1000}
        - name: istio-proxy
          image: fairlead/stock-proxy:dev
          imagePullPolicy: IfNotPresent
          args: [proxy, sidecar, --domain, $(POD_NAMESPACE).svc.cluster.local, --proxyLogLevel=warning, "--log_output_level=default:info"]
---
apiVersion: v1
kind: Service
metadata: {name: stock, namespace: shop}
spec: {selector: {app: stock}, ports: [{name: http, port: 8080}]}
---
`

// busy is nil while the only Pod behind a URL has another request under way.
func busy(url string) error {
	body, err := get(url)
	if err != nil {
		return err
	}
	var seen struct{ Active int }
	if err := json.Unmarshal([]byte(body), &seen); err != nil {
		return err
	}
	if seen.Active < 2 {
		return fmt.Errorf("%s has no other request under way", url)
	}
	return nil
}

// completes waits until a Job has succeeded at its first attempt, and its Pod has ended.
func (c *cluster) completes(t *testing.T, namespace, name string) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		j, err := c.BatchV1().Jobs(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if j.Status.Failed > 0 {
			t.Fatalf("Job %s failed:\n%s", name, c.try("logs", "-n", namespace, "job/"+name, "--all-containers", "--tail=20"))
		}
		for _, condition := range j.Status.Conditions {
			if condition.Type == batchv1.JobComplete && condition.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("Job %s: %+v", name, j.Status)
	})
}

// job sends one request, at the moment it starts, and then asks its sidecar to end, if that does not end by itself.
func job(namespace, name, annotations, url string) string {
	quit := ""
	if strings.Contains(annotations, classic) {
		quit = "\n          env: [{name: QUIT, value: 'http://127.0.0.1:15020/quitquitquit'}]"
	}
	return fmt.Sprintf(`
apiVersion: batch/v1
kind: Job
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  backoffLimit: 0
  template:
    metadata: {annotations: {%[3]s}}
    spec:
      restartPolicy: Never
      containers:
        - name: app
          image: fairlead/echo:dev
          imagePullPolicy: IfNotPresent
          args: [call, %[4]s]
          securityContext: {runAsUser: 1000, runAsGroup: 1000}%[5]s
---
`, namespace, name, annotations, url, quit)
}
