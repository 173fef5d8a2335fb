package gateways

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/kubeapi"
	"fairlead.dev/tests/internal/process"
)

const (
	patience = testkit.Patience
	system   = "istio-system"
	apart    = "team-a"
)

var resources = map[string]schema.GroupVersionResource{
	"ServiceAccount":          {Version: "v1", Resource: "serviceaccounts"},
	"Deployment":              {Group: "apps", Version: "v1", Resource: "deployments"},
	"Service":                 {Version: "v1", Resource: "services"},
	"HorizontalPodAutoscaler": {Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers"},
	"PodDisruptionBudget":     {Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"},
	"Gateway":                 {Group: "gateway.networking.k8s.io", Version: "v1", Resource: "gateways"},
	"GatewayClass":            {Group: "gateway.networking.k8s.io", Version: "v1", Resource: "gatewayclasses"},
}

// made are the kinds that a Gateway has objects of.
var made = []string{"ServiceAccount", "Deployment", "Service", "HorizontalPodAutoscaler", "PodDisruptionBudget"}

// rig is an API server with the objects of an installation.
type rig struct {
	*kubeapi.Server
	t       *testing.T
	objects *dynamic.DynamicClient
	values  string
}

// newRig applies what `fairlead install` would, in a cluster with the Gateway API.
func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{Server: kubeapi.Start(t, kubeapi.Options{}), t: t}
	r.ApplyCRDs(t, kubeapi.GatewayAPICRDs(t, "standard"))
	r.Apply(t, r.fairlead("manifest", "generate", "--set", "profile=minimal"))
	r.classes()
	r.prepare()
	return r
}

// classes makes the GatewayClasses, as config-watcher does.
func (r *rig) classes() {
	r.t.Helper()
	for name, controller := range map[string]string{"istio": "istio.io/gateway-controller", "fairlead": "fairlead.dev/gateway-controller",
		"istio-remote": "istio.io/unmanaged-gateway"} {
		r.Apply(r.t, fmt.Sprintf("{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: %s}, "+
			"spec: {controllerName: %s}}", name, controller))
	}
}

func (r *rig) prepare() {
	r.t.Helper()
	var err error
	r.objects, err = dynamic.NewForConfig(r.Config)
	testkit.NoError(r.t, err)
	r.namespace(apart, nil)
	r.values = filepath.Join(r.t.TempDir(), "values.yaml")
	r.installed("")
}

// installed writes the values of the installation's ConfigMap, with images of this tag if it is not "", which the
// policy then allows.
func (r *rig) installed(tag string) {
	r.t.Helper()
	m, err := r.Client(r.t).CoreV1().ConfigMaps(system).Get(r.t.Context(), "fairlead-gateways", metav1.GetOptions{})
	testkit.NoError(r.t, err)
	text := m.Data["values.yaml"]
	if tag != "" {
		text = strings.ReplaceAll(text, "tag: dev", "tag: "+tag)
		policies := r.Client(r.t).AdmissionregistrationV1().ValidatingAdmissionPolicies()
		policy, err := policies.Get(r.t.Context(), "fairlead-gateways", metav1.GetOptions{})
		testkit.NoError(r.t, err)
		for i, v := range policy.Spec.Validations {
			policy.Spec.Validations[i].Expression = strings.ReplaceAll(v.Expression, "proxy:dev", "proxy:"+tag)
		}
		_, err = policies.Update(r.t.Context(), policy, metav1.UpdateOptions{})
		testkit.NoError(r.t, err)
	}
	testkit.WriteFile(r.t, r.values, []byte(text))
}

// fairlead runs the command and returns its output.
func (r *rig) fairlead(args ...string) string {
	r.t.Helper()
	return process.MustDo(
		r.t,
		exec.CommandContext(r.t.Context(), binaries.Built(r.t, "fairlead"), args...),
	) //nolint:gosec // the program under test
}

// deployer is a fairlead-gateways.
type deployer struct {
	*process.Process
	ops string
}

// start starts fairlead-gateways with the rights of the installation. It ends with the test.
func (r *rig) start(args ...string) *deployer {
	r.t.Helper()
	account := "gateways"
	if i := slices.Index(args, "--revision"); i >= 0 {
		account += "-" + args[i+1]
	}
	d := &deployer{ops: testkit.FreeAddress(r.t).String()}
	d.Process = process.Run(
		r.t,
		process.Program{Name: "fairlead-gateways", Path: binaries.Built(r.t, "fairlead-gateways"), Args: append([]string{
			"--kubeconfig", r.ServiceAccount(r.t, system, account), "--values-file", r.values, "--ops-address", d.ops, "--log-level", "debug",
			"--lease-duration", "3s",
		}, args...)},
	)
	testkit.Eventually(r.t, patience, func() error {
		if d.metric(r.t, "fairlead_gateways_leader") != 1 {
			return errors.New("it does not lead")
		}
		return nil
	})
	return d
}

// metric returns a sample, by the name with its labels; -1 while it is not there.
func (d *deployer) metric(t *testing.T, name string) float64 {
	t.Helper()
	resp, err := http.Get("http://" + d.ops + "/metrics")
	if err != nil {
		return -1
	}
	defer resp.Body.Close() //nolint:errcheck // a test
	body, err := io.ReadAll(resp.Body)
	testkit.NoError(t, err)
	for line := range strings.Lines(string(body)) {
		var v float64
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			_, err := fmt.Sscan(rest, &v)
			testkit.NoError(t, err)
			return v
		}
	}
	return -1
}

// namespace makes a namespace with labels.
func (r *rig) namespace(name string, labels map[string]string) {
	r.t.Helper()
	_, err := r.Client(r.t).CoreV1().Namespaces().Create(r.t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		testkit.NoError(r.t, err)
	}
}

// gateway is one in YAML, of class istio with a listener on port 80 unless spec says otherwise.
func gateway(namespace, name, meta, spec string) string {
	if spec == "" {
		spec = "{gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP}]}"
	}
	return fmt.Sprintf(
		"apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {namespace: %s, name: %q%s}\nspec: %s\n---\n",
		namespace,
		name,
		meta,
		spec,
	)
}

func configMap(namespace, name string, data map[string]string) string {
	out := fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {namespace: %s, name: %s}\ndata:\n", namespace, name)
	for key, text := range data {
		out += fmt.Sprintf("  %s: %q\n", key, text)
	}
	return out + "---\n"
}

// get reads an object; nil if it is not there.
func (r *rig) get(kind, namespace, name string) *unstructured.Unstructured {
	r.t.Helper()
	u, err := r.objects.Resource(resources[kind]).Namespace(namespace).Get(r.t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	testkit.NoError(r.t, err)
	return u
}

// into reads an object as a type of Kubernetes.
func (r *rig) into(kind, namespace, name string, typed any) {
	r.t.Helper()
	u := r.get(kind, namespace, name)
	if u == nil {
		r.t.Fatalf("there is no %s %s/%s", kind, namespace, name)
	}
	testkit.NoError(r.t, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, typed))
}

// has waits until exactly these objects of a name are there.
func (r *rig) has(namespace, name string, kinds ...string) {
	r.t.Helper()
	testkit.Eventually(r.t, patience, func() error {
		var wrong []string
		for _, kind := range made {
			if there := r.get(kind, namespace, name) != nil; there != slices.Contains(kinds, kind) {
				wrong = append(wrong, fmt.Sprintf("%s: %v", kind, there))
			}
		}
		if len(wrong) > 0 {
			return fmt.Errorf("%s/%s: there are not %v: %v", namespace, name, kinds, wrong)
		}
		return nil
	})
}

// event waits for an event of a Gateway with this text.
func (r *rig) event(namespace, gateway, reason, text string) {
	r.t.Helper()
	testkit.Eventually(r.t, patience, func() error {
		list, err := r.Client(r.t).CoreV1().Events(namespace).List(r.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var seen []string
		for _, e := range list.Items {
			if e.InvolvedObject.Kind == "Gateway" && e.InvolvedObject.Name == gateway {
				if e.Reason == reason && strings.Contains(e.Message, text) {
					return nil
				}
				seen = append(seen, e.Reason+": "+e.Message)
			}
		}
		return fmt.Errorf("%s/%s: no event %s with %q among %q", namespace, gateway, reason, text, seen)
	})
}

// ports of a Service, "80/TCP".
func (r *rig) ports(namespace, name string) (out []string) {
	r.t.Helper()
	var s corev1.Service
	r.into("Service", namespace, name, &s)
	for _, p := range s.Spec.Ports {
		out = append(out, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
	}
	slices.Sort(out)
	return out
}

// hasPorts waits until a Service has exactly these ports.
func (r *rig) hasPorts(namespace, name string, want ...string) {
	r.t.Helper()
	testkit.Eventually(r.t, patience, func() error {
		if got := r.ports(namespace, name); !slices.Equal(got, want) {
			return fmt.Errorf("Service %s/%s has ports %v, want %v", namespace, name, got, want)
		}
		return nil
	})
}

// remove deletes an object.
func (r *rig) remove(kind, namespace, name string) {
	r.t.Helper()
	testkit.NoError(r.t, r.objects.Resource(resources[kind]).Namespace(namespace).Delete(r.t.Context(), name, metav1.DeleteOptions{}))
}
