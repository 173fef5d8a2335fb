package mesh

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
)

// sample is the namespace of Istio's verification.
const sample = "sample"

// helloworld deploys what Istio's guides verify an installation by, and waits until it runs: the Service in both,
// version v1 in the first cluster, v2 in the second, curl in both. All of it demands mutual TLS.
func (p *pair) helloworld(t *testing.T) {
	t.Helper()
	dir := os.Getenv("ISTIO_SAMPLES")
	for i, m := range p.members() {
		version := fmt.Sprintf("v%d", i+1)
		m.kubectl(t, "create", "namespace", sample)
		m.kubectl(t, "label", "namespace", sample, "istio-injection=enabled")
		m.kubectl(t, "apply", "-n", sample, "-f", filepath.Join(dir, "helloworld", "helloworld.yaml"), "-l", "service=helloworld")
		m.kubectl(t, "apply", "-n", sample, "-f", filepath.Join(dir, "helloworld", "helloworld.yaml"), "-l", "version="+version)
		m.kubectl(t, "apply", "-n", sample, "-f", filepath.Join(dir, "curl", "curl.yaml"))
	}
	for i, m := range p.members() {
		m.available(t, sample, fmt.Sprintf("helloworld-v%d", i+1), "curl")
		m.sidecars(t, sample)
	}
}

// soon is how long a change may take to reach all proxies: that an API server is silent is noticed after 10 s.
const soon = time.Minute

// hello asks helloworld from curl's Pod in a cluster, and returns the version that answers, or what else was said.
func (m *member) hello(t *testing.T) string {
	t.Helper()
	out, err := m.command(t.Context(), "exec", "-n", sample, "-c", "curl", "deploy/curl", "--", "/usr/bin/curl", "-sS",
		"helloworld.sample:5000/hello").CombinedOutput()
	if found := answer.FindSubmatch(out); err == nil && found != nil {
		return string(found[1])
	}
	return strings.TrimSpace(fmt.Sprintf("%s %v", out, err))
}

var answer = regexp.MustCompile(`^Hello version: (\S+), instance: helloworld-`)

// answers is how often each version answered n requests.
func (m *member) answers(t *testing.T, n int) map[string]int {
	t.Helper()
	seen := map[string]int{}
	for range n {
		seen[m.hello(t)]++
	}
	return seen
}

// verify is Istio's verification: requests in both clusters are answered by v1 and v2.
func (p *pair) verify(t *testing.T) {
	t.Helper()
	for _, m := range p.members() {
		m.answeredBy(t, "v1", "v2")
	}
}

// answeredBy waits until requests in a cluster are answered by all of these versions, and by nothing else.
func (m *member) answeredBy(t *testing.T, versions ...string) {
	t.Helper()
	testkit.Eventually(t, soon, func() error {
		seen := m.answers(t, 12)
		var by []string
		for version := range seen {
			by = append(by, version)
		}
		if slices.Sort(by); !slices.Equal(by, versions) {
			return fmt.Errorf("helloworld answers requests in %s as %v, want %v", m.name, seen, versions)
		}
		t.Logf("         requests in %s were answered by %v", m.name, seen)
		return nil
	})
}

// podOf is the name of a Pod by its labels.
func (m *member) podOf(t *testing.T, namespace, labels string) string {
	t.Helper()
	pods, err := m.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: labels})
	testkit.NoError(t, err)
	if len(pods.Items) == 0 {
		t.Fatalf("%s: no Pod of namespace %s has %s", m.name, namespace, labels)
	}
	return pods.Items[0].Name
}

// bookinfo deploys Istio's sample, productpage and details in the first cluster, reviews and ratings in the second, and
// waits until the ingress gateway of the first serves a page with all of them.
func (p *pair) bookinfo(t *testing.T) {
	t.Helper()
	dir := filepath.Join(os.Getenv("ISTIO_SAMPLES"), "bookinfo")
	here := map[*member][]string{p.first: {"productpage", "details"}, p.second: {"reviews", "ratings"}}
	for _, m := range p.members() {
		m.kubectl(t, "create", "namespace", bookinfo)
		m.kubectl(t, "label", "namespace", bookinfo, "istio-injection=enabled")
		file := filepath.Join(dir, "platform", "kube", "bookinfo.yaml")
		// Services are in both, so that names resolve.
		m.kubectl(t, "apply", "-n", bookinfo, "-f", file, "-l", "service in (productpage,details,reviews,ratings)")
		m.kubectl(t, "apply", "-n", bookinfo, "-f", file, "-l", "account in ("+strings.Join(here[m], ",")+")")
		// A gateway chooses an endpoint for each connection, so that a client may stay with one version: here with v3.
		m.kubectl(t, "apply", "-n", bookinfo, "-f", file, "-l", "app in ("+strings.Join(here[m], ",")+"),version in (v1,v3)")
		m.kubectl(t, "delete", "-n", bookinfo, "deployment", "reviews-v1", "--ignore-not-found")
	}
	p.first.kubectl(t, "apply", "-n", bookinfo, "-f", filepath.Join(dir, "networking", "bookinfo-gateway.yaml"))
	p.first.available(t, bookinfo, "productpage-v1", "details-v1")
	p.second.available(t, bookinfo, "ratings-v1", "reviews-v3")
	url := p.first.ingress(t)
	testkit.Eventually(t, soon, func() error {
		hops, err := chain(url)
		seen := map[string]bool{}
		for _, h := range hops {
			if h.Error != "" {
				err = fmt.Errorf("%s: %s", h.Service, h.Error)
			}
			seen[h.Service] = true
		}
		if err == nil && (!seen["details"] || !seen["reviews"] || !seen["ratings"]) {
			err = fmt.Errorf("only %v have answered yet", seen)
		}
		return err
	})
}
