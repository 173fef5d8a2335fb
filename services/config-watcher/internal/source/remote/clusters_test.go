package remote

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/normalise"
)

// labelled is a Secret for remote clusters, of an age in hours.
func labelled(name string, hours int, data map[string]string) *corev1.Secret {
	created := metav1.NewTime(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).Add(-time.Duration(hours) * time.Hour))
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "istio-system", Name: name, CreationTimestamp: created,
		Labels: map[string]string{"istio/multiCluster": "true"}}, Data: map[string][]byte{}}
	for k, v := range data {
		s.Data[k] = []byte(v)
	}
	return s
}

// run follows the Secrets of a fake API server until the test ends.
func run(t *testing.T, timeout time.Duration, client *fake.Clientset) *Clusters {
	t.Helper()
	c := New(Config{
		Own: "west", Secrets: client.CoreV1().Secrets("istio-system"), Namespace: "istio-system",
		Allow:   []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		Timeout: timeout, QPS: 50, Burst: 50, UserAgent: "test", Submit: func(context.Context, []normalise.Change) {}, Log: testkit.Logger(t),
		Clock: clock.Real(),
	})
	ctx, cancel := context.WithCancel(context.Background())
	finished := make(chan error, 1)
	go func() { finished <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-finished; err != nil {
			t.Error(err)
		}
	})
	return c
}

// rows waits until the entries are as described: "id state", or "id secret state: part of the message".
func rows(t *testing.T, c *Clusters, want ...string) {
	t.Helper()
	testkit.Eventually(t, testkit.Patience, func() error {
		got := []string{}
		for _, r := range c.List() {
			got = append(got, fmt.Sprintf("%s %s %s: %s", r.ID, r.Secret, r.State, r.Message))
		}
		matches := len(got) == len(want)
		for i := 0; matches && i < len(want); i++ {
			head, part, _ := strings.Cut(want[i], ": ")
			matches = strings.HasPrefix(got[i], head) && strings.Contains(got[i], part)
		}
		if !matches {
			return fmt.Errorf("entries %q, want %q", got, want)
		}
		return nil
	})
}

func TestWhichEntryOfWhichSecretCounts(t *testing.T) {
	good := kubeconfigOf(`server: "https://127.0.0.1:1"`, "token: a")
	client := fake.NewClientset(
		labelled("old", 9, map[string]string{"east": good, "west": good}),
		labelled("new", 1, map[string]string{"east": good, "-bad": good, "south": "very-secret"}),
	)
	secrets := client.CoreV1().Secrets("istio-system")
	unlabelled := labelled("other", 20, map[string]string{"north": good})
	unlabelled.Labels = nil
	if _, err := secrets.Create(t.Context(), unlabelled, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c := run(t, time.Hour, client)
	rows(t, c,
		"-bad istio-system/new ignored: no id of a cluster",
		"east istio-system/new ignored: the older Secret istio-system/old names the same cluster",
		"east istio-system/old syncing", "south istio-system/new refused: data[south]: is no kubeconfig",
		"west istio-system/old ignored: own cluster")
	if st := c.Status(); st.Synced {
		t.Error("the mesh does not wait for a cluster that is being read")
	}
	// The oldest goes: the next one counts.
	if err := secrets.Delete(t.Context(), "old", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	rows(t, c, "-bad istio-system/new ignored", "east istio-system/new syncing", "south istio-system/new refused")
	// A kubeconfig that is refused does not end the reading.
	if _, err := secrets.Update(t.Context(),
		labelled("new", 1, map[string]string{"east": kubeconfigOf(server, "exec: {apiVersion: v1, command: x}")}),
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	rows(t, c, "east istio-system/new refused: users[reader].user.exec")
	if n := len(c.Sources()); n != 1 {
		t.Errorf("%d clusters are read, want the one whose new kubeconfig is refused", n)
	}
	if st := c.Status(); len(st.Problems) != 1 ||
		!strings.Contains(st.Problems[0].Error(), "Secret istio-system/new: data[east]: users[reader].user.exec: ") {
		t.Errorf("problems %v", st.Problems)
	}
	if err := secrets.Delete(t.Context(), "new", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	rows(t, c)
	testkit.Eventually(t, testkit.Patience, func() error {
		if st := c.Status(); !st.Synced || st.Degraded != nil || len(st.Problems) > 0 {
			return fmt.Errorf("without clusters the status is %+v", st)
		}
		return nil
	})
}

func TestTheMeshDoesNotWaitForeverForACluster(t *testing.T) {
	asked := make(chan struct{}, 100)
	inside := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- struct{}{} }))
	t.Cleanup(inside.Close)
	redirecting := httptest.NewTLSServer(http.RedirectHandler(inside.URL, http.StatusTemporaryRedirect))
	t.Cleanup(redirecting.Close)
	ca := "certificate-authority-data: " + base64.StdEncoding.EncodeToString(testkit.CertPEM(redirecting.Certificate()))
	c := run(t, 300*time.Millisecond,
		fake.NewClientset(labelled("s", 1, map[string]string{"east": kubeconfigOf(`server: "`+redirecting.URL+`", `+ca, "token: a")})))
	rows(t, c, "east istio-system/s timeout: redirect")
	if st := c.Status(); !st.Synced || st.Degraded == nil || !strings.Contains(st.Degraded.Error(), "cluster east was not read within 300ms") {
		t.Errorf("status %+v", st)
	}
	if len(asked) > 0 {
		t.Error("a redirect was followed")
	}
	if n := c.Counts()[Timeout]; n != 1 {
		t.Errorf("%d clusters counted in state timeout", n)
	}
}

func TestSecretsThatMayNotBeReadAreNotWaitedFor(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("list", "secrets", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "", fmt.Errorf("no right"))
	})
	client.PrependWatchReactor("secrets", func(k8stesting.Action) (bool, watch.Interface, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "", fmt.Errorf("no right"))
	})
	c := run(t, time.Hour, client)
	testkit.Eventually(t, testkit.Patience, func() error {
		st := c.Status()
		if !st.Synced || st.Degraded == nil || !strings.Contains(st.Degraded.Error(), "get, list and watch Secrets") {
			return fmt.Errorf("status %+v", st)
		}
		return nil
	})
}
