package mesh

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/caapi"
	"fairlead.dev/tests/internal/load"
)

// replicatedCA is an installation of profile ha whose ca has replicas, on volumes that follow them to any node. Of the
// rest there are as many Pods as two nodes of one machine have room for. The further signers have rights and volumes.
const replicatedCA = `
apiVersion: install.istio.io/v1alpha1
kind: IstioOperator
spec:
  profile: ha
  hub: fairlead
  tag: dev
  values:
    ca:
      replicaCount: 3
      storageClassName: ` + disks + `
      furtherSigners:
        - {name: plugged-in, caCerts: {directory: /etc/cacerts}}
        - {name: second, intermediate: {keys: {secret: {namespace: istio-system, name: ca-second-keys}}, selfSigned: {}}}
    configWatcher: {autoscaleMin: 2}
    injector: {autoscaleMin: 2}
    xdsServer: {autoscaleMin: 2}
    gateways: {istio-ingressgateway: {autoscaleMin: 2}}
`

const signerHeader = "apiVersion: ca.fairlead.dev/v1\nkind: Signer\n"

// newConnections is how many requests come every second, each with a connection to the gateway and one with mutual TLS
// from there. Two processors have the nodes, the control plane and both ends of every connection to run.
const newConnections = 100

// onceEach has a client open a connection for each request to Service one.
const onceEach = `
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: one, namespace: shop}
spec:
  host: one
  trafficPolicy: {connectionPool: {http: {maxRequestsPerConnection: 1}}}
---
`

// TestRotationsWhileNodesAreDrained swaps the signer of a ca with three replicas twice and rotates its root, each while
// a node with Pods of everything is drained, the ca's replicas among them. Each request through the ingress gateway has
// a new connection with mutual TLS to the application.
func TestRotationsWhileNodesAreDrained(t *testing.T) {
	onlyLong(t)
	c := connect(t)
	c.join(t)
	c.disks(t, 3)
	c.replicated(t, replicatedCA, 3)
	c.pluggedIn(t)
	c.replicas(t, 3)
	movable := map[string][]string{"istio-system": controlPlane[1:], shop: {"one"}}

	c.injectedNamespace(t, shop, "istio-injection=enabled")
	c.apply(t, strictMesh+app(shop, "one", 2, "")+shopRoute+onceEach+budget)
	c.available(t, shop, "one")
	c.spread(t, movable)
	requests := c.requests(t)
	requests.New, requests.Rate = true, newConnections
	testkit.Eventually(t, patience, func() error { return load.Once(requests) })
	l := load.Start(t, requests)
	if !l.Holds(t, "nothing happens", aftermath, func(*testing.T) {}) {
		return
	}

	drained, other := secondNode, firstNode
	for _, move := range []struct {
		name string
		args []string
	}{
		{"swap to the Secret cacerts", []string{"swap", "--to", c.file(t, signerHeader+"name: plugged-in\n"+
			"caCerts: {directory: /etc/cacerts}\n")}},
		{"swap to a root of the ca's own", []string{"swap", "--to", c.file(t, signerHeader+"name: second\n"+
			"intermediate: {keys: {secret: {namespace: istio-system, name: ca-second-keys}}, selfSigned: {}}\n")}},
		{"rotation of the root", []string{"rotate"}},
	} {
		ok := l.Holds(t, move.name+" while "+drained+" is drained", aftermath, func(t *testing.T) {
			before := c.caStatus(t)
			moved := len(c.where(t, "istio-system", "ca")[drained])
			if moved == 0 || len(c.where(t, shop, "one")[drained]) == 0 {
				t.Fatalf("node %s has %d replicas of the ca, and no Pod of everything", drained, moved)
			}
			c.fairlead(t, append([]string{"ca"}, append(move.args, "--yes", "--reason", "a test")...)...)
			if s := c.caStatus(t); s.Step == "idle" {
				t.Errorf("%s has ended before the node is drained", move.name)
			}
			c.empty(t, drained, movable, "--pod-selector=k8s-app!=kube-dns")
			if left := c.where(t, "istio-system", "ca")[drained]; len(left) > 0 {
				t.Errorf("replicas of the ca are on the drained node: %v", left)
			}
			c.rotated(t, before)
			t.Logf("%d replicas of the ca have moved", moved)
			for namespace, names := range movable {
				c.available(t, namespace, names...)
				c.settled(t, namespace)
			}
			c.replicas(t, 3)
			c.kubectl(t, "uncordon", drained)
		})
		if !ok {
			return
		}
		drained, other = other, drained
	}
	l.Stop()
	c.noRestarts(t, "istio-system", shop)
}

// onlyLong skips a test of some minutes, but for those who ask for all or name it.
func onlyLong(t *testing.T) {
	t.Helper()
	if os.Getenv("SAMPLE_BY") != "" && !long() {
		t.Skip("LONG=1 runs it")
	}
}

// replicated installs a mesh whose ca has n replicas, until the test ends.
func (c *cluster) replicated(t *testing.T, operator string, n int32) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			c.describe(t, "istio-system")
		}
		cmd := exec.Command(c.program("fairlead"), "uninstall", "--purge", "--with-contents", "-y")
		cmd.Env = c.env()
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("fairlead uninstall: %v: %s", err, out)
		}
		c.kubectlAtEnd(t, "delete", "namespace", "istio-system", "--ignore-not-found") // one that a test has made stays
	})
	c.fairlead(t, "install", "-y", "-f", c.file(t, operator))
	c.available(t, "istio-system", controlPlane[1:]...)
	c.replicas(t, n)
}

// pluggedIn makes a Secret cacerts, and waits until the ca has it.
func (c *cluster) pluggedIn(t *testing.T) {
	t.Helper()
	root := testkit.PKI(t)
	_, err := c.CoreV1().Secrets("istio-system").Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "cacerts"},
		Data: map[string][]byte{"ca-cert.pem": root.RootPEM, "root-cert.pem": root.RootPEM, "cert-chain.pem": root.RootPEM,
			"ca-key.pem": testkit.KeyPEM(t, root.Key)},
	}, metav1.CreateOptions{})
	testkit.NoError(t, err)
	// The kubelet brings it into running Pods after a minute, into new ones at once.
	c.kubectl(t, "rollout", "restart", "-n", "istio-system", "statefulset/ca")
}

// program is the path of a program of the build, and env what it finds the cluster by.
func (c *cluster) program(name string) string { return filepath.Join(os.Getenv("BIN_DIR"), name) }
func (c *cluster) env() []string              { return append(os.Environ(), "KUBECONFIG="+c.kubeconfig) }

// disks lets claims of class disks, and those that name no class, bind n volumes that any node can mount, until the
// test ends.
func (c *cluster) disks(t *testing.T, n int) {
	t.Helper()
	if os.Getenv("CLUSTER_DIR") == "" {
		t.Skip("CLUSTER_DIR names no directory of the nodes for volumes: run `make test-cluster` without KUBECONFIG")
	}
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	_, err := c.StorageV1().StorageClasses().Create(t.Context(), &storagev1.StorageClass{
		ObjectMeta:  metav1.ObjectMeta{Name: disks, Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}},
		Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &wait,
	}, metav1.CreateOptions{})
	testkit.NoError(t, err)
	t.Cleanup(func() { c.kubectlAtEnd(t, "delete", "storageclass", disks) })
	for i := range n {
		// Both nodes have the machine's files.
		name, dir := fmt.Sprintf("%s-%d", disks, i), filepath.Join(os.Getenv("CLUSTER_DIR"), "volumes", fmt.Sprintf("%s-%d", disks, i))
		testkit.NoError(t, os.MkdirAll(dir, 0o755))
		t.Cleanup(func() {
			c.kubectlAtEnd(t, "delete", "persistentvolume", name)
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		})
		_, err := c.CoreV1().PersistentVolumes().Create(t.Context(), &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeSpec{
				Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}, StorageClassName: disks,
				AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
				PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: dir}},
				NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpExists}},
				}}}},
			},
		}, metav1.CreateOptions{})
		testkit.NoError(t, err)
	}
}

// disks is the class of volumes that any node can mount.
const disks = "disks"

// replicas waits until the ca has so many replicas that are ready, each of the newest template.
func (c *cluster) replicas(t *testing.T, n int32) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		s, err := c.AppsV1().StatefulSets("istio-system").Get(t.Context(), "ca", metav1.GetOptions{})
		if err == nil && (s.Status.ObservedGeneration < s.Generation || s.Status.ReadyReplicas != n || s.Status.UpdatedReplicas != n) {
			err = fmt.Errorf("of %d replicas of the ca %d are ready", n, s.Status.ReadyReplicas)
		}
		return err
	})
}

// caStatus is what `fairlead ca status` says, when a replica answers.
func (c *cluster) caStatus(t *testing.T) *caapi.Status {
	t.Helper()
	var s *caapi.Status
	testkit.Eventually(t, patience, func() (err error) {
		s, err = c.askCA(t)
		return err
	})
	return s
}

func (c *cluster) askCA(t *testing.T) (*caapi.Status, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), c.program("fairlead"), "ca", "status", "-o", "json")
	cmd.Env = c.env()
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("fairlead ca status: %w: %s", err, said.String())
	}
	s := &caapi.Status{}
	return s, json.Unmarshal(out, s)
}

// rotated waits until a rotation has ended that began after a status, and asserts that it has led to another signer and
// to other roots, and that all replicas issue from it.
func (c *cluster) rotated(t *testing.T, before *caapi.Status) {
	t.Helper()
	began := time.Now()
	var s *caapi.Status
	last := ""
	testkit.Eventually(t, patience, func() (err error) {
		if s, err = c.askCA(t); err != nil {
			return err
		}
		if s.Step != last {
			last = s.Step
			t.Logf("%.1f s later: step %s", time.Since(began).Seconds(), last)
		}
		if s.Step != "idle" {
			return fmt.Errorf("step %s since %s waits for %q and %d holders, the first %+v; problems %q", s.Step, s.Since, s.Waits, s.Lagging.Total,
				s.Lagging.First[:min(3, len(s.Lagging.First))], s.Problems)
		}
		return nil
	})
	now, was := issues(s), issues(before)
	if now.ID == was.ID || now.ID == 0 {
		t.Errorf("signer %d issues as before", now.ID)
	}
	roots, old := fingerprints(s), fingerprints(before)
	for fingerprint := range roots {
		if old[fingerprint] {
			t.Errorf("root %s is trusted as before: %v, then %v", fingerprint, slices.Collect(maps.Keys(old)), slices.Collect(maps.Keys(roots)))
		}
	}
	if s.Epoch != before.Epoch || s.Generation <= before.Generation {
		t.Errorf("generation %d of epoch %d after %d of %d", s.Generation, s.Epoch, before.Generation, before.Epoch)
	}
	t.Logf("signer %d (%s) issues in place of %d (%s); %d holders, %v by signer", now.ID, now.Name, was.ID, was.Name, s.Holders.Total,
		s.Holders.BySigner)
}

// issues is the signer in use.
func issues(s *caapi.Status) caapi.Signer {
	for _, signer := range s.Signers {
		if signer.Role == "current" {
			return signer
		}
	}
	return caapi.Signer{}
}

func fingerprints(s *caapi.Status) map[string]bool {
	out := map[string]bool{}
	for _, r := range s.Roots {
		out[r.SHA256] = true
	}
	return out
}

// noRestarts asserts that no container of a Pod of these namespaces was started twice.
func (c *cluster) noRestarts(t *testing.T, namespaces ...string) {
	t.Helper()
	for _, namespace := range namespaces {
		pods, err := c.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
		testkit.NoError(t, err)
		for _, p := range pods.Items {
			for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
				if s.RestartCount > 0 {
					t.Errorf("container %s of Pod %s/%s was restarted %d times:\n%s", s.Name, namespace, p.Name, s.RestartCount,
						strings.TrimSpace(c.try("logs", "-n", namespace, p.Name, "-c", s.Name, "--previous", "--tail=20")))
				}
			}
		}
	}
}
