package mesh

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/tests/internal/load"
)

// TestRestoreDrill loses everything of a mesh but its workloads' Pods, and brings the ca back from a backup, as on a
// cluster that is new to it. Pods of before and after have mutual TLS with each other, and no trust bundle has a number
// that another one had.
func TestRestoreDrill(t *testing.T) {
	onlyLong(t)
	c := connect(t)
	const replicas = 2
	c.disks(t, 2*replicas) // whoever loses a mesh loses its volumes
	mesh := strings.Replace(replicatedCA, "replicaCount: 3", fmt.Sprint("replicaCount: ", replicas), 1)
	c.replicated(t, mesh, replicas)
	c.injectedNamespace(t, shop, "istio-injection=enabled")
	route := strings.Replace(shopRoute, "host: stock", "host: reviews", 1)
	c.apply(t, strictMesh+route+app(shop, "ratings", 1, "", "fairlead/bookinfo:dev", "ratings")+
		app(shop, "reviews", 1, "", "fairlead/bookinfo:dev", "reviews", "--version=v3", `"--ratings-url=http://ratings:8080"`))
	c.available(t, shop, "ratings", "reviews")
	testkit.Eventually(t, patience, func() error { return c.starred(t) })

	// The backup has a root that the first installation did not make, and the ca goes on after it.
	first := c.caStatus(t)
	c.fairlead(t, "ca", "rotate", "--yes")
	c.rotated(t, first)
	dir := t.TempDir()
	archive, phrase := filepath.Join(dir, "ca.age"), filepath.Join(dir, "phrase")
	testkit.WriteFile(t, phrase, []byte("correct horse battery staple\n"))
	c.fairlead(t, "ca", "backup", "-o", archive, "--passphrase-file", phrase)
	saved := c.caStatus(t)
	c.fairlead(t, "ca", "rotate", "--yes")
	testkit.Eventually(t, patience, func() error {
		s, err := c.askCA(t)
		if err == nil && s.Generation <= saved.Generation {
			err = fmt.Errorf("step %s, generation %d", s.Step, s.Generation)
		}
		return err
	})
	c.givesUp(t)
	lost := c.caStatus(t)
	if lost.Epoch != saved.Epoch || lost.Generation <= saved.Generation {
		t.Fatalf("generation %d of epoch %d after the backup, %d of %d before: nothing can be used again", lost.Generation, lost.Epoch,
			saved.Generation, saved.Epoch)
	}
	old := c.only(t, "reviews")

	c.fairlead(t, "uninstall", "--purge", "--with-contents", "-y")
	testkit.Eventually(t, patience, func() error {
		if _, err := c.CoreV1().Namespaces().Get(t.Context(), "istio-system", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("namespace istio-system is there, %w", err)
		}
		if left := c.kubectl(t, "get", "configmaps,secrets", "-A", "-o", "name"); strings.Contains(left, "istio-") || strings.Contains(left, "/ca-") {
			return fmt.Errorf("this is left: %s", left)
		}
		return nil
	})

	c.kubectl(t, "create", "namespace", "istio-system")
	t.Log(c.fairlead(t, "ca", "restore", archive, "--passphrase-file", phrase))
	c.fairlead(t, "install", "-y", "-f", c.file(t, mesh))
	c.replicas(t, replicas)
	c.apply(t, strictMesh+route)
	s := c.caStatus(t)
	if s.Epoch <= lost.Epoch {
		t.Errorf("generation %d of epoch %d after %d of %d", s.Generation, s.Epoch, lost.Generation, lost.Epoch)
	}
	roots := fingerprints(s)
	for fingerprint := range fingerprints(saved) {
		if !roots[fingerprint] {
			t.Errorf("root %s of before is not trusted, but %v", fingerprint, roots)
		}
	}
	t.Logf("epoch %d, generation %d when it was lost; epoch %d, generation %d now", lost.Epoch, lost.Generation, s.Epoch, s.Generation)

	// The ingress gateway and the ratings are new, the reviews between them are of before.
	c.kubectl(t, "rollout", "restart", "-n", shop, "deployment/ratings")
	c.available(t, shop, "ratings")
	c.settled(t, shop)
	testkit.Eventually(t, patience, func() error { return c.starred(t) })
	l := load.Start(t, load.Config{Rate: 20, URL: c.ingress(t) + "/reviews/0", New: true})
	l.Holds(t, "an agent of before takes the bundle of the restored ca, and renews", aftermath, func(t *testing.T) {
		testkit.Eventually(t, patience, func() error {
			b, err := c.adopted(t, old.Name)
			if err == nil && (b.Epoch != s.Epoch || b.Generation < s.Generation) {
				err = fmt.Errorf("the agent has generation %d of epoch %d", b.Generation, b.Epoch)
			}
			return err
		})
		if said := c.fairlead(t, "proxy", "renew", old.Name+"."+shop); !strings.Contains(said, ": renewed after") {
			t.Errorf("renew: %s", said)
		}
	})
	l.Stop()
	testkit.Eventually(t, patience, func() error { // replicas without a journal first ask each other
		s, err := c.askCA(t)
		if err == nil && s.Holders.UnknownUntil.IsZero() {
			err = fmt.Errorf("the ca believes to know all holders: %+v", s.Holders)
		}
		return err
	})
	if now := c.only(t, "reviews"); now.UID != old.UID {
		t.Errorf("Pod %s is another one than %s", now.Name, old.Name)
	}
	if err := c.starred(t); err != nil {
		t.Error(err)
	}
	c.noRestarts(t, shop)
}

// starred asks the reviews through the ingress gateway, which ask the ratings; nil if both have answered.
func (c *cluster) starred(t *testing.T) error {
	t.Helper()
	body, err := get(c.ingress(t) + "/reviews/0")
	if err == nil && !strings.Contains(body, `"stars"`) {
		err = fmt.Errorf("the reviews come without stars: %s", body)
	}
	return err
}

// only is the one Pod of a Deployment of namespace shop.
func (c *cluster) only(t *testing.T, deployment string) corev1.Pod {
	t.Helper()
	pods, err := c.CoreV1().Pods(shop).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + deployment})
	if err != nil || len(pods.Items) != 1 {
		t.Fatalf("%d Pods of Deployment %s, %v", len(pods.Items), deployment, err)
	}
	return pods.Items[0]
}

// givesUp ends the rotation that is under way without the next signer, and waits for its end.
func (c *cluster) givesUp(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		var errs []string
		for _, flag := range []string{"--abort", "--rollback"} { // by the step, one of them
			cmd := exec.CommandContext(t.Context(), c.program("fairlead"), "ca", "rotate", flag, "--yes")
			cmd.Env = c.env()
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Logf("fairlead ca rotate %s: %s", flag, out)
				return nil
			}
			errs = append(errs, string(out))
		}
		return fmt.Errorf("%q", errs)
	})
	var s *caapi.Status
	testkit.Eventually(t, patience, func() (err error) {
		if s, err = c.askCA(t); err == nil && s.Step != "idle" {
			err = fmt.Errorf("step %s waits for %q and %+v", s.Step, s.Waits, s.Lagging)
		}
		return err
	})
}

// bundle is the number of a trust bundle.
type bundle struct {
	Msg               string
	Epoch, Generation uint64
}

// adopted is the number of the trust bundle that a Pod's agent has taken last, by its log.
func (c *cluster) adopted(t *testing.T, pod string) (last bundle, err error) {
	t.Helper()
	for line := range strings.Lines(c.kubectl(t, "logs", "-n", shop, pod, "-c", "istio-proxy")) {
		var b bundle
		if json.Unmarshal([]byte(line), &b) == nil && b.Msg == "trust bundle of the ca adopted" {
			last = b
		}
	}
	if last.Msg == "" {
		err = fmt.Errorf("the log of %s names no trust bundle", pod)
	}
	return last, err
}
