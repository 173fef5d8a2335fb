package mesh

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/load"
)

const (
	// servers is how many Pods a rolling restart removes.
	servers = 3
	// crashes is how many applications crash in a row, and lostByCrash how many requests, which wait for the program
	// that counts, each of them may take with it: nobody can tell whether the application has read what the kernel has
	// taken for it.
	crashes, lostByCrash = 2, 15
)

// removals is about Pods that go under load, whatever their applications do then. A program without a sidecar counts
// what the applications execute.
func (c *cluster) removals(t *testing.T) {
	c.fairlead(t, append([]string{"install", "-y", "--set", twoGateways}, images...)...)
	c.injectedNamespace(t, shop, "istio-injection=enabled")
	c.apply(t, app(shop, "counter", 1, `sidecar.istio.io/inject: "false"`))
	c.available(t, shop, "counter")
	times := 1
	if long() {
		times = 10 // a hundred Pods, and the crashes
	}
	for _, onTerm := range []string{"exit", "hang"} {
		text := app(shop, "one", servers, `fairlead.dev/application-stop-delay: 2s`)
		text = strings.NewReplacer(
			"          lifecycle: {preStop: {sleep: {seconds: 3}}}\n", "",
			"          env:\n", "          env:\n            - {name: ON_TERM, value: "+onTerm+
				"}\n            - {name: COUNT_AT, value: \"http://counter:8080/\"}\n",
			"    spec:\n", "    spec:\n      terminationGracePeriodSeconds: 8\n",
		).Replace(text)
		c.apply(t, strictMesh+text+shopRoute)
		c.available(t, shop, "one")
		c.settled(t, shop)
		requests := c.requests(t)
		testkit.Eventually(t, patience, func() error { return load.Once(requests) })
		l := load.Start(t, requests)
		for range times {
			l.Holds(t, "rolling restart of applications that "+onTerm, aftermath, func(t *testing.T) {
				c.kubectl(t, "rollout", "restart", "-n", shop, "deployment/one")
				c.available(t, shop, "one")
				c.settled(t, shop)
			})
			l.Holds(t, "all Pods but one go at once, of applications that "+onTerm, aftermath, func(t *testing.T) {
				pods, err := c.CoreV1().Pods(shop).List(t.Context(), metav1.ListOptions{LabelSelector: "app=one"})
				if err != nil {
					t.Fatal(err)
				}
				args := []string{"delete", "pod", "-n", shop}
				for _, p := range pods.Items[1:] {
					args = append(args, p.Name)
				}
				c.kubectl(t, args...)
				c.available(t, shop, "one")
			})
		}
		// A crash, which the application is asked for by a request of its own.
		l.Loses(t, "crashes of applications that "+onTerm, crashes*lostByCrash, aftermath, func(t *testing.T) {
			for range crashes {
				before := c.restarted(t)
				if err := load.Once(load.Config{URL: requests.URL + "/crash"}); err == nil {
					t.Error("the application has answered")
				}
				testkit.Eventually(t, patience, func() error {
					if now := c.restarted(t); now == before {
						return fmt.Errorf("%d restarts of applications", now)
					}
					return nil
				})
			}
			c.settled(t, shop)
		})
		l.Stop()
	}
	status, body, err := c.get(t.Context(), shop, "counter", "/executed")
	var executed struct{ Requests, Twice int }
	if err == nil {
		err = json.Unmarshal([]byte(body), &executed)
	}
	t.Logf("%d requests were executed, %d of them twice", executed.Requests, executed.Twice)
	if err != nil || executed.Requests == 0 || executed.Twice > 0 {
		t.Errorf("%v, status %d, %s", err, status, body)
	}
}

// restarted counts the restarts of the applications of Deployment one.
func (c *cluster) restarted(t *testing.T) (n int32) {
	t.Helper()
	pods, err := c.CoreV1().Pods(shop).List(t.Context(), metav1.ListOptions{LabelSelector: "app=one"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods.Items {
		for _, s := range pods.Items[i].Status.ContainerStatuses {
			n += s.RestartCount
		}
	}
	return n
}
