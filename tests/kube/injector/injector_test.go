package injector

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/process"
)

// TestLabelsDecide holds which Pods get a sidecar, by the webhooks and the rights of an installation.
func TestLabelsDecide(t *testing.T) {
	r := newRig(t, "values.injector.tags[0]=prod")
	r.namespace("labelled", map[string]string{"istio-injection": "enabled"})
	r.namespace("revision", map[string]string{"istio.io/rev": "default"})
	r.namespace("other-revision", map[string]string{"istio.io/rev": "canary"})
	r.namespace("disabled", map[string]string{"istio-injection": "disabled"})
	r.namespace("plain", nil)
	r.namespace("tagged", map[string]string{"istio.io/rev": "prod"})
	early := pod("early")
	if _, err := r.create("plain", early); err != nil {
		t.Fatalf("a Pod that asks for no sidecar, before there is an injector: %v", err)
	}
	// Nobody serves yet: a Pod without its sidecar would be outside of the mesh unnoticed.
	if _, err := r.create("labelled", pod("refused")); err == nil || !strings.Contains(err.Error(), "namespace.sidecar-injector.istio.io") {
		t.Fatalf("a Pod that asks for a sidecar, before there is an injector: %v", err)
	}
	r.start()
	roots, err := os.ReadFile(r.roots)
	if err != nil {
		t.Fatal(err)
	}
	r.bundles(hookName, roots)
	got := r.injects("labelled", pod("first"))
	if env(got, "ISTIO_META_CLUSTER_ID") != "c1" || got.RestartPolicy == nil || *got.RestartPolicy != corev1.ContainerRestartPolicyAlways {
		t.Errorf("the sidecar is %+v", got)
	}
	for name, c := range map[string]struct {
		namespace string
		pod       *corev1.Pod
		want      bool
	}{
		"namespace labelled istio-injection=enabled":             {"labelled", pod("a"), true},
		"namespace labelled istio.io/rev=default":                {"revision", pod("a"), true},
		"namespace labelled istio-injection=disabled":            {"disabled", pod("a"), false},
		"namespace of another revision":                          {"other-revision", pod("a"), false},
		"namespace without a label":                              {"plain", pod("a"), false},
		"Pod labelled sidecar.istio.io/inject=true":              {"plain", pod("a", label("sidecar.istio.io/inject", "true")), true},
		"Pod labelled istio.io/rev=default":                      {"plain", pod("a", label("istio.io/rev", "default")), true},
		"Pod labelled sidecar.istio.io/inject=true, ns disabled": {"disabled", pod("a", label("sidecar.istio.io/inject", "true")), false},
		"Pod labelled sidecar.istio.io/inject=false":             {"labelled", pod("a", label("sidecar.istio.io/inject", "false")), false},
		"Pod annotated sidecar.istio.io/inject=false":            {"labelled", pod("a", annotation("sidecar.istio.io/inject", "false")), false},
		"Pod in the host's network": {"labelled", pod("a", func(p *corev1.Pod) { p.Spec.HostNetwork = true }),
			false},
		"Pod of kube-system with the label": {"kube-system", pod("a", label("sidecar.istio.io/inject", "true")), false},
	} {
		stored, err := r.dryRun(c.namespace, c.pod)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if has := proxy(stored) != nil; has != c.want {
			t.Errorf("%s: sidecar %v, want %v", name, has, c.want)
		}
	}
	if n := r.metric(`fairlead_injector_pods_total{result="skipped"}`); n < 2 {
		t.Errorf("%v Pods were skipped", n)
	}

	// A tag leads to the same injector, which keeps the tag's bundle too.
	r.fairlead("tag", "set", "prod", "--revision", "default", "--kubeconfig", r.Kubeconfig)
	r.injects("tagged", pod("a"))
	more := slices.Concat(roots, testkit.PKI(t).RootPEM)
	if err := os.WriteFile(r.roots, more, 0o600); err != nil {
		t.Fatal(err)
	}
	r.bundles(hookName, more)
	r.bundles("istio-revision-tag-prod", more)
	// Somebody takes the bundle away: it comes back.
	r.patchHook(hookName, `[{"op":"remove","path":"/webhooks/0/clientConfig/caBundle"}]`)
	r.bundles(hookName, more)
	r.fairlead("tag", "remove", "prod", "-y", "--kubeconfig", r.Kubeconfig)
	if stored, err := r.dryRun("tagged", pod("a")); err != nil || proxy(stored) != nil {
		t.Errorf("without the tag: %v, sidecar %v", err, stored != nil && proxy(stored) != nil)
	}

	// What runs goes on, and what is made is refused, while the injector is away.
	if _, err := r.create("labelled", pod("stored")); err != nil {
		t.Fatal(err)
	}
	r.stop()
	if _, err := r.create("labelled", pod("later")); !apierrors.IsInternalError(err) ||
		!strings.Contains(err.Error(), "sidecar-injector.istio.io") {
		t.Errorf("without the injector: %v", err)
	}
	if _, err := r.create("plain", pod("later")); err != nil {
		t.Errorf("without the injector, a Pod that asks for no sidecar: %v", err)
	}
	r.start()
	r.injects("labelled", pod("later"))

	// Pods that were made before their namespace asked for sidecars lack them, and analyze says so.
	r.patchNamespace("plain", `{"metadata":{"labels":{"istio-injection":"enabled"}}}`)
	a := process.MustAsk(t, exec.CommandContext(t.Context(), binaries.Built(t, "fairlead"), "analyze", "--kube", "--kubeconfig",
		r.Kubeconfig, "-n", "plain")) //nolint:gosec // the program under test
	if said := a.Out + a.Said; !strings.Contains(said, "PodWithoutSidecar") || !strings.Contains(said, "early") ||
		strings.Contains(said, "Pod stored") {
		t.Errorf("fairlead analyze: %s", said)
	}
}

// TestConfigurationIsFollowed holds that changes take effect without a restart, and that a broken one changes nothing.
func TestConfigurationIsFollowed(t *testing.T) {
	r := newRig(t)
	r.namespace("shop", map[string]string{"istio-injection": "enabled"})
	r.start()
	r.injects("shop", pod("a"))
	until := func(what string, p *corev1.Pod, ok func(*corev1.Pod) bool) {
		t.Helper()
		testkit.Eventually(t, patience, func() error {
			got, err := r.dryRun("shop", p)
			if err == nil && !ok(got) {
				err = fmt.Errorf("not %s", what)
			}
			return err
		})
	}
	r.set(hookName, "config", func(s string) string {
		return strings.Replace(s, "injectedAnnotations: {}", "", 1) + "\ninjectedAnnotations: {example.com/a: b}\n"
	})
	until("annotated", pod("a"), func(p *corev1.Pod) bool { return p.Annotations["example.com/a"] == "b" })
	r.set(hookName, "values", func(s string) string { return strings.Replace(s, `"logLevel": "warning"`, `"logLevel": "trace"`, 1) })
	until("at level trace", pod("a"), func(p *corev1.Pod) bool { return slices.Contains(proxy(p).Args, "--proxyLogLevel=trace") })
	r.set("istio", "mesh", func(s string) string {
		return strings.Replace(s, "defaultConfig:", "defaultConfig:\n  concurrency: 7", 1)
	})
	until("with the mesh's concurrency", pod("a"),
		func(p *corev1.Pod) bool { return strings.Contains(env(proxy(p), "PROXY_CONFIG"), `"concurrency":7`) })
	r.Apply(t, "{apiVersion: networking.istio.io/v1beta1, kind: ProxyConfig, metadata: {name: a, namespace: shop}, spec: {selector: "+
		"{matchLabels: {app: a}}, concurrency: 5}}")
	until("with its ProxyConfig's concurrency", pod("a"),
		func(p *corev1.Pod) bool { return strings.Contains(env(proxy(p), "PROXY_CONFIG"), `"concurrency":5`) })
	until("without another's", pod("b"),
		func(p *corev1.Pod) bool { return strings.Contains(env(proxy(p), "PROXY_CONFIG"), `"concurrency":7`) })

	// What is broken changes nothing.
	for name, broken := range map[string]func(string) string{
		"a template that does not parse": func(s string) string { return strings.Replace(s, "sidecar: |", "sidecar: |\n    {{ if }}", 1) },
		"a template that does not render": func(s string) string {
			return strings.Replace(s, "sidecar: |", "sidecar: |\n    {{ .Values.a.b.c }}", 1)
		},
		"a template that makes no Pod":       func(s string) string { return strings.Replace(s, "sidecar: |", "sidecar: |\n    []", 1) },
		"a configuration that is no mapping": func(string) string { return "[]" },
		"a policy that there is not":         func(s string) string { return strings.Replace(s, "policy: enabled", "policy: maybe", 1) },
		"no configuration":                   func(string) string { return "" },
	} {
		t.Run(name, func(t *testing.T) {
			before := ""
			rejected := r.metric("fairlead_injector_configuration_rejected_total")
			r.set(hookName, "config", func(s string) string { before = s; return broken(s) })
			testkit.Eventually(t, patience, func() error {
				if n := r.metric("fairlead_injector_configuration_current"); n != 0 {
					return fmt.Errorf("the configuration is in force: %v", n)
				}
				return nil
			})
			if r.metric("fairlead_injector_configuration_rejected_total") <= rejected {
				t.Error("it is not counted")
			}
			got, err := r.dryRun("shop", pod("a"))
			if err != nil || proxy(got) == nil || got.Annotations["example.com/a"] != "b" {
				t.Errorf("the last good configuration is not in force: %v", err)
			}
			// A process that starts anew has it, too.
			r.stop()
			r.start()
			if got, err = r.dryRun("shop", pod("a")); err != nil || proxy(got) == nil || got.Annotations["example.com/a"] != "b" {
				t.Errorf("the last good configuration is not in force after a restart: %v", err)
			}
			r.set(hookName, "config", func(string) string { return before })
			testkit.Eventually(t, patience, func() error {
				if n := r.metric("fairlead_injector_configuration_current"); n != 1 {
					return fmt.Errorf("the good configuration is not in force: %v", n)
				}
				return nil
			})
		})
	}

	// What a Pod asks for in vain is told.
	_, err := r.create("shop", pod("bad", annotation("traffic.sidecar.istio.io/excludeInboundPorts", "http")))
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "shop/bad") || !strings.Contains(err.Error(), "excludeInboundPorts") {
		t.Errorf("an annotation of no use: %v", err)
	}
	if _, err := r.Client(t).CoreV1().Pods("shop").Get(t.Context(), "bad", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the Pod is there: %v", err)
	}
	if n := r.metric(`fairlead_injector_pods_total{result="failed"}`); n != 1 {
		t.Errorf("%v Pods failed", n)
	}
	if code, _, err := r.get("/debug/injection"); err == nil && code == 200 {
		t.Error("/debug is open")
	}
}
