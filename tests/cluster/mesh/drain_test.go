package mesh

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
)

const (
	firstNode  = "node"
	secondNode = "node2"
	// drainWithin bounds a drain that disruption budgets hold up.
	drainWithin = 3 * time.Minute
)

// budget lets an eviction take no Pod of Service one but while another is ready.
const budget = `
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: one, namespace: shop}
spec: {minAvailable: 1, selector: {matchLabels: {app: one}}}
---
`

// drain empties nodes of a cluster with two, one after the other, as whoever maintains the machines does.
func (c *cluster) drain(t *testing.T) {
	c.join(t)
	l := c.loaded(t)
	c.apply(t, budget)
	// Every Deployment of the mesh but ca, which is one Pod with a volume of the first node.
	movable := map[string][]string{"istio-system": controlPlane[1:], shop: {"one"}}
	available := func(t *testing.T) {
		t.Helper()
		for namespace, names := range movable {
			c.available(t, namespace, names...)
			c.settled(t, namespace)
		}
	}
	l.Holds(t, "Pods go until a node has one of everything", aftermath, func(t *testing.T) { c.spread(t, movable) })
	l.Holds(t, "drain of a node with a Pod of everything", aftermath, func(t *testing.T) {
		c.empty(t, secondNode, movable)
		available(t)
		c.runOn(t, movable, firstNode)
	})
	l.Holds(t, "the node is there again, and the one with all Pods of everything is drained", aftermath, func(t *testing.T) {
		c.kubectl(t, "uncordon", secondNode)
		c.empty(t, firstNode, movable, "--pod-selector=app!=ca,k8s-app!=kube-dns")
		available(t)
		c.runOn(t, movable, secondNode)
	})
	l.Holds(t, "that one is there again, and the other is drained for good", aftermath, func(t *testing.T) {
		c.kubectl(t, "uncordon", firstNode)
		c.empty(t, secondNode, movable)
		available(t)
		c.leave(t)
	})
	l.Stop()
}

// join adds a node to the cluster until the test ends.
func (c *cluster) join(t *testing.T) {
	t.Helper()
	if os.Getenv("CLUSTER_PROGRAM") == "" {
		t.Skip("CLUSTER_PROGRAM names no program that adds a node to this cluster: run `make test-cluster` without KUBECONFIG")
	}
	t.Cleanup(func() {
		c.kubectlAtEnd(t, "uncordon", firstNode)
		c.leave(t)
	})
	t.Log(c.nodes(t, "join"))
}

// leave removes it; where it has left, nothing happens.
func (c *cluster) leave(t *testing.T) {
	t.Helper()
	t.Log(c.nodes(t, "leave"))
}

// nodes runs a command of the program of `make cluster-up`.
func (c *cluster) nodes(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command(os.Getenv("CLUSTER_PROGRAM"), name, "--dir", os.Getenv("CLUSTER_DIR")).CombinedOutput()
	if err != nil {
		t.Fatalf("cluster %s: %v: %s", name, err, out)
	}
	return strings.TrimSpace(string(out))
}

// kubectlAtEnd runs kubectl when the test's context has ended.
func (c *cluster) kubectlAtEnd(t *testing.T, args ...string) {
	t.Helper()
	if out, err := c.command(context.Background(), args...).CombinedOutput(); err != nil {
		t.Errorf("kubectl %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// empty drains a node, which honours disruption budgets, and asserts that no Pod of Deployments is left there.
func (c *cluster) empty(t *testing.T, node string, deployments map[string][]string, flags ...string) {
	t.Helper()
	began := time.Now()
	args := []string{"drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=" + drainWithin.String()}
	said, err := c.command(t.Context(), append(args, flags...)...).CombinedOutput()
	if err != nil {
		for namespace := range deployments { // what keeps a Pod is seen now, and not at the end
			c.describe(t, namespace)
		}
		t.Fatalf("kubectl drain %s: %v: %s", node, err, said)
	}
	t.Logf("kubectl drain %s took %.1f s and evicted %d Pods", node, time.Since(began).Seconds(), strings.Count(string(said), " evicted\n"))
	for namespace, names := range deployments {
		for _, name := range names {
			if here := c.where(t, namespace, name)[node]; len(here) > 0 {
				t.Errorf("Pods of Deployment %s are on the drained node %s: %v", name, node, here)
			}
		}
	}
}

// where lists the Pods of a Deployment by node.
func (c *cluster) where(t *testing.T, namespace, deployment string) map[string][]string {
	t.Helper()
	pods, err := c.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + deployment})
	if err != nil {
		t.Fatal(err)
	}
	nodes := map[string][]string{}
	for _, p := range pods.Items {
		if p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning {
			nodes[p.Spec.NodeName] = append(nodes[p.Spec.NodeName], p.Name)
		}
	}
	return nodes
}

// runOn asserts that the Pods of Deployments are on exactly these nodes.
func (c *cluster) runOn(t *testing.T, deployments map[string][]string, nodes ...string) {
	t.Helper()
	for namespace, names := range deployments {
		for _, name := range names {
			if on := slices.Sorted(maps.Keys(c.where(t, namespace, name))); !slices.Equal(on, nodes) {
				t.Errorf("Pods of Deployment %s are on nodes %v, want %v", name, on, nodes)
			}
		}
	}
}

// spread has Deployments of two Pods run one on each node: of those that are on one node together, one goes while the
// scheduler may not use that node.
func (c *cluster) spread(t *testing.T, deployments map[string][]string) {
	t.Helper()
	for namespace, names := range deployments {
		for _, name := range names { // the autoscaler comes some time after an installation
			testkit.Eventually(t, patience, func() error {
				d, err := c.AppsV1().Deployments(namespace).Get(t.Context(), name, metav1.GetOptions{})
				if err == nil && d.Status.AvailableReplicas != 2 {
					err = fmt.Errorf("Deployment %s has %d Pods that are ready, want 2", name, d.Status.AvailableReplicas)
				}
				return err
			})
		}
	}
	for _, node := range []string{firstNode, secondNode} {
		c.kubectl(t, "cordon", node)
		for namespace, names := range deployments {
			for _, name := range names {
				if on := c.where(t, namespace, name); len(on) == 1 && len(on[node]) > 0 {
					c.kubectl(t, "delete", "pod", "-n", namespace, on[node][0])
				}
			}
			c.available(t, namespace, names...)
			c.settled(t, namespace)
		}
		c.kubectl(t, "uncordon", node)
	}
	c.runOn(t, deployments, firstNode, secondNode)
	for namespace, names := range deployments {
		for _, name := range names {
			t.Logf("%s/%s runs on %s", namespace, name, fmt.Sprint(c.where(t, namespace, name)))
		}
	}
}
