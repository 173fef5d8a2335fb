package commands

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/kubeapi"
)

// twoContexts starts two API servers, which fill in tokens, and returns a kubeconfig with the contexts west and east.
func twoContexts(t *testing.T) (west, east *kubeapi.Server, kubeconfig string) {
	t.Helper()
	options := kubeapi.Options{Controllers: []string{"serviceaccount-token-controller"},
		Args: []string{"--disable-admission-plugins=ServiceAccount,MutatingAdmissionWebhook,ValidatingAdmissionWebhook"}}
	west, east = kubeapi.Start(t, options), kubeapi.Start(t, options)
	return west, east, contexts(t, map[string]string{"west": west.Kubeconfig, "east": east.Kubeconfig})
}

// contexts joins kubeconfigs, each as a context.
func contexts(t *testing.T, files map[string]string) string {
	t.Helper()
	all := clientcmdapi.NewConfig()
	for name, file := range files {
		one, err := clientcmd.LoadFromFile(file)
		if err != nil {
			t.Fatal(err)
		}
		at := one.Contexts[one.CurrentContext]
		all.Clusters[name], all.AuthInfos[name] = one.Clusters[at.Cluster], one.AuthInfos[at.AuthInfo]
		all.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	}
	path := filepath.Join(t.TempDir(), "contexts")
	testkit.NoError(t, clientcmd.WriteToFile(*all, path))
	return path
}

// ok runs fairlead, which must succeed.
func ok(t *testing.T, kubeconfig string, a ...string) (out, said string) {
	t.Helper()
	out, said, code := run(t, fairlead(t), kubeconfig, "", a...)
	if code != 0 {
		t.Fatalf("fairlead %v: exit code %d\n%s%s", a, code, out, said)
	}
	return out, said
}

// secretOf is the Secret of a cluster in a cluster.
func secretOf(t *testing.T, s *kubeapi.Server, name string) *corev1.Secret {
	t.Helper()
	secret, err := s.Client(t).CoreV1().Secrets("istio-system").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

// client uses a kubeconfig.
func client(t *testing.T, kubeconfig []byte) *kubernetes.Clientset {
	t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return testkit.Must(kubernetes.NewForConfig(config))(t)
}

// The output means what istioctl's means: kubectl applies either, and either reads.
func TestCreateRemoteSecretBesideIstioctl(t *testing.T) {
	_, east, kubeconfig := twoContexts(t)
	istioctl, manifests := istio(t)
	const account = "istio-reader-service-account"
	theirs, said, code := run(t, istioctl, kubeconfig, "", "create-remote-secret", "--context", "east", "--name", "east", "-d", manifests)
	if code != 0 {
		t.Fatalf("istioctl: %s", said)
	}
	ours, said := ok(t, kubeconfig, "create-remote-secret", "--context", "east", "--name", "east", "--service-account", account)
	if !strings.Contains(said, "--server") {
		t.Errorf("nothing says that a loopback address is of no use: %s", said)
	}
	meaning := func(text string) string {
		list := decode(t, text)
		if len(list) != 1 {
			t.Fatalf("%d objects in %s", len(list), text)
		}
		u := list[0]
		data, _, _ := unstructuredStrings(u.Object, "stringData")
		file, err := clientcmd.Load([]byte(data["east"]))
		if err != nil || len(data) != 1 {
			t.Fatalf("%v in %v", err, data)
		}
		at := file.Contexts[file.CurrentContext]
		cluster, user := file.Clusters[at.Cluster], file.AuthInfos[at.AuthInfo]
		return fmt.Sprint(u.GetKind(), u.GetAPIVersion(), u.GetNamespace(), u.GetName(), u.GetLabels(), u.GetAnnotations(), cluster.Server,
			cluster.TLSServerName, base64.StdEncoding.EncodeToString(cluster.CertificateAuthorityData), user.Token)
	}
	if a, b := meaning(ours), meaning(theirs); a != b {
		t.Errorf("ours   %s\ntheirs %s", a, b)
	}
	east.Apply(t, ours) // the administrator's kubectl
	if name := secretOf(t, east, "istio-remote-secret-east").Labels["istio/multiCluster"]; name != "true" {
		t.Errorf("label is %q", name)
	}
}

func unstructuredStrings(tree map[string]any, field string) (map[string]string, bool, error) {
	out := map[string]string{}
	fields, ok := tree[field].(map[string]any)
	for k, v := range fields {
		out[k], _ = v.(string)
	}
	return out, ok, nil
}

// From nothing to a rotated credential: the account and its rights are made, the Secret is written in place, beside
// other keys, and the earlier tokens end when asked.
func TestARemoteSecretIsMadeAndRotated(t *testing.T) {
	west, east, kubeconfig := twoContexts(t)
	west.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}")
	west.Apply(t, "{apiVersion: v1, kind: Secret, metadata: {name: older, namespace: istio-system, labels: {istio/multiCluster: 'true'}}, "+
		"stringData: {north: kept, east: old}}")
	out, _ := ok(t, kubeconfig, "create-remote-secret", "--context", "east", "--name", "east", "--to", "west")
	if !strings.Contains(out, "west: Secret istio-system/older names the cluster") {
		t.Errorf("says %s", out)
	}
	first := secretOf(t, west, "older")
	if string(first.Data["north"]) != "kept" {
		t.Errorf("other keys are %q", first.Data["north"])
	}
	before := client(t, first.Data["east"])
	for _, check := range []func(*kubernetes.Clientset) error{
		func(c *kubernetes.Clientset) error {
			_, err := c.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
			return err
		},
		func(c *kubernetes.Clientset) error {
			_, err := c.DiscoveryV1().EndpointSlices("").List(t.Context(), metav1.ListOptions{})
			return err
		},
	} {
		testkit.NoError(t, check(before))
	}
	if _, err := before.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("the account may read Secrets")
	}
	// The same again is the same; rotated, both tokens work; revoked, the new one alone.
	ok(t, kubeconfig, "create-remote-secret", "--context", "east", "--name", "east", "--to", "west")
	if again := secretOf(t, west, "older"); string(again.Data["east"]) != string(first.Data["east"]) {
		t.Error("without --rotate there is another token")
	}
	ok(t, kubeconfig, "create-remote-secret", "--context", "east", "--name", "east", "--rotate", "--to", "west")
	rotated := secretOf(t, west, "older")
	after := client(t, rotated.Data["east"])
	for name, c := range map[string]*kubernetes.Clientset{"before": before, "after": after} {
		if _, err := c.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err != nil || string(rotated.Data["east"]) == string(first.Data["east"]) {
			t.Errorf("token of %s: %v", name, err)
		}
	}
	out, _ = ok(t, kubeconfig, "create-remote-secret", "--context", "east", "--name", "east", "--rotate", "--revoke", "--to", "west")
	if strings.Count(out, "istio-remote-secret-token") != 3 {
		t.Errorf("says %s", out)
	}
	now := client(t, secretOf(t, west, "older").Data["east"])
	testkit.Eventually(t, testkit.Patience, func() error { // the API server caches tokens for seconds
		if _, err := after.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err == nil {
			return fmt.Errorf("a revoked token works")
		}
		return nil
	})
	_, err := now.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	testkit.NoError(t, err)

	for args, says := range map[string]string{
		"--name Bad_ID":                                                  "no id of a cluster",
		"--name east --revoke":                                           "--revoke needs --to",
		"--name east --to nowhere":                                       "--to nowhere",
		"--name east --auth-type plugin":                                 "--auth-type plugin",
		"--name east --type nothing":                                     "--type nothing",
		"--name east --server http://x":                                  "not https",
		"--name east --server east":                                      "no URL",
		"--name east --secret-name x --rotate":                           "exclude each other",
		"--name east --service-account x --create-service-account=false": "service account istio-system/x is not there",
	} {
		_, said, code := run(t, fairlead(t), kubeconfig, "",
			append([]string{"create-remote-secret", "--context", "east"}, strings.Fields(args)...)...)
		if code == 0 || !strings.Contains(said, says) {
			t.Errorf("%s: exit code %d, %s", args, code, said)
		}
	}
	// Who may not write there makes no token.
	plain := contexts(t, map[string]string{"west": west.User(t, "nobody"), "east": east.User(t, "nobody")})
	if _, said, code := run(t, fairlead(t), plain, "", "create-remote-secret", "--context", "east", "--name", "east"); code != 1 ||
		!strings.Contains(said, "ask for this right") {
		t.Errorf("without rights: exit code %d, %s", code, said)
	}
}

// row is one of `fairlead clusters check -o json`.
type row struct {
	Check, Verdict, Finding, Remedy string
	Clusters                        []string
}

// checks runs clusters check and returns its rows.
func checks(t *testing.T, kubeconfig string, code int) []row { return checksWith(t, kubeconfig, code) }

// checksWith is checks with further flags.
func checksWith(t *testing.T, kubeconfig string, code int, flags ...string) []row {
	t.Helper()
	out, said, got := run(t, fairlead(t), kubeconfig, "", append([]string{"clusters", "check", "--context", "west", "--context", "east", "-o",
		"json"}, flags...)...)
	if got != code {
		t.Fatalf("exit code %d, want %d\n%s%s", got, code, out, said)
	}
	var rows []row
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	for _, r := range rows {
		if (r.Verdict == "OK") != (r.Remedy == "") && r.Check != "service-ranges" {
			t.Errorf("%+v: a remedy belongs to what is not OK", r)
		}
	}
	return rows
}

// says asserts that a row of a check has a verdict and a part.
func says(t *testing.T, rows []row, check, verdict, part string) {
	t.Helper()
	if !slices.ContainsFunc(rows, func(r row) bool { return r.Check == check && r.Verdict == verdict && strings.Contains(r.Finding, part) }) {
		t.Errorf("no %s %s with %q in %+v", check, verdict, part, rows)
	}
}

// primary are the objects of a cluster with a control plane: network, id, root, range of Pods, port of Service
// shop/cart.
const primary = `
{apiVersion: v1, kind: Namespace, metadata: {name: istio-system, labels: {topology.istio.io/network: "%[1]s"}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: config-watcher, namespace: istio-system, labels: {app: config-watcher}}
spec:
  selector: {matchLabels: {app: config-watcher}}
  template:
    metadata: {labels: {app: config-watcher}}
    spec: {containers: [{name: config-watcher, image: x, args: ["--cluster-id=%[2]s"]}]}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: istio, namespace: istio-system}, data: {mesh: "trustDomain: %[6]s\nunknownField: {}\nserviceSettings: [{settings: {clusterLocal: true}, hosts: ['*.mine.svc.cluster.local']}]"}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: istio-ca-root-cert, namespace: istio-system}, data: {root-cert.pem: %[3]q}}
---
{apiVersion: v1, kind: Node, metadata: {name: n1}, spec: {podCIDR: %[4]s, podCIDRs: [%[4]s]}}
---
{apiVersion: v1, kind: Service, metadata: {name: cart, namespace: shop}, spec: {ports: [{name: %[5]s, port: 80}]}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: mine}}
---
{apiVersion: v1, kind: Service, metadata: {name: own, namespace: mine}, spec: {ports: [{name: http-%[2]s, port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: eastwest, namespace: istio-system, labels: {topology.istio.io/network: "%[1]s"}}, spec: {externalIPs: [203.0.113.7], ports: [{name: tls, port: 15443}]}}
`

// Two clusters that are one mesh, and each thing that can be wrong with them.
func TestClustersAreChecked(t *testing.T) {
	west, east, kubeconfig := twoContexts(t)
	roots := [2]string{string(testkit.PKI(t).RootPEM), string(testkit.PKI(t).RootPEM)}
	apply := func(s *kubeapi.Server, network, id, root, pods, port, trust string) {
		testkit.NoError(t, s.Client(t).CoreV1().Nodes().DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
		s.Apply(t, fmt.Sprintf(primary, network, id, root, pods, port, trust))
	}
	apply(west, "n1", "west", roots[0], "10.1.0.0/16", "http", "cluster.local")
	apply(east, "n2", "east", roots[0], "10.1.0.0/16", "http", "cluster.local")

	rows := checks(t, kubeconfig, 1)
	says(t, rows, "remote-secrets", "FAILED", "no Secret in west leads to east")
	says(t, rows, "remote-secrets", "FAILED", "no Secret in east leads to west")
	for _, a := range [][]string{{"east", "west"}, {"west", "east"}} {
		ok(t, kubeconfig, "create-remote-secret", "--context", a[0], "--name", a[0], "--to", a[1])
	}
	rows = checks(t, kubeconfig, 0)
	for check, part := range map[string]string{
		"api-server": "Kubernetes v", "cluster-id": "ids of their own, west and east", "trust-domain": "both are in cluster.local",
		"roots": "same roots", "network": "two networks, n1 and n2", "gateways": "203.0.113.7 port 15443",
		"remote-secrets": "west reads east by Secret istio-system/istio-remote-secret-east", "clock": "agree",
		"pod-ranges": "which two networks may", "services": "1 Services of one name",
	} {
		says(t, rows, check, "OK", part)
	}
	says(t, rows, "service-ranges", "WARNING", "198.19.0.0/16 and 198.19.0.0/16 overlap")
	if out, _ := ok(t, kubeconfig, "clusters", "check", "--context", "west", "--context", "east"); !strings.Contains(out, "VERDICT") {
		t.Errorf("the table is %s", out)
	}

	// One network whose Pods have the same addresses, one id twice, other roots, trust domain and ports.
	apply(east, "n1", "west", roots[1], "10.1.128.0/17", "tcp", "other.example")
	rows = checks(t, kubeconfig, 1)
	for check, part := range map[string]string{
		"cluster-id": "both have the id west", "trust-domain": "cluster.local and other.example", "roots": "they trust different roots",
		"network": "both are network \"n1\", and cannot be one", "pod-ranges": "10.1.0.0/16 and 10.1.128.0/17 overlap",
		"services": "port \"http\" (80) is not in east",
	} {
		says(t, rows, check, "FAILED", part)
	}
	// A root of both, as during a rotation; one network without a name; no gateway; another protocol.
	apply(east, "n2", "east", roots[1]+roots[0], "10.2.0.0/16", "http", "cluster.local")
	east.Apply(t, "{apiVersion: v1, kind: Service, metadata: {name: cart, namespace: shop}, "+
		"spec: {ports: [{name: http, port: 80, appProtocol: grpc}]}}")
	testkit.NoError(t, east.Client(t).CoreV1().Services("istio-system").Delete(t.Context(), "eastwest", metav1.DeleteOptions{}))
	rows = checks(t, kubeconfig, 1)
	says(t, rows, "roots", "WARNING", "not all roots are trusted by both")
	says(t, rows, "gateways", "FAILED", "no Service is the gateway of network n2")
	says(t, rows, "services", "FAILED", "the protocol of port \"http\" is http in west and grpc in east")
	apply(west, "", "west", roots[0], "10.1.0.0/16", "http", "cluster.local")
	says(t, checks(t, kubeconfig, 1), "network", "FAILED", "east is network n2, west has no name")
	apply(west, "n1", "west", roots[0], "10.1.0.0/16", "http", "cluster.local")

	// Credentials: without rights, revoked, of another cluster, twice, and nothing that a program would be run for.
	east.Apply(t, "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: fairlead-reader}, "+
		"rules: [{apiGroups: [''], resources: [pods, services, namespaces], verbs: [get, list, watch]}]}")
	testkit.Eventually(t, testkit.Patience, func() error {
		rows = checks(t, kubeconfig, 1)
		if !slices.ContainsFunc(rows, func(r row) bool { return r.Verdict == "FAILED" && strings.Contains(r.Finding, "lacks rights: ") }) {
			return fmt.Errorf("no missing right in %+v", rows)
		}
		return nil
	})
	says(t, rows, "remote-secrets", "FAILED", "lacks rights: list nodes, watch nodes, list endpointslices, watch endpointslices")
	secrets := west.Client(t).CoreV1().Secrets("istio-system")
	replace := func(f func(string) string) {
		s := secretOf(t, west, "istio-remote-secret-east")
		s.Data["east"] = []byte(f(string(s.Data["east"])))
		_, err := secrets.Update(t.Context(), s, metav1.UpdateOptions{})
		testkit.NoError(t, err)
	}
	ours := string(secretOf(t, west, "istio-remote-secret-east").Data["east"])
	token := ours[strings.Index(ours, "token: "):]
	replace(func(s string) string { return strings.ReplaceAll(s, token, "token: expired\n") })
	says(t, checks(t, kubeconfig, 1), "remote-secrets", "FAILED", "does not work at https://127.")
	marker := filepath.Join(t.TempDir(), "ran")
	replace(func(s string) string {
		return strings.ReplaceAll(s, "token: expired\n", "exec: {apiVersion: client.authentication.k8s.io/v1, command: touch, args: ["+marker+
			"], interactiveMode: Never}\n")
	})
	says(t, checks(t, kubeconfig, 1), "remote-secrets", "FAILED", "names a program")
	if found, err := filepath.Glob(marker); err != nil || len(found) > 0 {
		t.Error("a program of a Secret was run")
	}
	replace(func(string) string { return string(secretOf(t, east, "istio-remote-secret-west").Data["west"]) })
	says(t, checks(t, kubeconfig, 1), "remote-secrets", "FAILED", "says that it leads to east, and leads to another cluster")
	// An address that only clusters reach.
	ok(t, kubeconfig, "create-remote-secret", "--context", "east", "--name", "east", "--to", "west", "--server", "https://127.0.0.1:1")
	rows = checks(t, kubeconfig, 1)
	says(t, rows, "remote-secrets", "FAILED", "lacks rights: ")
	west.Apply(t, "{apiVersion: v1, kind: Secret, metadata: {name: zz, namespace: istio-system, labels: {istio/multiCluster: 'true'}}, "+
		"stringData: {east: x, west: x}}")
	rows = checks(t, kubeconfig, 1)
	says(t, rows, "remote-secrets", "FAILED", "name the same cluster, east; the older counts")
	says(t, rows, "remote-secrets", "FAILED", "names a cluster west, which is the id of this one")

	// Without rights nothing is called well; without an API server the other is checked.
	plain := contexts(t, map[string]string{"west": west.User(t, "nobody"), "east": east.Kubeconfig})
	rows = checks(t, plain, 1)
	for _, check := range []string{"cluster-id", "roots", "network", "remote-secrets", "services", "pod-ranges"} {
		says(t, rows, check, "UNKNOWN", "forbidden")
	}
	west.Kill()
	rows = checks(t, kubeconfig, 1)
	says(t, rows, "api-server", "FAILED", "does not answer")
	says(t, rows, "cluster-id", "OK", "it is east, and has a control plane")
	west.Resume(t)
}

// Type config is the Secret by which an external control plane reads a cluster's configuration.
func TestCreateTheSecretOfAConfigCluster(t *testing.T) {
	west, east, kubeconfig := twoContexts(t)
	command := []string{"create-remote-secret", "--type", "config", "--context", "east", "--name", "east"}
	if _, said, code := run(t, fairlead(t), kubeconfig, "", command...); code != 1 ||
		!strings.Contains(said, "service account istio-system/config-watcher is not there") {
		t.Errorf("without the account: exit code %d, %s", code, said)
	}
	east.ServiceAccount(t, "istio-system", "config-watcher")
	west.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}")
	var before string
	for _, more := range [][]string{nil, {"--rotate", "--revoke"}} {
		ok(t, kubeconfig, slices.Concat(command, []string{"--to", "west"}, more)...)
		secret := secretOf(t, west, "istio-kubeconfig")
		now := string(secret.Data["config"])
		if now == before || len(secret.Labels) > 0 {
			t.Errorf("%v: the same credential is %t, labels %v", more, now == before, secret.Labels)
		}
		before = now
		if _, err := client(t, secret.Data["config"]).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err == nil ||
			!strings.Contains(err.Error(), "system:serviceaccount:istio-system:config-watcher") {
			t.Errorf("%v: the credential is of somebody else: %v", more, err)
		}
	}
}
