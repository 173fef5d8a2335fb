package alerts

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/kubeapi"
	"fairlead.dev/tests/internal/probe"
	"fairlead.dev/tests/internal/process"
)

const sidecarInjector = "istio-sidecar-injector"

// installerLab is a lab with an API server, which each of the installer's processes needs.
func installerLab(t *testing.T) (*lab, *kubeapi.Server) {
	t.Helper()
	l := newLab(t)
	return l, kubeapi.Start(t, kubeapi.Options{})
}

// generate returns the objects of an installation or of an operator.
func generate(t *testing.T, args ...string) string {
	t.Helper()
	return process.MustDo(t, exec.CommandContext(t.Context(), binaries.Built(t, "fairlead"), args...)) //nolint:gosec // the program under test
}

// serve runs one of the installer's programs until the test ends, and waits until its operations port answers.
func serve(t *testing.T, program, ops, ready string, args ...string) *process.Process {
	t.Helper()
	p := process.Run(t, process.Program{Name: program, Path: binaries.Built(t, program), Args: append(args, "--ops-address", ops)})
	if err := p.Until(t.Context(), testkit.Patience, func() error {
		return probe.Ready(t.Context(), probe.Client(nil), "http://"+ops+ready)
	}); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestFaultsOfTheInjector(t *testing.T) {
	t.Parallel()
	l, api := installerLab(t)
	const m = "fairlead_injector_"
	webhook, ops := testkit.FreeAddress(t), testkit.FreeAddress(t).String()
	api.Apply(t, generate(t, "manifest", "generate", "--set", "profile=minimal", "--set",
		"values.sidecarInjectorWebhook.injectionURL=https://"+webhook.String()+"/inject"))
	dir := t.TempDir()
	ca, state := testkit.PKI(t), filepath.Join(dir, "state")
	ca.WriteSVID(filepath.Join(state, "svid", svid.CacheFile), contract.SystemNamespace, "injector", testkit.On(webhook.Addr()))
	roots := ca.WriteRoot(dir)
	injector := serve(t, "fairlead-injector", ops, "/readyz", "--webhook-address", webhook.String(), "--webhook-configuration",
		sidecarInjector,
		"--kubeconfig", api.ServiceAccount(t, contract.SystemNamespace, "injector"), "--trust-domain", testkit.TrustDomain, "--root-cert-file",
		roots,
		"--state-dir", state, "--ca-address", "127.0.0.1:1", "--ca-token-file", roots, "--log-level", "error")
	kubeapi.Keeper(t, api.ServiceAccount(t, contract.SystemNamespace, "keeper"), roots, "--injection", sidecarInjector, "--log-level", "error")
	l.add("injector", "injector-0", ops)
	provoke := func(f fault) {
		f.service = "installer"
		l.provoke(f)
	}
	client := api.Client(t).CoreV1()
	if _, err := client.Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"istio-injection": "enabled"}}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ask := func(ctx context.Context, annotations map[string]string) (*corev1.Pod, error) {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "app", Annotations: annotations},
			Spec:       corev1.PodSpec{ServiceAccountName: "default", Containers: []corev1.Container{{Name: "app", Image: "app"}}},
		}
		return client.Pods("shop").Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	}
	testkit.Eventually(t, testkit.Patience, func() error {
		pod, err := ask(t.Context(), nil)
		if err == nil && len(pod.Spec.Containers)+len(pod.Spec.InitContainers) == 1 {
			err = errors.New("the Pod has no sidecar")
		}
		return err
	})

	provoke(fault{alerts: []string{"InjectionFails"}, minutes: 12,
		until: func(s scrape) bool { return s.sum(m+"pods_total", `result="failed"`) > 0 }, make_: func(t *testing.T) func() {
			if _, err := ask(t.Context(), map[string]string{"traffic.sidecar.istio.io/excludeInboundPorts": "http"}); !apierrors.IsInvalid(err) {
				t.Fatalf("a bad annotation: %v", err)
			}
			return nil
		}})
	provoke(fault{alerts: []string{"InjectorRefuses"}, minutes: 17, gap: 400 * time.Millisecond, make_: func(t *testing.T) func() {
		stranger := &http.Client{Transport: &http.Transport{TLSClientConfig: anyServer(nil)}, Timeout: testkit.Patience}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			for {
				request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+webhook.String()+"/inject", http.NoBody)
				if err != nil {
					done <- err
					return
				}
				answer, err := stranger.Do(request)
				if ctx.Err() != nil {
					done <- nil
					return
				}
				if err == nil {
					_ = answer.Body.Close() // what it says is not read
					if answer.StatusCode != http.StatusMethodNotAllowed {
						err = fmt.Errorf("GET is answered with %s", answer.Status)
					}
				}
				if err != nil {
					done <- err
					return
				}
				time.Sleep(10 * time.Millisecond) // how often the stranger calls, which is the load
			}
		}()
		return func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}})
	slow := []string{"InjectorSlow", "InjectorBudgetBurnsFast", "InjectorBudgetBurnsSlow", "InjectorBudgetBurnsSteady",
		"InjectorBudgetBurnsCreeping"}
	provoke(fault{alerts: slow, minutes: 70, gap: time.Millisecond, make_: func(t *testing.T) func() {
		halting(t, injector, 100*time.Millisecond, func(ctx context.Context) error {
			for ctx.Err() == nil {
				if _, err := ask(ctx, nil); err != nil && ctx.Err() == nil {
					return err
				}
			}
			return nil
		}, func() bool {
			s := l.look(t.Context())
			n := s.sum(m + "admission_seconds_count")
			return n-s.sum(m+"admission_seconds_bucket", `le="0.5"`) > 0.03*n
		})
		return nil
	}})
	provoke(fault{alerts: []string{"InjectorConfigurationBroken"}, minutes: 7, make_: func(t *testing.T) func() {
		change := func(edit func(string) string) {
			t.Helper()
			found, err := client.ConfigMaps(contract.SystemNamespace).Get(t.Context(), sidecarInjector, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			found.Data["config"] = edit(found.Data["config"])
			if _, err := client.ConfigMaps(contract.SystemNamespace).Update(t.Context(), found, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		good := ""
		change(func(text string) string {
			good = text
			return strings.Replace(text, "policy: enabled", "policy: maybe", 1)
		})
		return func() { change(func(string) string { return good }) }
	}, until: func(s scrape) bool { return s.sum("up") == 1 && s.sum(m+"configuration_current") == 0 }})
	provoke(fault{alerts: []string{"InjectorBundleStale"}, minutes: 7, make_: func(t *testing.T) func() {
		if err := api.Client(t).AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(t.Context(), sidecarInjector,
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		return nil
	}, until: func(s scrape) bool { return s.sum("up") == 1 && s.sum(m+"webhook_configuration_current") == 0 }})
	provoke(fault{alerts: []string{"InjectorDown"}, minutes: 7, make_: func(*testing.T) func() { injector.Kill(); return nil }})
}

// The faults of the operator are rights that it has not.
func TestFaultsOfTheOperator(t *testing.T) {
	t.Parallel()
	l, api := installerLab(t)
	const m = "fairlead_operator_"
	api.Apply(t, generate(t, "operator", "dump", "--operatorNamespace", "ops"))
	var namespaces, resources []string
	for i := range 16 {
		name := fmt.Sprintf("mesh-%d", i)
		namespaces = append(namespaces, name)
		resources = append(resources, fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", name),
			fmt.Sprintf("{apiVersion: install.istio.io/v1alpha1, kind: IstioOperator, metadata: {name: main, namespace: %s}, spec: {profile: "+
				"minimal, revision: r%d}}", name, i))
	}
	provoke := func(f fault) {
		f.service = "installer"
		l.provoke(f)
	}
	operate := func(t *testing.T, user string) *process.Process {
		ops := testkit.FreeAddress(t).String()
		p := serve(t, "fairlead", ops, "/livez", "operator", "--kubeconfig", api.User(t, user), "--operator-namespace", "ops",
			"--watch-namespaces", strings.Join(namespaces, ","), "--lease-duration", "6s", "--log-level", "error")
		l.targets = nil
		l.add("operator", user, ops)
		return p
	}
	leases := kubeapi.Rule("coordination.k8s.io", []string{"leases"}, "get", "create", "update")
	leads := func(s scrape) bool { return s.sum(m+"leader") == 1 }

	var operator *process.Process
	provoke(fault{alerts: []string{"OperatorDoesNotLead"}, afresh: true, minutes: 7, make_: func(t *testing.T) func() {
		operator = operate(t, "nobody")
		ready := strings.Replace(l.targets[0].url, "/metrics", "/readyz", 1)
		testkit.Eventually(t, testkit.Patience, func() error {
			// That it has tried to get the lease, in vain.
			if err := probe.Ready(t.Context(), probe.Client(nil), ready); err == nil ||
				!strings.Contains(err.Error(), "get, create and update leases") {
				return fmt.Errorf("/readyz says %w", err)
			}
			return nil
		})
		return operator.Kill
	}})
	api.Grant(t, kubeapi.UserSubject("elected"), leases)
	provoke(fault{alerts: []string{"OperatorCannotWatch"}, afresh: true, minutes: 27, gap: 400 * time.Millisecond,
		make_: func(*testing.T) func() {
			return operate(t, "elected").Kill
		}, until: func(s scrape) bool { return leads(s) && s.sum(m+"watch_failures_total") > 0 }})

	// It may read IstioOperators and write their status, and nothing of what they install.
	api.Grant(t, kubeapi.UserSubject("reader"), leases, kubeapi.Rule("install.istio.io", []string{"istiooperators", "istiooperators/status"},
		"get", "list", "watch", "patch", "update"))
	operator = operate(t, "reader")
	if err := operator.Until(t.Context(), testkit.Patience, func() error {
		if s := l.look(t.Context()); !leads(s) {
			return errors.New("it does not lead")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	fails := []string{"IstioOperatorFails", "OperatorReconcilesFail", "OperatorBudgetBurnsSteady", "OperatorBudgetBurnsCreeping"}
	provoke(fault{alerts: fails, minutes: 70, gap: 300 * time.Millisecond, make_: func(t *testing.T) func() {
		api.Apply(t, strings.Join(resources, "\n---\n"))
		return nil
	}, until: func(s scrape) bool { return s.sum(m+"reconciles_total", `result="failed"`) > 0 }})
	provoke(fault{alerts: []string{"OperatorDown"}, minutes: 12, make_: func(*testing.T) func() { operator.Kill(); return nil }})
}

// The faults of fairlead-gateways are rights that it has not, and a broken file.
func TestFaultsOfGateways(t *testing.T) {
	t.Parallel()
	l, api := installerLab(t)
	const m = "fairlead_gateways_"
	api.ApplyCRDs(t, kubeapi.GatewayAPICRDs(t, "standard"))
	api.Apply(t, generate(t, "manifest", "generate", "--set", "profile=minimal"))
	installed, err := api.Client(t).CoreV1().ConfigMaps(contract.SystemNamespace).Get(t.Context(), "fairlead-gateways", metav1.GetOptions{})
	testkit.NoError(t, err)
	values := filepath.Join(t.TempDir(), "values.yaml")
	testkit.WriteFile(t, values, []byte(installed.Data["values.yaml"]))
	provoke := func(f fault) {
		f.service = "installer"
		l.provoke(f)
	}
	deploy := func(t *testing.T, user string) *process.Process {
		ops := testkit.FreeAddress(t).String()
		p := serve(t, "fairlead-gateways", ops, "/livez", "--kubeconfig", api.User(t, user), "--values-file", values, "--lease-duration", "6s",
			"--log-level", "error")
		l.targets = nil
		l.add("gateways", user, ops)
		return p
	}
	leases := kubeapi.Rule("coordination.k8s.io", []string{"leases"}, "get", "create", "update")
	leads := func(s scrape) bool { return s.sum(m+"leader") == 1 }

	provoke(fault{alerts: []string{"GatewaysDoNotLead"}, afresh: true, minutes: 7, make_: func(t *testing.T) func() {
		p := deploy(t, "nobody")
		ready := strings.Replace(l.targets[0].url, "/metrics", "/readyz", 1)
		testkit.Eventually(t, testkit.Patience, func() error {
			if err := probe.Ready(t.Context(), probe.Client(nil), ready); err == nil ||
				!strings.Contains(err.Error(), "get, create and update leases") {
				return fmt.Errorf("/readyz says %w", err)
			}
			return nil
		})
		return p.Kill
	}})
	api.Grant(t, kubeapi.UserSubject("elected"), leases)
	provoke(fault{alerts: []string{"GatewaysCannotWatch"}, afresh: true, minutes: 27, gap: 400 * time.Millisecond,
		make_: func(*testing.T) func() {
			return deploy(t, "elected").Kill
		}, until: func(s scrape) bool { return leads(s) && s.sum(m+"watch_failures_total") > 0 }})

	// It may read everything, and make nothing for Gateways.
	api.Grant(t, kubeapi.UserSubject("reader"), leases, kubeapi.Rule("*", []string{"*"}, "get", "list", "watch"),
		kubeapi.Rule("", []string{"events"}, "create"))
	api.Apply(t, "{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: mesh}, "+
		"spec: {controllerName: fairlead.dev/gateway-controller}}")
	deployer := deploy(t, "reader")
	if err := deployer.Until(t.Context(), testkit.Patience, func() error {
		if s := l.look(t.Context()); !leads(s) {
			return errors.New("it does not lead")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	fails := []string{"GatewayDeploymentsFail", "GatewayDeploymentsBudgetBurnsSteady", "GatewayDeploymentsBudgetBurnsCreeping"}
	provoke(fault{alerts: fails, minutes: 70, gap: 300 * time.Millisecond, make_: func(t *testing.T) func() {
		for i := range 16 {
			api.Apply(t, fmt.Sprintf("{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: web-%d, namespace: default}, "+
				"spec: {gatewayClassName: mesh, listeners: [{name: http, port: 80, protocol: HTTP}]}}", i))
		}
		return nil
	}, until: func(s scrape) bool { return s.sum(m+"gateways", `result="failed"`) == 16 }})
	provoke(fault{alerts: []string{"GatewayValuesStale"}, minutes: 7, make_: func(t *testing.T) func() {
		testkit.WriteFile(t, values, []byte("global: 1"))
		return func() { testkit.WriteFile(t, values, []byte(installed.Data["values.yaml"])) }
	}, until: func(s scrape) bool { return s.sum(m+"values_stale") == 1 }})
	provoke(fault{alerts: []string{"GatewaysDown"}, minutes: 12, make_: func(*testing.T) func() { deployer.Kill(); return nil }})
}
