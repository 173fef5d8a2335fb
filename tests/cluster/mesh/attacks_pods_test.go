package mesh

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/pkg/testkit"
)

// restricted has Pods run, with sidecars that the CNI plugin redirects to, where Pods may have no privilege at all.
func (c *cluster) restricted(t *testing.T) {
	const ns = "tenant-restricted"
	c.injectedNamespace(t, ns, "istio-injection=enabled", "pod-security.kubernetes.io/enforce=restricted")
	app := strings.Replace(program(ns, "app", "echo", "one"), "          imagePullPolicy",
		"          securityContext: {runAsNonRoot: true, runAsUser: 1000, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}, "+
			"seccompProfile: {type: RuntimeDefault}}\n"+
			"          imagePullPolicy", 1)
	c.apply(t, app)
	c.available(t, ns, "app")
	c.sidecars(t, ns)
	c.privilegedPodsAreRefused(t, ns)
	pod := c.pods(t, ns)[0]
	for what, tc := range map[string]struct{ context, want string }{
		"as root":          {`{"runAsUser": 0}`, "violates PodSecurity"},
		"with a privilege": {`{"privileged": true}`, "violates PodSecurity"},
		"as the proxy, with its directory": {
			`{"runAsUser": 1337, "runAsNonRoot": true, "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}}`, ""},
	} {
		// As the proxy's user, whoever may do this is that workload, as docs/security.md says; the Pod goes on.
		name := strings.ReplaceAll(strings.ReplaceAll(what, " ", "-"), ",", "")
		_, err := c.CoreV1().Pods(ns).Patch(t.Context(), pod, types.StrategicMergePatchType, fmt.Appendf(nil,
			`{"spec": {"ephemeralContainers": [{"name": %q, "image": "fairlead/trap:dev", "imagePullPolicy": "IfNotPresent", "args": ["wait"], "targetContainerName": "istio-proxy", "securityContext": %s}]}}`,
			name, tc.context), metav1.PatchOptions{}, "ephemeralcontainers")
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("an ephemeral container %s: %v", what, err)
		}
	}
	c.available(t, ns, "app")
}

// privilegedPodsAreRefused asks a namespace for a Pod of the node's privileges.
func (c *cluster) privilegedPodsAreRefused(t *testing.T, namespace string) {
	t.Helper()
	yes := true
	_, err := c.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "privileged", Annotations: map[string]string{"sidecar.istio.io/inject": "false"}},
		Spec: corev1.PodSpec{HostPID: true, Containers: []corev1.Container{{
			Name: "a", Image: "a", SecurityContext: &corev1.SecurityContext{Privileged: &yes},
		}}},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "PodSecurity") {
		t.Errorf("a privileged Pod in %s: %v", namespace, err)
	}
}

// trap starts two Pods before the CNI plugin, as a node that is new may. Processes of the first have a pipe in place of
// their resolv.conf, which nobody writes to; the second, of another tenant, is repaired all the same.
func (n cniNode) trap(t *testing.T, plugins int) {
	const attacker, victim = "tenant-trap", "tenant-trapped"
	c := n.cluster
	c.namespace(t, attacker)
	c.namespace(t, victim)
	without := n.without(t, plugins)
	n.sendAway(t, true)
	if err := os.WriteFile(n.conflist(), without, 0o644); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		c.apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata:
  name: trap-%d
  namespace: %s
  labels: {app: trap}
  annotations: {sidecar.istio.io/status: '{"initContainers":["istio-validation"],"containers":["istio-proxy"]}'}
spec:
  terminationGracePeriodSeconds: 1
  initContainers:
    - {name: trap, image: fairlead/trap:dev, imagePullPolicy: IfNotPresent, args: [root], restartPolicy: Always}
    - {name: istio-validation, image: fairlead/trap:dev, imagePullPolicy: IfNotPresent, args: [fail, "126"]}
  containers:
    - {name: istio-proxy, image: fairlead/trap:dev, imagePullPolicy: IfNotPresent, args: [wait]}
`, i, attacker))
	}
	testkit.Eventually(t, patience, func() error { return c.validationFailed(t.Context(), attacker, "trap") })
	c.apply(t, injected(victim, "early", "ratings"))
	testkit.Eventually(t, patience, func() error { return c.validationFailed(t.Context(), victim, "early") })
	n.sendAway(t, false)
	began := time.Now()
	c.available(t, victim, "early")
	c.told(t, victim, "early", "Redirected", "its traffic is redirected now")
	t.Logf("repaired after %.1f s", time.Since(began).Seconds())
}

// istioOperators writes IstioOperators that ask for more than a mesh, where an operator reads them.
func (c *cluster) istioOperators(t *testing.T) {
	c.fairlead(t, "operator", "init", "--hub", "fairlead", "--tag", "dev")
	defer func() {
		c.fairlead(t, "operator", "remove", "-y")
		c.kubectl(t, "delete", "namespace/istio-operator", "crd/istiooperators.install.istio.io")
	}()
	held := c.memory(t, "istio-operator", "")
	c.privilegedPodsAreRefused(t, "istio-operator")
	for name, overlays := range map[string]string{
		"namespace": "[{kind: Deployment, name: xds-server-evil, patches: [{path: metadata.namespace, value: kube-system}]}]",
		"account":   "[{kind: Deployment, name: xds-server-evil, patches: [{path: spec.template.spec.serviceAccountName, value: keeper}]}]",
		"host":      `[{kind: Deployment, name: xds-server-evil, patches: [{path: "spec.template.spec.volumes[-1]", value: {name: host, hostPath: {path: /}}}]}]`,
	} {
		c.apply(t, fmt.Sprintf(`
apiVersion: install.istio.io/v1alpha1
kind: IstioOperator
metadata: {name: evil-%s, namespace: istio-system}
spec: {revision: evil, profile: minimal, hub: fairlead, tag: dev, components: {xdsServer: {k8s: {overlays: %s}}}}
`, name, overlays))
		testkit.Eventually(t, patience, func() error {
			said := c.try("get", "istiooperators.install.istio.io", "-n", "istio-system", "evil-"+name, "-o",
				"jsonpath={.status.status} {.status.message}")
			if !strings.HasPrefix(said, "ERROR ") || !strings.Contains(said, "--allow-privileges") {
				return fmt.Errorf("the operator says %q of overlay %s", said, name)
			}
			return nil
		})
		c.kubectl(t, "delete", "istiooperators.install.istio.io", "-n", "istio-system", "evil-"+name, "--timeout=1m")
	}
	if left := c.kubectl(t, "get", "deployments,daemonsets,services", "-A", "-o", "name"); strings.Contains(left, "evil") {
		t.Errorf("the operator has made %s", left)
	}
	held()
}

// dials asks a Pod of the program trap, which cluster.dialer has made, what it reaches.
func (c *cluster) dials(t *testing.T, namespace, pod string) (out map[string]string) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		raw, err := c.CoreV1().Pods(namespace).ProxyGet("http", pod, "8080", "/", nil).DoRaw(t.Context())
		if err != nil {
			return err
		}
		return json.Unmarshal(raw, &out)
	})
	return out
}

// dialer makes a Pod that answers which addresses it reaches. It is never ready, so that no Service leads to it,
// whatever its labels are.
func (c *cluster) dialer(t *testing.T, namespace, name string, labels map[string]string, targets []string) {
	t.Helper()
	no, yes, user := false, true, int64(1000)
	second := int64(1)
	_, err := c.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &second, AutomountServiceAccountToken: &no, Containers: []corev1.Container{{
			Name: "trap", Image: "fairlead/trap:dev", ImagePullPolicy: corev1.PullIfNotPresent, Args: append([]string{"dial"}, targets...),
			Env: []corev1.EnvVar{{Name: "PORT", Value: "8080"}},
			SecurityContext: &corev1.SecurityContext{
				RunAsNonRoot: &yes, RunAsUser: &user, AllowPrivilegeEscalation: &no,
				Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/no"}}}},
		}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// disguise are the labels by which network policies know a service's Pods.
func disguise(service string) map[string]string {
	return map[string]string{"app": service, "istio.io/rev": "default", "sidecar.istio.io/inject": "false"}
}

// reach has Pods dial every port of the services: those of a tenant, and those that carry a service's labels. What they
// reach is the table of deploy/README.
func (c *cluster) reach(t *testing.T) {
	const ns, monitoring = "tenant-outside", "monitoring"
	c.namespace(t, ns)
	c.namespace(t, monitoring)
	c.kubectl(t, "label", "namespace", monitoring, "fairlead.dev/monitoring=true")
	c.dialer(t, ns, "bystander", nil, []string{"none=192.0.2.1:1"})
	var targets []string
	for _, p := range []struct {
		app   string
		ports []string
	}{
		{"ca", []string{"15012", "15014"}}, {"config-watcher", []string{"15060", "15017", "15014"}}, {"injector", []string{"15017", "15014"}},
		{"xds-server", []string{"15012", "15014"}}, {"keeper", []string{"15014"}},
		{"gateways", []string{"15014"}},
	} {
		pods, err := c.CoreV1().Pods("istio-system").List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + p.app})
		if err != nil || len(pods.Items) == 0 {
			t.Fatalf("%d Pods of %s, %v", len(pods.Items), p.app, err)
		}
		for _, port := range p.ports {
			targets = append(targets, p.app+":"+port+"="+net.JoinHostPort(pods.Items[0].Status.PodIP, port))
		}
	}
	testkit.Eventually(t, patience, func() error {
		pod, err := c.CoreV1().Pods(ns).Get(t.Context(), "bystander", metav1.GetOptions{})
		if err == nil && pod.Status.PodIP == "" {
			err = fmt.Errorf("the bystander has no address")
		}
		if err == nil {
			targets = append(targets, "tenant="+net.JoinHostPort(pod.Status.PodIP, "8080"))
		}
		return err
	})
	targets = append(targets, "kubernetes=198.19.0.1:443")
	dialers := []struct {
		namespace, name string
		labels          map[string]string
		reaches         []string
	}{
		{ns, "outside", nil, []string{"ca:15012", "config-watcher:15017", "injector:15017", "kubernetes", "tenant", "xds-server:15012"}},
		{ns, "disguised", disguise("xds-server"), []string{"ca:15012", "config-watcher:15017", "injector:15017", "kubernetes", "tenant",
			"xds-server:15012"}},
		{
			monitoring, "prometheus", nil,
			[]string{"ca:15012", "ca:15014", "config-watcher:15014", "config-watcher:15017", "gateways:15014", "injector:15014", "injector:15017",
				"kubernetes", "tenant", "xds-server:15012", "xds-server:15014"},
		},
		{"istio-system", "thief-xds-server", disguise("xds-server"), []string{"ca:15012", "config-watcher:15060", "xds-server:15012"}},
		{"istio-system", "thief-ca", disguise("ca"), []string{"kubernetes"}},
		{"istio-system", "thief-config-watcher", disguise("config-watcher"), []string{"ca:15012", "config-watcher:15060", "kubernetes"}},
		{"istio-system", "thief-injector", disguise("injector"), []string{"ca:15012", "kubernetes"}},
		{"istio-system", "thief-gateways", disguise("gateways"), []string{"kubernetes"}},
		{"istio-system", "thief-keeper", disguise("keeper"), []string{"config-watcher:15017", "kubernetes"}},
	}
	for _, from := range dialers {
		c.dialer(t, from.namespace, from.name, from.labels, targets)
	}
	for _, from := range dialers {
		var got []string
		testkit.Eventually(t, 20*time.Second, func() error { // what enforces policies learns of the Pod
			got = nil
			for name, answer := range c.dials(t, from.namespace, from.name) {
				if answer == "open" {
					got = append(got, name)
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, from.reaches) {
				return fmt.Errorf("%s/%s reaches %q, want %q", from.namespace, from.name, got, from.reaches)
			}
			return nil
		})
		if from.namespace == "istio-system" {
			c.kubectl(t, "delete", "pod", "-n", from.namespace, from.name)
		}
	}
}

// hoard writes one large object after the other into a namespace, each of which is valid.
func (c *cluster) hoard(t *testing.T) {
	const ns, other, matches = "tenant-hoard", "tenant-modest", 20_000
	c.namespace(t, ns)
	c.namespace(t, other)
	var list strings.Builder
	for i := range matches {
		fmt.Fprintf(&list, `{"uri": {"prefix": "/some/path/of/an/application/%d"}},`, i)
	}
	document := func(namespace, name, finalizers, matches string) string {
		return c.file(t, fmt.Sprintf(`{"apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": {"name": %q, "namespace": %q, "finalizers": [%s]}, "spec": {"hosts": ["a"], "http": [{"match": [%s], "route": [{"destination": {"host": "a"}}]}]}}`,
			name, namespace, finalizers, strings.TrimSuffix(matches, ",")))
	}
	// A review that a busy machine does not answer in time is no verdict on the object: it is asked for again.
	run := func(args ...string) error {
		for tries := 1; ; tries++ {
			out, err := c.command(t.Context(), args...).CombinedOutput()
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			if tries == 5 || err == nil || !strings.Contains(err.Error(), "context deadline exceeded") {
				return err
			}
			t.Logf("no verdict within the webhook's time: %s", args[0])
		}
	}
	routes := func(namespace, name, matches string) error {
		return run("create", "-f", document(namespace, name, "", matches))
	}
	const kept = `"tests.fairlead.dev/kept"`
	c.kubectl(t, "create", "-f", document(ns, "kept", kept, `{"uri": {"prefix": "/"}}`))
	c.kubectl(t, "delete", "virtualservices.networking.istio.io", "-n", ns, "kept", "--wait=false")
	taken := 0
	var refused error
	for ; taken < 20 && refused == nil; taken++ {
		refused = routes(ns, fmt.Sprint("large-", taken), list.String())
	}
	if taken < 3 || refused == nil || !strings.Contains(refused.Error(), "the limit is 128 MiB") {
		t.Errorf("object %d of %d matches: %v", taken, matches, refused)
	}
	t.Logf("object %d was refused", taken)
	if err := run("replace", "-f", document(ns, "kept", kept, list.String())); err == nil ||
		!strings.Contains(err.Error(), "the limit is 128 MiB") {
		t.Errorf("what is being deleted grows: %v", err)
	}
	c.kubectl(t, "patch", "virtualservices.networking.istio.io", "-n", ns, "kept", "--type=merge", "-p", `{"metadata": {"finalizers": []}}`)
	if err := routes(ns, "small", `{"uri": {"prefix": "/"}}`); err != nil {
		t.Logf("a small one beside them: %v", err)
	}
	if err := routes(other, "small", `{"uri": {"prefix": "/"}}`); err != nil {
		t.Errorf("another namespace: %v", err)
	}
	c.kubectl(t, "delete", "virtualservices.networking.istio.io", "-n", ns, "--all")
	testkit.Eventually(t, patience, func() error { return routes(ns, "again", list.String()) })
}

// tenants writes what takes another's traffic where namespaces are not kept apart, with the rights of who owns one.
func (c *cluster) tenants(t *testing.T, install []string) {
	const ns, victim = "tenant-taker", "tenant-bank"
	c.namespace(t, ns)
	c.namespace(t, victim)
	c.apply(t, program(victim, "bank", "echo", "bank"))
	service, err := c.CoreV1().Services(victim).Get(t.Context(), "bank", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	objects := map[string]string{
		"routes of all Services": `{"kind": "VirtualService", "spec": {"hosts": ["*.svc.cluster.local"], "exportTo": ["*"], "http": [{"route": [{"destination": {"host": "taker.tenant-taker.svc.cluster.local"}}]}]}}`,
		"the address of a Service": `{"kind": "ServiceEntry", "spec": {"hosts": ["taker.example.com"], "addresses": ["` + service.Spec.ClusterIP +
			`"], "exportTo": ["*"], "ports": [{"number": 8080, "name": "http", "protocol": "HTTP"}], "resolution": "STATIC", "endpoints": [{"address": "192.0.2.66"}]}}`,
		"a port of everybody":   `{"kind": "ServiceEntry", "spec": {"hosts": ["taker.tenant-taker.svc.cluster.local"], "exportTo": ["*"], "ports": [{"number": 5432, "name": "tcp", "protocol": "TCP"}], "resolution": "STATIC", "endpoints": [{"address": "192.0.2.66"}]}}`,
		"a policy of a Service": `{"kind": "DestinationRule", "spec": {"host": "bank.tenant-bank.svc.cluster.local", "exportTo": ["*"], "trafficPolicy": {"tls": {"mode": "DISABLE"}}}}`,
	}
	create := func(name, object string) error {
		object = `{"apiVersion": "networking.istio.io/v1", "metadata": {"name": "taker", "namespace": "` + ns + `"}, ` +
			strings.TrimPrefix(object, "{")
		out, err := c.command(t.Context(), "create", "--dry-run=server", "-f", c.file(t, object)).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%s: %w: %s", name, err, out)
		}
		return err
	}
	for name, object := range objects { // as in Istio
		if err := create(name, object); err != nil {
			t.Errorf("without tenants: %v", err)
		}
	}
	c.fairlead(t, append(slices.Clone(install), "--set", "values.configWatcher.multiTenant=true")...)
	defer c.fairlead(t, install...)
	for name, object := range objects {
		testkit.Eventually(t, patience, func() error { // Pods of before end
			if err := create(name, object); err == nil || !strings.Contains(err.Error(), "the mesh has tenants") {
				return fmt.Errorf("%s was let in, or refused for another reason: %w", name, err)
			}
			return nil
		})
		own := strings.ReplaceAll(object, `"*"`, `"."`)
		if err := create(name+" for the own namespace", own); err != nil {
			t.Error(err)
		}
	}
}
