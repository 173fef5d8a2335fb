package mesh

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/internal/kubeapi"
	"fairlead.dev/tests/internal/process"
)

// readyWithin is how long an installation may take until everything of it is ready.
const readyWithin = time.Minute

// images are what the charts are told about the images of cluster-load.
var images = []string{"--set", "hub=fairlead", "--set", "tag=dev"}

// way is a way in which a control plane comes into a cluster, and leaves it.
type way struct {
	name            string
	install, remove func(t *testing.T, c *cluster)
	// again upgrades it and goes back; nil where nothing is to be tried.
	again func(t *testing.T, c *cluster)
	// deployments of the control plane, by namespace.
	deployments map[string][]string
	// settings is the ProxyConfig that says where proxies find the control plane; empty for the usual place.
	settings string
	// volumes are how many the cluster must have, of its default class.
	volumes int
	// traceless is true if the cluster is afterwards as it was before.
	traceless bool
}

const charts, overlays = "../../../services/installer/manifests/charts", "../../../deploy/kustomize/overlays"

var separate = map[string][]string{"istio-system": {"ca", "config-watcher", "gateways", "injector", "keeper", "xds-server"}}

// ways lists them in the order of the test: those that leave the mesh's definitions behind come before one that meets
// them.
func ways() []way {
	return []way{
		{
			name: "fairlead install",
			install: func(t *testing.T, c *cluster) {
				began := time.Now()
				c.fairlead(t, append([]string{"install", "-y"}, images...)...)
				if took := time.Since(began); took > readyWithin {
					t.Errorf("ready after %s, want %s at most", took, readyWithin)
				}
				if said := c.fairlead(t, append([]string{"diff"}, images...)...); said != "" {
					t.Errorf("diff after an installation: %s", said)
				}
				c.fairlead(t, "verify-install")
			},
			remove:      func(t *testing.T, c *cluster) { c.fairlead(t, "uninstall", "--purge", "--with-contents", "-y") },
			deployments: map[string][]string{"istio-system": {"ca", "config-watcher", "gateways", "injector", "keeper", "xds-server", "istio-ingressgateway"}},
			traceless:   true,
		},
		{
			name: "helm install",
			install: func(t *testing.T, c *cluster) {
				for _, chart := range []string{"base", "ca", "config-watcher", "injector", "keeper", "xds-server", "gateways"} {
					args := []string{"install", chart, filepath.Join(charts, chart), "-n", "istio-system", "--create-namespace"}
					// A cluster that has known Istio has its definitions.
					c.run(t, "helm", append(args, "--take-ownership", "--set", "global.hub=fairlead,global.tag=dev")...)
				}
			},
			again: func(t *testing.T, c *cluster) {
				for _, chart := range []string{"ca", "config-watcher", "gateways", "injector", "keeper", "xds-server"} {
					c.run(t, "helm", "upgrade", chart, filepath.Join(charts, chart), "-n", "istio-system", "--set", "global.hub=fairlead,global.tag=dev")
					c.run(t, "helm", "rollback", chart, "-n", "istio-system")
				}
			},
			remove: func(t *testing.T, c *cluster) {
				for _, chart := range []string{"gateways", "xds-server", "keeper", "injector", "config-watcher", "ca", "base"} {
					c.run(t, "helm", "uninstall", chart, "-n", "istio-system", "--wait")
				}
				c.kubectl(t, "delete", "namespace", "istio-system")
				c.unpublish(t)
			},
			deployments: separate,
		},
		overlay("compact", map[string][]string{"istio-system": {"fairlead", "gateways", "injector", "keeper"}}, ""),
		onDisks(3, overlay("ha", separate, "")),
		overlay("split-namespaces", map[string][]string{"fairlead-ca": {"ca"},
			"istio-system": {"config-watcher", "gateways", "injector", "keeper"},
			"fairlead-xds": {"xds-server"}},
			"{discoveryAddress: istiod.fairlead-xds.svc:15012, proxyMetadata: {CA_ADDR: ca.fairlead-ca.svc:15012}}"),
		{
			name: "fairlead install, profile compact, beside definitions of others",
			install: func(t *testing.T, c *cluster) {
				c.fairlead(t, append([]string{"install", "-y", "--set", "profile=compact"}, images...)...)
				c.fairlead(t, "verify-install")
				if pods := c.pods(t, "istio-system"); len(pods) != 4 {
					t.Errorf("pods %q, want one, the injector's, the keeper's and that of gateways", pods)
				}
			},
			remove:      func(t *testing.T, c *cluster) { c.fairlead(t, "uninstall", "--purge", "--with-contents", "-y") },
			deployments: map[string][]string{"istio-system": {"fairlead", "gateways", "injector", "keeper"}},
			traceless:   true,
		},
	}
}

// onDisks is a way whose control plane keeps files in so many volumes.
func onDisks(volumes int, w way) way {
	w.volumes = volumes
	return w
}

func overlay(name string, deployments map[string][]string, settings string) way {
	dir := filepath.Join(overlays, name)
	return way{
		name: "kubectl apply -k overlays/" + name,
		install: func(t *testing.T, c *cluster) {
			if _, err := kubeapi.ApplyCRDs(t.Context(), c.config, kubeapi.MeshCRDs(t)); err != nil {
				t.Fatal(err)
			}
			c.kubectl(t, "apply", "-k", dir)
		},
		remove: func(t *testing.T, c *cluster) {
			c.kubectl(t, "delete", "-k", dir, "--ignore-not-found")
			c.unpublish(t)
		},
		deployments: deployments, settings: settings,
	}
}

// TestWaysToInstall installs a control plane in each way, has a gateway serve by it, and removes it.
func TestWaysToInstall(t *testing.T) {
	c := connect(t)
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			if w.volumes > 0 {
				c.disks(t, w.volumes)
			}
			before := c.objects(t)
			began := time.Now()
			// A control plane that is left would be in the way of the next.
			removed := false
			remove := func() {
				if !removed {
					removed = true
					w.remove(t, c)
				}
			}
			defer remove()
			w.install(t, c)
			for namespace, deployments := range w.deployments {
				c.available(t, namespace, deployments...)
			}
			t.Logf("all ready after %.1f s", time.Since(began).Seconds())
			c.serves(t, w.settings)
			if w.again != nil {
				w.again(t, c)
				for namespace, deployments := range w.deployments {
					c.available(t, namespace, deployments...)
				}
				c.serves(t, w.settings)
			}
			if t.Failed() {
				for namespace := range w.deployments {
					c.describe(t, namespace)
				}
			}
			remove()
			if w.traceless {
				testkit.Eventually(t, patience, func() error { return different(before, c.objects(t)) })
			}
		})
	}
}

// serves has a gateway serve what objects in Kubernetes say.
func (c *cluster) serves(t *testing.T, settings string) {
	t.Helper()
	t.Run("a gateway serves by it", func(t *testing.T) {
		const ns = "shop"
		c.namespace(t, ns)
		proxy := gateway
		if settings != "" {
			proxy = strings.Replace(gateway, "          readinessProbe:", "            - {name: PROXY_CONFIG, value: '"+settings+
				"'}\n          readinessProbe:", 1)
		}
		c.apply(t, program(ns, "one", "echo", "one")+proxy+route("one"))
		c.available(t, ns, "one", "gateway")
		testkit.Eventually(t, patience, func() error {
			status, body, err := c.get(t.Context(), ns, "gateway", "/x")
			if err == nil && status != http.StatusOK {
				err = fmt.Errorf("the gateway answers %d %s", status, body)
			}
			return err
		})
		c.kubectl(t, "delete", "-n", ns, "gateways.networking.istio.io,virtualservices.networking.istio.io", "--all")
	})
}

// fairlead runs fairlead, which must succeed, and returns what it prints to its standard output.
func (c *cluster) fairlead(t *testing.T, args ...string) string {
	t.Helper()
	return c.run(t, filepath.Join(os.Getenv("BIN_DIR"), "fairlead"), args...)
}

// run runs a program for this cluster, which must succeed, and returns what it prints to its standard output.
func (c *cluster) run(t *testing.T, path string, args ...string) string {
	t.Helper()
	if !strings.Contains(path, "/") {
		var err error
		if path, err = kubeapi.Program(path); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig)
	return process.MustDo(t, cmd)
}

// unpublish removes what a ca has published in all namespaces, which only fairlead uninstall --purge does by itself.
func (c *cluster) unpublish(t *testing.T) {
	t.Helper()
	c.kubectl(t, "delete", "configmaps", "-A", "-l", contract.ManagedByLabel+"="+contract.ManagedByCA)
}

// pods lists the pods of a namespace.
func (c *cluster) pods(t *testing.T, namespace string) (names []string) {
	t.Helper()
	list, err := c.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list.Items {
		if p.Status.Phase == corev1.PodRunning {
			names = append(names, p.Name)
		}
	}
	return names
}

// objects lists all objects of the cluster but its events, each with its identity and the number of changes of its
// spec.
func (c *cluster) objects(t *testing.T) []string {
	t.Helper()
	var kinds []string
	for _, kind := range strings.Fields(c.kubectl(t, "api-resources", "--verbs=list", "-o", "name")) {
		if !strings.HasPrefix(kind, "events") && kind != "componentstatuses" {
			kinds = append(kinds, kind)
		}
	}
	out := c.kubectl(t, "get", strings.Join(kinds, ","), "-A", "--ignore-not-found", "-o",
		`jsonpath={range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name} {.metadata.uid} {.metadata.generation}{"\n"}{end}`)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	slices.Sort(lines)
	return lines
}

// different names what one list of objects has and the other has not.
func different(before, after []string) error {
	var out []string
	for _, o := range before {
		if !slices.Contains(after, o) {
			out = append(out, "- "+o)
		}
	}
	for _, o := range after {
		if !slices.Contains(before, o) {
			out = append(out, "+ "+o)
		}
	}
	if len(out) > 0 {
		return fmt.Errorf("the cluster is not as it was before:\n%s", strings.Join(out, "\n"))
	}
	return nil
}
