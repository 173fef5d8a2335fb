package mesh

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	appsv1 "k8s.io/api/apps/v1"
	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/controlplane"
	"fairlead.dev/tests/internal/flood"
)

// TestAttacks is what somebody inside the cluster tries against an installed mesh: with tokens of its services, with
// those of accounts that are gone, with the role edit in one namespace, and with nothing but a network.
func TestAttacks(t *testing.T) {
	c := connect(t)
	n := cniNode{c, os.Getenv("CLUSTER_CNI")}
	if n.dir == "" {
		t.Skip("CLUSTER_CNI names no directory with the node's CNI plugins: run `make attacks-cluster`")
	}
	before, plugins := c.objects(t), n.chain(t)
	defer func() {
		c.fairlead(t, "uninstall", "--purge", "--with-contents", "-y")
		testkit.Eventually(t, patience, func() error { return different(before, c.objects(t)) })
	}()
	install := slices.Concat([]string{"install", "-y", "--set", "profile=minimal"}, n.install(), images)
	c.fairlead(t, install...)
	n.agents(t, 1)
	for _, attack := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"a stolen token of a service changes no webhook configuration and takes no other account", c.stolenTokens},
		{"the ca gives nothing for credentials of accounts and Pods that are gone", c.deadAccounts},
		{"Secrets of a tenant are no inventories", func(t *testing.T) { c.forgedInventory(t, install) }},
		{"floods of reviews hold up no Pod and no write", c.floods},
		{"the objects of one namespace take a part of the memory and no more", c.hoard},
		{"a namespace that enforces the restricted standard takes injected Pods", c.restricted},
		{"a Pod with a pipe for its resolv.conf holds no repair up", func(t *testing.T) { n.trap(t, len(plugins)) }},
		{"an IstioOperator gives its writer nothing but a mesh", c.istioOperators},
		{"who reaches whom is what the network policies say", c.reach},
		{"in a mesh with tenants objects take nothing of another namespace", func(t *testing.T) { c.tenants(t, install) }},
	} {
		t.Run(attack.name, func(t *testing.T) {
			t.Cleanup(func() {
				if t.Failed() {
					c.describe(t, "istio-system")
				}
			})
			held := c.memory(t, "istio-system", "")
			agent := c.memory(t, system, "app=cni")
			attack.run(t)
			held()
			agent()
		})
	}
}

// token asks for a token of an account, as its Pods get one.
func (c *cluster) token(t *testing.T, namespace, account string, request authv1.TokenRequestSpec) string {
	t.Helper()
	answer, err := c.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), account, &authv1.TokenRequest{Spec: request},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return answer.Status.Token
}

func (c *cluster) stolenTokens(t *testing.T) {
	pods, err := c.CoreV1().Pods("istio-system").List(t.Context(), metav1.ListOptions{LabelSelector: "app=keeper"})
	if err != nil || len(pods.Items) == 0 {
		t.Fatalf("%d keepers, %v", len(pods.Items), err)
	}
	keeper, node := pods.Items[0].Name, pods.Items[0].Spec.NodeName
	for _, of := range []types.NamespacedName{
		{Namespace: "istio-system", Name: "config-watcher"}, {Namespace: "istio-system", Name: "xds-server"},
		{Namespace: "istio-system", Name: "injector"}, {Namespace: "istio-system", Name: "gateways"},
		{Namespace: "istio-system", Name: "ca"}, {Namespace: "istio-system", Name: "default"}, {Namespace: system, Name: "fairlead-cni"},
	} {
		account := of.Name
		config := rest.AnonymousClientConfig(c.config)
		config.BearerToken = c.token(t, of.Namespace, account, authv1.TokenRequestSpec{})
		thief, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		ctx := t.Context()
		widen := []byte(`[{"op":"replace","path":"/webhooks/0/rules","value":[{"apiGroups":["*"],"apiVersions":["*"],"operations":["*"],"resources":["*/*"]}]}]`)
		for what, try := range map[string]func() error{
			"widens the injector's webhooks": func() error {
				_, err := thief.AdmissionregistrationV1().MutatingWebhookConfigurations().Patch(ctx, "istio-sidecar-injector", types.JSONPatchType,
					widen, metav1.PatchOptions{})
				return err
			},
			"widens the validator's webhook": func() error {
				_, err := thief.AdmissionregistrationV1().ValidatingWebhookConfigurations().Patch(ctx, "fairlead-validator", types.JSONPatchType, widen,
					metav1.PatchOptions{})
				return err
			},
			"takes the keeper's token": func() error {
				_, err := thief.CoreV1().ServiceAccounts("istio-system").CreateToken(ctx, "keeper", &authv1.TokenRequest{}, metav1.CreateOptions{})
				return err
			},
			"makes a Pod in istio-system": func() error {
				_, err := thief.CoreV1().Pods("istio-system").Create(ctx, &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Name: "thief"},
					Spec:       corev1.PodSpec{ServiceAccountName: "keeper", Containers: []corev1.Container{{Name: "a", Image: "a"}}},
				}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				return err
			},
			"runs any image as the keeper by a Deployment": func() error {
				_, err := thief.AppsV1().Deployments("istio-system").Create(ctx, asIfOfAGateway("keeper", "a"),
					metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				return err
			},
			"lists the Secrets of a namespace that needs no right": func() error {
				_, err := thief.CoreV1().Secrets("kube-system").List(ctx, metav1.ListOptions{})
				return err
			},
			"adds a container to a Pod": func() error {
				_, err := thief.CoreV1().Pods("istio-system").Patch(ctx, keeper, types.StrategicMergePatchType,
					[]byte(`{"spec":{"ephemeralContainers":[{"name":"thief","image":"a","targetContainerName":"keeper"}]}}`), metav1.PatchOptions{},
					"ephemeralcontainers")
				return err
			},
			"runs a command in a Pod": func() error {
				return thief.CoreV1().RESTClient().Post().Namespace("istio-system").Resource("pods").Name(keeper).SubResource("exec").Param("command",
					"id").Do(ctx).Error()
			},
			"reaches a kubelet": func() error {
				return thief.CoreV1().RESTClient().Get().Resource("nodes").Name(node).SubResource("proxy").Suffix("pods").Do(ctx).Error()
			},
			"makes its account an administrator's": func() error {
				_, err := thief.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
					ObjectMeta: metav1.ObjectMeta{Name: "thief"},
					RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
					Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: of.Namespace, Name: account}},
				}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				return err
			},
			"acts as an administrator": func() error {
				as := rest.CopyConfig(config)
				as.Impersonate = rest.ImpersonationConfig{UserName: "admin", Groups: []string{"system:masters"}}
				client, err := kubernetes.NewForConfig(as)
				if err != nil {
					return err
				}
				_, err = client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
				return err
			},
		} {
			err := try()
			byPolicy := account == "gateways" && apierrors.IsInvalid(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy")
			if !apierrors.IsForbidden(err) && !byPolicy {
				t.Errorf("%s with its token %s: %v", account, what, err)
			}
		}
	}
}

// asIfOfAGateway is a Deployment that says that a Gateway owns it.
func asIfOfAGateway(account, image string) *appsv1.Deployment {
	labels := map[string]string{"gateway.istio.io/managed": "istio.io-gateway-controller", "app": "thief"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "thief", Labels: labels, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "gateway.networking.k8s.io/v1", Kind: "Gateway", Name: "thief", UID: "thief",
		}}},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec:       corev1.PodSpec{ServiceAccountName: account, Containers: []corev1.Container{{Name: "a", Image: image}}},
		}},
	}
}

// certificate asks the ca for a certificate, and returns the reason of a refusal.
func (c *cluster) certificate(t *testing.T, token string) string {
	t.Helper()
	service, err := c.CoreV1().Services("istio-system").Get(t.Context(), "ca", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	request, err := controlplane.NewRequest()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(net.JoinHostPort(service.Spec.ClusterIP, "15012"),
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}))) //nolint:gosec // an attacker
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // a test
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token), patience)
	defer cancel()
	_, err = request.Send(ctx, conn, 0)
	if err == nil {
		return "issued"
	}
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return status.Convert(err).Message()
}

func (c *cluster) deadAccounts(t *testing.T) {
	const ns = "tenant-dead"
	ctx := t.Context()
	c.namespace(t, ns)
	ofCA := func(bound *authv1.BoundObjectReference, seconds int64) authv1.TokenRequestSpec {
		return authv1.TokenRequestSpec{Audiences: []string{"istio-ca"}, BoundObjectRef: bound, ExpirationSeconds: &seconds}
	}
	accounts, pods := c.CoreV1().ServiceAccounts(ns), c.CoreV1().Pods(ns)
	account := func(name string) {
		t.Helper()
		if _, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	gets := func(what, token, want string) {
		t.Helper()
		testkit.Eventually(t, 5*time.Second, func() error { // what a watch tells takes a moment
			if got := c.certificate(t, token); got != want && !strings.Contains(got, want) {
				return fmt.Errorf("%s gets %q, want %q", what, got, want)
			}
			return nil
		})
	}
	account("web")
	pod, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-0"},
		Spec:       corev1.PodSpec{ServiceAccountName: "web", Containers: []corev1.Container{{Name: "a", Image: "fairlead/echo:dev"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	live := c.token(t, ns, "web", ofCA(nil, 3600))
	ofPod := c.token(t, ns, "web", ofCA(&authv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}, 3600))
	gets("a token of an account", live, "issued")
	gets("a token of a Pod", ofPod, "issued")
	gets("a token of a year", c.token(t, ns, "web", ofCA(nil, 8760*3600)), "longer than 24h0m0s")

	now := int64(0)
	if err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	gets("a token of a Pod that is gone", ofPod, "pod_gone")
	c.kubectl(t, "create", "-f", c.file(t,
		`{"apiVersion": "fairlead.dev/v1", "kind": "IdentityBan", "metadata": {"name": "tenant-dead-web"}, "spec": {"identity": "spiffe://cluster.local/ns/tenant-dead/sa/web", "reason": "stolen"}}`))
	gets("a banned identity", live, "banned")
	c.kubectl(t, "delete", "identityban", "tenant-dead-web")
	gets("an identity whose ban is lifted", live, "issued")
	if err := accounts.Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	gets("a token of an account that is gone", live, "account_gone")
	account("web")
	gets("a token of an account that another one has the name of", live, "account_replaced")
	gets("the other account's", c.token(t, ns, "web", ofCA(nil, 3600)), "issued")
}

func (c *cluster) forgedInventory(t *testing.T, install []string) {
	const ns = "tenant-forger"
	c.namespace(t, ns)
	for revision, data := range map[string]map[string][]byte{
		"garbage": {"record": []byte("x"), "sum": []byte("x"), "chunks": []byte("1")},
		"default": {"record": []byte("\x1b[2J"), "sum": []byte("x"), "chunks": []byte("9")},
	} {
		_, err := c.CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Name:   "fairlead-installation-" + revision,
				Labels: map[string]string{"install.fairlead.dev/inventory": "head", "install.fairlead.dev/revision": revision},
			},
			Type: "install.fairlead.dev/inventory", Data: data,
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	c.fairlead(t, install...)
	c.fairlead(t, "verify-install")
	if out := c.fairlead(t, "uninstall", "--revision", "default", "--dry-run"); strings.Contains(out, "\x1b") ||
		!strings.Contains(out, "Deployment istio-system/ca") {
		t.Errorf("uninstall --dry-run: %q", out)
	}
}

// attacker is an address of nobody's, which the node gets for the time of an attack: a Pod's would do as well, but not
// the node's own, from which the API server calls.
const attacker = "192.0.2.66"

func (c *cluster) floods(t *testing.T) {
	if out, err := exec.CommandContext(t.Context(), "ip", "address", "add", attacker+"/32", "dev", "lo").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("ip", "address", "del", attacker+"/32", "dev", "lo").Run() })
	const ns = flood.Victim
	c.injectedNamespace(t, ns, "istio-injection=enabled")
	ctx := t.Context()
	makePod := func() error {
		made, err := c.CoreV1().Pods(ns).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "app"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "fairlead/echo:dev"}}},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && proxyOf(*made) == nil {
			err = fmt.Errorf("the Pod has no sidecar")
		}
		return err
	}
	rightful := append(c.writes(t, ns), makePod)
	for _, f := range []struct {
		name, service, path string
		body                []byte
	}{
		{"dense VirtualServices", "config-watcher", "/validate", flood.Matches(190_000)},
		{"VirtualServices denser than any", "config-watcher", "/validate", flood.Matches(1_000_000)},
		{"large Pods", "injector", "/inject", flood.Variables(1000, 2200)},
		{"dense Pods", "injector", "/inject", flood.Containers(49_000)},
		{"Pods denser than any", "injector", "/inject", flood.Containers(750_000)},
	} {
		t.Run(f.name, func(t *testing.T) {
			for _, call := range rightful {
				testkit.Eventually(t, patience, call)
			}
			pods, err := c.CoreV1().Pods("istio-system").List(ctx, metav1.ListOptions{LabelSelector: "app=" + f.service})
			if err != nil || len(pods.Items) == 0 {
				t.Fatalf("%d Pods of %s, %v", len(pods.Items), f.service, err)
			}
			var stops []func() map[int]int
			for _, p := range pods.Items {
				stops = append(stops, flood.Attack{URL: "https://" + net.JoinHostPort(p.Status.PodIP, "15017") + f.path, Body: f.body, Connections: 32,
					From: net.ParseIP(attacker)}.Start(t))
			}
			flood.Rightful(t, 8*time.Second, rightful...)
			for _, stop := range stops {
				t.Logf("the attacker was answered %v", stop())
			}
		})
	}
}

// specs are objects of every kind that config-watcher reviews, by group and kind.
var specs = map[string]string{
	"networking.istio.io VirtualService":      `{"hosts": ["a"], "http": [{"route": [{"destination": {"host": "a"}}]}]}`,
	"networking.istio.io DestinationRule":     `{"host": "a", "trafficPolicy": {"connectionPool": {"tcp": {"maxConnections": 9}}}}`,
	"networking.istio.io Gateway":             `{"selector": {"istio": "a"}, "servers": [{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["a.example.com"]}]}`,
	"networking.istio.io ServiceEntry":        `{"hosts": ["a.example.com"], "ports": [{"number": 80, "name": "http", "protocol": "HTTP"}], "resolution": "DNS"}`,
	"networking.istio.io WorkloadEntry":       `{"address": "192.0.2.1", "labels": {"app": "a"}}`,
	"networking.istio.io WorkloadGroup":       `{"template": {"serviceAccount": "a"}}`,
	"networking.istio.io Sidecar":             `{"egress": [{"hosts": ["./*"]}]}`,
	"networking.istio.io EnvoyFilter":         `{"configPatches": [{"applyTo": "CLUSTER", "match": {"context": "SIDECAR_OUTBOUND"}, "patch": {"operation": "MERGE", "value": {"connect_timeout": "5s"}}}]}`,
	"networking.istio.io ProxyConfig":         `{"concurrency": 1}`,
	"security.istio.io PeerAuthentication":    `{"mtls": {"mode": "STRICT"}}`,
	"security.istio.io AuthorizationPolicy":   `{"rules": [{}]}`,
	"security.istio.io RequestAuthentication": `{"jwtRules": [{"issuer": "a"}]}`,
	"telemetry.istio.io Telemetry":            `{"accessLogging": [{"providers": [{"name": "envoy"}]}]}`,
	"extensions.istio.io WasmPlugin":          `{"url": "oci://example.com/a:1"}`,
	"extensions.istio.io TrafficExtension":    `{"wasm": {"url": "oci://example.com/a:1"}}`,
	"fairlead.dev IdentityBan":                `{"identity": "spiffe://cluster.local/ns/a/sa/a"}`,
}

// writes are the creations of an object of each kind in a namespace, without effect.
func (c *cluster) writes(t *testing.T, namespace string) (calls []func() error) {
	t.Helper()
	defined := c.kubectl(t, "get", "customresourcedefinitions", "-o",
		`jsonpath={range .items[*]}{.spec.group} {.spec.names.kind} {.spec.scope} {.spec.versions[?(@.storage==true)].name}{"\n"}{end}`)
	for line := range strings.Lines(defined) {
		f := strings.Fields(line)
		if len(f) != 4 || !strings.HasSuffix(f[0], ".istio.io") && f[0] != "fairlead.dev" || f[0] == "install.istio.io" {
			continue
		}
		spec := specs[f[0]+" "+f[1]]
		if spec == "" {
			t.Errorf("no object of %s %s is written during the attack", f[0], f[1])
			continue
		}
		metadata := map[string]string{"name": "a"}
		if f[2] == "Namespaced" {
			metadata["namespace"] = namespace
		}
		text, err := json.Marshal(map[string]any{"apiVersion": f[0] + "/" + f[3], "kind": f[1], "metadata": metadata,
			"spec": json.RawMessage(spec)})
		if err != nil {
			t.Fatal(err)
		}
		path := c.file(t, string(text))
		calls = append(calls, func() error {
			out, err := c.command(t.Context(), "create", "--dry-run=server", "-f", path).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
	}
	if len(calls) < len(specs) {
		t.Errorf("%d of %d kinds are written", len(calls), len(specs))
	}
	return calls
}
