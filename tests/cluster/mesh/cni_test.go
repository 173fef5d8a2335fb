package mesh

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/pkg/testkit"
)

const (
	system    = "kube-system"
	cniAgent  = "fairlead-cni-node"
	cniPlugin = "fairlead-cni"
	// notReady is the taint of nodes without the plugin.
	notReady = "cni.istio.io/not-ready"
)

// injected is a Deployment with a Service on port 8080, whose Pod has a sidecar as injection writes it for the CNI
// plugin: no container has a capability. The last of its init containers is the one that validates.
func injected(namespace, name string, args ...string) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  selector: {matchLabels: {app: %[2]s}}
  template:
    metadata:
      labels: {app: %[2]s, security.istio.io/tlsMode: istio}
      annotations: {sidecar.istio.io/status: '{"initContainers":["istio-validation"],"containers":["istio-proxy"]}'}
    spec:
      terminationGracePeriodSeconds: 1
      initContainers:
        - name: istio-validation
          image: fairlead/proxy:dev
          imagePullPolicy: IfNotPresent
          args: [istio-iptables, -p, "15001", -z, "15006", -u, "1337", -m, REDIRECT, -i, "*", -x, "", -b, "*", -d, "15090,15021,15020",
            --log_output_level=default:info, --run-validation, --skip-rule-apply]
          securityContext: &none {runAsNonRoot: true, runAsUser: 1337, runAsGroup: 1337, allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
      containers:
        - name: app
          image: fairlead/bookinfo:dev
          imagePullPolicy: IfNotPresent
          args: [%[3]s]
          securityContext: {runAsNonRoot: true, runAsUser: 1000, runAsGroup: 1000, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
          env:
            - {name: HOST, value: 0.0.0.0}
            - {name: PORT, value: "8080"}
        - name: istio-proxy
          image: fairlead/proxy:dev
          imagePullPolicy: IfNotPresent
          args: [proxy, sidecar, --state-dir=/var/lib/proxy/state]
          securityContext: *none
          env:
            - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
            - {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
            - {name: INSTANCE_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
            - {name: SERVICE_ACCOUNT, valueFrom: {fieldRef: {fieldPath: spec.serviceAccountName}}}
          readinessProbe: {httpGet: {path: /healthz/ready, port: 15021}, periodSeconds: 1}
          volumeMounts:
            - {name: state, mountPath: /var/lib/proxy}
            - {name: podinfo, mountPath: /etc/istio/pod}
            - {name: token, mountPath: /var/run/secrets/tokens}
            - {name: root-cert, mountPath: /var/run/secrets/istio}
      securityContext: {fsGroup: 1337, seccompProfile: {type: RuntimeDefault}}
      volumes:
        - {name: state, emptyDir: {medium: Memory, sizeLimit: 64Mi}}
        - name: podinfo
          downwardAPI:
            items:
              - {path: labels, fieldRef: {fieldPath: metadata.labels}}
              - {path: annotations, fieldRef: {fieldPath: metadata.annotations}}
        - name: token
          projected: {sources: [{serviceAccountToken: {audience: istio-ca, expirationSeconds: 43200, path: istio-token}}]}
        - {name: root-cert, configMap: {name: istio-ca-root-cert}}
---
apiVersion: v1
kind: Service
metadata: {name: %[2]s, namespace: %[1]s}
spec: {selector: {app: %[2]s}, ports: [{name: http, port: 8080}]}
---
`, namespace, name, strings.Join(args, ", "))
}

// cniNode is the node's directories of CNI.
type cniNode struct {
	*cluster
	dir string
}

func (n cniNode) conflist() string { return filepath.Join(n.dir, "net.d", "10-cluster.conflist") }

// chain lists the plugins that the runtime runs for a Pod.
func (n cniNode) chain(t *testing.T) []string {
	t.Helper()
	raw, err := os.ReadFile(n.conflist())
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Plugins []struct{ Type string } }
	if err := json.Unmarshal(raw, &list); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, p := range list.Plugins {
		out = append(out, p.Type)
	}
	return out
}

// without is the configuration with so many of its plugins, as on a node that is new.
func (n cniNode) without(t *testing.T, plugins int) []byte {
	t.Helper()
	raw, err := os.ReadFile(n.conflist())
	if err != nil {
		t.Fatal(err)
	}
	var list map[string]any
	if err := json.Unmarshal(raw, &list); err != nil {
		t.Fatal(err)
	}
	list["plugins"] = list["plugins"].([]any)[:plugins]
	if raw, err = json.Marshal(list); err != nil {
		t.Fatal(err)
	}
	return raw
}

// install are the settings of an installation with the plugin, whose nodes have a taint until it is there.
func (n cniNode) install() []string {
	return []string{
		"--set", "components.cni.enabled=true", "--set", "values.cni.taint=" + notReady,
		"--set", "values.cni.cniBinDir=" + filepath.Join(n.dir, "bin"), "--set", "values.cni.cniConfDir=" + filepath.Join(n.dir, "net.d"),
	}
}

// agents waits until the agent is on the node, or away.
func (n cniNode) agents(t *testing.T, want int) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		pods, err := n.CoreV1().Pods(system).List(t.Context(), metav1.ListOptions{LabelSelector: "app=cni"})
		if err != nil {
			return err
		}
		ready := 0
		for _, p := range pods.Items {
			if slices.ContainsFunc(p.Status.Conditions,
				func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue }) {
				ready++
			}
		}
		if len(pods.Items) != want || ready != want {
			return fmt.Errorf("%d agents, of which %d are ready; want %d", len(pods.Items), ready, want)
		}
		return nil
	})
}

// sendAway has no node run the agent, whose DaemonSet stays, or again every node.
func (n cniNode) sendAway(t *testing.T, away bool) {
	t.Helper()
	patch, want := `{"spec": {"template": {"spec": {"nodeSelector": {"example.com/none": null}}}}}`, 1
	if away {
		patch, want = `{"spec": {"template": {"spec": {"nodeSelector": {"example.com/none": "none"}}}}}`, 0
	}
	if _, err := n.AppsV1().DaemonSets(system).Patch(t.Context(), cniAgent, types.StrategicMergePatchType, []byte(patch),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	n.agents(t, want)
}

// told waits for an event about a Pod whose reason and message have these texts.
func (c *cluster) told(t *testing.T, namespace, pod, reason, message string) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		events, err := c.CoreV1().Events(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var all []string
		for _, e := range events.Items {
			if strings.HasPrefix(e.InvolvedObject.Name, pod) && e.Reason == reason && strings.Contains(e.Message, message) {
				return nil
			}
			all = append(all, e.InvolvedObject.Name+" "+e.Reason+": "+e.Message)
		}
		return fmt.Errorf("no event %s with %q of Pod %s*, but\n%s", reason, message, pod, strings.Join(all, "\n"))
	})
}

// stars tells whether reviews come with what ratings answers, within the mesh alone.
func (c *cluster) stars(t *testing.T, namespace, from string, want bool) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		status, body, err := c.get(t.Context(), namespace, from, "/reviews/0")
		if err != nil || status != http.StatusOK || strings.Contains(body, `"stars"`) != want {
			return fmt.Errorf("%s answers %d %s, %w; want stars: %t", from, status, body, err, want)
		}
		return nil
	})
}

// Pods without a privilege are redirected by the plugin that the container runtime runs.
func TestCNIPlugin(t *testing.T) {
	c := connect(t)
	n := cniNode{c, os.Getenv("CLUSTER_CNI")}
	if n.dir == "" {
		t.Skip("CLUSTER_CNI names no directory with the node's CNI plugins: run `make test-cluster` without KUBECONFIG")
	}
	before, objects := n.chain(t), c.objects(t)
	removed := false
	remove := func() {
		if !removed {
			removed = true
			c.fairlead(t, "uninstall", "--purge", "--with-contents", "-y")
		}
	}
	defer remove()
	c.fairlead(t, slices.Concat([]string{"install", "-y", "--set", "profile=minimal"}, n.install(), images)...)
	t.Run("while it is installed", func(t *testing.T) { n.redirects(t, before) })
	if t.Failed() {
		c.describe(t, system)
	}
	remove()
	testkit.Eventually(t, patience, func() error {
		if got := n.chain(t); !slices.Equal(got, before) {
			return fmt.Errorf("the runtime's plugins are %q, want %q", got, before)
		}
		if _, err := os.Stat(filepath.Join(n.dir, "bin", cniPlugin)); !os.IsNotExist(err) {
			return fmt.Errorf("the plugin's program is left: %w", err)
		}
		return different(objects, c.objects(t))
	})
}

// redirects is TestCNIPlugin while the plugin is installed, after the plugins plain.
func (n cniNode) redirects(t *testing.T, plain []string) {
	t.Helper()
	c := n.cluster
	before := n.without(t, len(plain))
	n.agents(t, 1)
	if got, want := n.chain(t), append(slices.Clone(plain), cniPlugin); !slices.Equal(got, want) {
		t.Fatalf("the runtime's plugins are %q, want %q", got, want)
	}
	const ns = "redirected"
	c.namespace(t, ns)
	c.apply(t, `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: ratings, namespace: redirected}
spec: {selector: {matchLabels: {app: ratings}}, mtls: {mode: STRICT}}
---
`+injected(ns, "ratings", "ratings")+
		injected(ns, "reviews", "reviews", "--version=v3", "--ratings-url=http://ratings:8080")+
		program(ns, "naked", "bookinfo", "reviews", "--version=v3", "--ratings-url=http://ratings:8080"))
	c.available(t, ns, "ratings", "reviews", "naked")

	t.Run("traffic passes the sidecars of both sides", func(t *testing.T) {
		c.stars(t, ns, "reviews", true)
		c.stars(t, ns, "naked", false) // ratings takes mTLS alone
		c.stars(t, ns, "reviews", true)
	})

	t.Run("a configuration that something else overwrites is repaired", func(t *testing.T) {
		if err := os.WriteFile(n.conflist(), before, 0o644); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		testkit.Eventually(t, patience, func() error {
			if got := n.chain(t); !slices.Contains(got, cniPlugin) {
				return fmt.Errorf("the runtime's plugins are %q", got)
			}
			return nil
		})
		t.Logf("repaired after %.2f s", time.Since(began).Seconds())
	})

	t.Run("without the agent no Pod starts, and an event says why", func(t *testing.T) {
		n.sendAway(t, true)
		if got := n.chain(t); !slices.Contains(got, cniPlugin) {
			t.Fatalf("the runtime's plugins are %q", got)
		}
		c.apply(t, injected(ns, "closed", "ratings"))
		c.told(t, ns, "closed", "FailedCreatePodSandBox", "is the Pod of DaemonSet kube-system/fairlead-cni-node running on this node?")
		n.sendAway(t, false)
		c.available(t, ns, "closed")
	})

	t.Run("a Pod that started without the plugin is repaired, and the node's taint removed", func(t *testing.T) {
		n.sendAway(t, true)
		if err := os.WriteFile(n.conflist(), before, 0o644); err != nil { // as on a node that is new
			t.Fatal(err)
		}
		c.apply(t, injected(ns, "early", "ratings"))
		testkit.Eventually(t, patience, func() error { return c.validationFailed(t.Context(), ns, "early") })
		taint := `{"spec": {"taints": [{"key": "` + notReady + `", "effect": "NoSchedule"}]}}`
		if _, err := c.CoreV1().Nodes().Patch(t.Context(), "node", types.StrategicMergePatchType, []byte(taint),
			metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		n.sendAway(t, false)
		c.available(t, ns, "early")
		c.told(t, ns, "early", "Redirected", "its traffic is redirected now")
		testkit.Eventually(t, patience, func() error {
			node, err := c.CoreV1().Nodes().Get(t.Context(), "node", metav1.GetOptions{})
			if err == nil && slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == notReady }) {
				err = fmt.Errorf("taints %v", node.Spec.Taints)
			}
			return err
		})
	})
}

// validationFailed returns nil once the validation of an app's Pod has found no rules.
func (c *cluster) validationFailed(ctx context.Context, namespace, app string) error {
	pods, err := c.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		return err
	}
	for _, p := range pods.Items {
		for _, s := range p.Status.InitContainerStatuses {
			for _, ended := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
				if ended != nil && ended.ExitCode == 126 {
					return nil
				}
			}
		}
	}
	return fmt.Errorf("no container of %s has ended with code 126", app)
}
