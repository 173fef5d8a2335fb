// Package mesh tests what needs pods, in the cluster that CLUSTER_KUBECONFIG names: that of `make cluster-up`, or any
// other whose nodes have the images of `make cluster-load`.
package mesh

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/kubeapi"
	"fairlead.dev/tests/internal/process"
)

func TestMain(m *testing.M) {
	if os.Getenv("CLUSTER_KUBECONFIG") == "" {
		fmt.Fprintln(os.Stderr, "tests skipped: CLUSTER_KUBECONFIG names no cluster with the images of `make cluster-load`: run `make "+
			"test-cluster`")
		return
	}
	os.Exit(m.Run())
}

// patience of all waits. Kubelets bring a changed ConfigMap into pods after up to two minutes.
const patience = 4 * time.Minute

// cluster is the one of CLUSTER_KUBECONFIG.
type cluster struct {
	kubeconfig string
	config     *rest.Config
	*kubernetes.Clientset
}

func connect(t *testing.T) *cluster {
	t.Helper()
	return connectTo(t, os.Getenv("CLUSTER_KUBECONFIG"))
}

// connectTo connects to the cluster of a kubeconfig.
func connectTo(t *testing.T, kubeconfig string) *cluster {
	t.Helper()
	c := &cluster{kubeconfig: kubeconfig, config: kubeapi.Load(t, kubeconfig)}
	var err error
	c.Clientset, err = kubernetes.NewForConfig(c.config)
	testkit.NoError(t, err)
	return c
}

// namespace makes a namespace, and deletes it at the end of the test. A test that failed shows the state of its pods.
func (c *cluster) namespace(t *testing.T, name string) {
	t.Helper()
	_, err := c.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("%v (a test that was interrupted may have left it: delete it)", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.describe(t, name)
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := c.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		testkit.Eventually(t, patience, func() error {
			_, err := c.CoreV1().Namespaces().Get(context.Background(), name, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err):
				return nil
			case err == nil:
				err = fmt.Errorf("namespace %s is not gone", name)
			}
			return err
		})
	})
	testkit.Eventually(t, patience, func() error { // until then no pod may run there
		_, err := c.CoreV1().ServiceAccounts(name).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
}

// describe logs pods, events and logs of a namespace.
func (c *cluster) describe(t *testing.T, namespace string) {
	for _, args := range [][]string{
		{"get", "pods", "-n", namespace, "-o", "wide"},
		{"get", "events", "-n", namespace, "--sort-by=.lastTimestamp"},
	} {
		t.Logf("kubectl %s\n%s", strings.Join(args, " "), c.try(args...))
	}
	pods, err := c.CoreV1().Pods(namespace).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Log(err)
		return
	}
	for _, p := range pods.Items {
		t.Logf("last lines of %s/%s\n%s", namespace, p.Name, c.try("logs", "-n", namespace, p.Name, "--all-containers", "--tail=30"))
	}
}

func (c *cluster) try(args ...string) string {
	out, err := c.command(context.Background(), args...).CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%s\n%v", out, err)
	}
	return string(out)
}

func (c *cluster) command(ctx context.Context, args ...string) *exec.Cmd {
	path, err := kubeapi.Program("kubectl")
	if err != nil {
		path = "kubectl"
	}
	return exec.CommandContext(ctx, path, append([]string{"--kubeconfig", c.kubeconfig}, args...)...)
}

// kubectl runs kubectl, which must succeed, and returns what it prints.
func (c *cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return process.MustDo(t, c.command(t.Context(), args...))
}

// apply applies YAML documents.
func (c *cluster) apply(t *testing.T, documents string) {
	t.Helper()
	objects, err := kubeapi.Decode([]byte(documents))
	if err == nil {
		err = kubeapi.Apply(t.Context(), c.config, objects...)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// available waits until all pods of Deployments, or of StatefulSets, are ready.
func (c *cluster) available(t *testing.T, namespace string, names ...string) {
	t.Helper()
	for _, name := range names {
		testkit.Eventually(t, patience, func() error {
			d, err := c.AppsV1().Deployments(namespace).Get(t.Context(), name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return c.availableSet(t, namespace, name)
			}
			if err != nil {
				return err
			}
			if d.Status.ObservedGeneration < d.Generation || !complete(d) {
				return fmt.Errorf("Deployment %s: %d of %d pods are available", name, d.Status.AvailableReplicas, *d.Spec.Replicas)
			}
			return nil
		})
	}
}

func (c *cluster) availableSet(t *testing.T, namespace, name string) error {
	s, err := c.AppsV1().StatefulSets(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	want := *s.Spec.Replicas
	if s.Status.ObservedGeneration < s.Generation || s.Status.UpdatedReplicas != want || s.Status.ReadyReplicas != want {
		return fmt.Errorf("StatefulSet %s: %d of %d pods are ready", name, s.Status.ReadyReplicas, want)
	}
	return nil
}

func complete(d *appsv1.Deployment) bool {
	want := *d.Spec.Replicas
	return d.Status.Replicas == want && d.Status.UpdatedReplicas == want && d.Status.AvailableReplicas == want
}

// program is a Deployment of one pod, with a Service of its name on port 8080, that runs an image of cluster-load.
func program(namespace, name, image string, args ...string) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  selector: {matchLabels: {app: %[2]s}}
  template:
    metadata: {labels: {app: %[2]s}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: app
          image: fairlead/%[3]s:dev
          imagePullPolicy: IfNotPresent
          args: [%[4]s]
          env:
            - {name: HOST, value: 0.0.0.0}
            - {name: PORT, value: "8080"}
            - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
          readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: %[2]s, namespace: %[1]s}
spec: {selector: {app: %[2]s}, ports: [{name: http, port: 8080}]}
---
`, namespace, name, image, strings.Join(args, ", "))
}

// get sends a request to a Service through the API server, which works from wherever the tests run.
func (c *cluster) get(ctx context.Context, namespace, service, path string) (status int, body string, err error) {
	raw, err := c.CoreV1().Services(namespace).ProxyGet("http", service, "8080", path, nil).DoRaw(ctx)
	var refused *apierrors.StatusError
	if errors.As(err, &refused) { // the Service's answer, or the API server's, which says so in the body
		return int(refused.ErrStatus.Code), string(raw), nil
	}
	return http.StatusOK, string(raw), err
}

// file writes a text into a file of the test, for kubectl.
func (c *cluster) file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "object.yaml")
	testkit.WriteFile(t, path, []byte(text))
	return path
}
