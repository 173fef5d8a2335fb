package injector

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/kubeapi"
	"fairlead.dev/tests/internal/process"
)

const (
	patience = testkit.Patience
	system   = "istio-system"
	hookName = "istio-sidecar-injector"
)

// rig is an API server with the objects of an installation, and the injector that it calls.
type rig struct {
	*kubeapi.Server
	t            *testing.T
	ca           *testkit.CA
	address, ops string
	roots        string
	args         []string
	// tags are the webhooks of tags that the keeper may keep.
	tags            []string
	process, keeper *process.Process
}

// newRig applies what `fairlead install` would, and prepares an injector with the rights of the installation, whose
// certificate is for the address that the API server calls.
func newRig(t *testing.T, set ...string) *rig {
	t.Helper()
	r := &rig{
		Server: kubeapi.Start(t, kubeapi.Options{}), t: t, ca: testkit.PKI(t), address: testkit.FreeAddress(t).String(),
		ops: testkit.FreeAddress(t).String(),
	}
	args := []string{"manifest", "generate", "--set", "profile=minimal", "--set", "values.sidecarInjectorWebhook.injectionURL=https://" +
		r.address + "/inject/cluster/c1"}
	for _, s := range set {
		args = append(args, "--set", s)
		if _, tag, ok := strings.Cut(s, "values.injector.tags[0]="); ok {
			r.tags = []string{"--tags", "istio-revision-tag-" + tag}
		}
	}
	objects := r.fairlead(args...)
	r.Apply(t, objects)

	dir := t.TempDir()
	state := filepath.Join(dir, "state")
	r.ca.WriteSVID(filepath.Join(state, "svid", svid.CacheFile), system, "injector", testkit.On(netip.MustParseAddrPort(r.address).Addr()))
	r.roots = r.ca.WriteRoot(dir)
	r.args = []string{
		"--webhook-address", r.address, "--ops-address", r.ops, "--webhook-configuration", hookName, "--kubeconfig",
		r.ServiceAccount(t, system, "injector"),
		"--trust-domain", testkit.TrustDomain, "--root-cert-file", r.roots, "--state-dir", state, "--ca-address", "127.0.0.1:1",
		"--ca-token-file", r.roots,
	}
	return r
}

// fairlead runs the command and returns its output.
func (r *rig) fairlead(args ...string) string {
	r.t.Helper()
	return process.MustDo(r.t, exec.CommandContext(r.t.Context(), binaries.Built(r.t, "fairlead"), args...)) //nolint:gosec // the program under test
}

// start starts the injector, and the keeper that writes its bundle if none runs. Both end with the test. It waits until
// the injector is ready.
func (r *rig) start() {
	r.t.Helper()
	if r.keeper == nil {
		r.keeper = kubeapi.Keeper(r.t, r.ServiceAccount(r.t, system, "keeper"), r.roots,
			append(r.tags, "--injection", hookName, "--validation", "fairlead-validator")...)
	}
	r.process = process.Run(r.t, process.Program{Name: "fairlead-injector", Path: binaries.Built(r.t, "fairlead-injector"), Args: r.args})
	testkit.Eventually(r.t, patience, func() error {
		code, body, err := r.get("/readyz")
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("/readyz answers %d: %s", code, body)
		}
		return err
	})
}

// stop ends the injector as Kubernetes does.
func (r *rig) stop() {
	r.t.Helper()
	testkit.NoError(r.t, r.process.Stop(patience))
}

// get asks the HTTP port.
func (r *rig) get(path string) (code int, body string, err error) {
	resp, err := http.Get("http://" + r.ops + path)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close() //nolint:errcheck // a test
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// metric returns a sample, by the name with its labels.
func (r *rig) metric(name string) float64 {
	r.t.Helper()
	_, body, err := r.get("/metrics")
	if err != nil {
		r.t.Fatal(err)
	}
	for line := range strings.Lines(body) {
		var v float64
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			if _, err := fmt.Sscan(rest, &v); err != nil {
				r.t.Fatal(err)
			}
			return v
		}
	}
	r.t.Fatalf("no metric %s", name)
	return 0
}

// namespace makes a namespace with labels.
func (r *rig) namespace(name string, labels map[string]string) {
	r.t.Helper()
	_, err := r.Client(r.t).CoreV1().Namespaces().Create(r.t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
}

// pod is one of an application.
func pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}, Annotations: map[string]string{}},
		Spec:       corev1.PodSpec{ServiceAccountName: "default", Containers: []corev1.Container{{Name: "app", Image: "app"}}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func label(name, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels[name] = value }
}

func annotation(name, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations[name] = value }
}

// create makes a Pod and returns it as it is stored.
func (r *rig) create(namespace string, p *corev1.Pod) (*corev1.Pod, error) {
	return r.Client(r.t).CoreV1().Pods(namespace).Create(r.t.Context(), p, metav1.CreateOptions{})
}

// dryRun asks what a Pod would become.
func (r *rig) dryRun(namespace string, p *corev1.Pod) (*corev1.Pod, error) {
	return r.Client(r.t).CoreV1().Pods(namespace).Create(r.t.Context(), p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}

// proxy is the sidecar of a Pod; nil without one.
func proxy(p *corev1.Pod) *corev1.Container {
	for _, list := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == "istio-proxy" {
				return &list[i]
			}
		}
	}
	return nil
}

// env is a variable of a container.
func env(c *corev1.Container, name string) string {
	for _, v := range c.Env {
		if v.Name == name {
			return v.Value
		}
	}
	return ""
}

// injects waits until a new Pod gets a sidecar, and returns that.
func (r *rig) injects(namespace string, p *corev1.Pod) *corev1.Container {
	r.t.Helper()
	var found *corev1.Container
	testkit.Eventually(r.t, patience, func() error {
		got, err := r.dryRun(namespace, p)
		if err != nil {
			return err
		}
		if found = proxy(got); found == nil {
			return errors.New("the Pod has no sidecar")
		}
		return nil
	})
	return found
}

// set changes one key of a ConfigMap of the control plane.
func (r *rig) set(name, key string, change func(string) string) {
	r.t.Helper()
	client := r.Client(r.t).CoreV1().ConfigMaps(system)
	found, err := client.Get(r.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	before := found.Data[key]
	found.Data[key] = change(before)
	if found.Data[key] == before {
		r.t.Fatalf("ConfigMap %s: %s stays as it is", name, key)
	}
	if _, err := client.Update(r.t.Context(), found, metav1.UpdateOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

// bundles waits until all webhooks of an object have a bundle.
func (r *rig) bundles(name string, want []byte) {
	r.t.Helper()
	testkit.Eventually(r.t, patience, func() error {
		found, err := r.Client(r.t).AdmissionregistrationV1().MutatingWebhookConfigurations().Get(r.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, w := range found.Webhooks {
			if !bytes.Equal(w.ClientConfig.CABundle, want) {
				return fmt.Errorf("webhook %s has a caBundle of %d bytes, want %d", w.Name, len(w.ClientConfig.CABundle), len(want))
			}
		}
		return nil
	})
}

// patchHook changes the webhooks of an object.
func (r *rig) patchHook(name, patch string) {
	r.t.Helper()
	if _, err := r.Client(r.t).AdmissionregistrationV1().MutatingWebhookConfigurations().Patch(r.t.Context(), name, types.JSONPatchType,
		[]byte(patch), metav1.PatchOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) patchNamespace(name, patch string) {
	r.t.Helper()
	if _, err := r.Client(r.t).CoreV1().Namespaces().Patch(r.t.Context(), name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{}); err != nil {
		r.t.Fatal(err)
	}
}
