// Package inject decides whether a Pod gets a sidecar, and adds it, exactly as Istio's injection does: Config.Inject
// renders the Go templates of the injection configuration with Istio's functions and inputs, merges the result into the
// Pod, and completes what templates cannot say (probes, Prometheus annotations, order of containers). The injection
// webhook calls it for every admission, `fairlead kube-inject` for every workload of a file. Nothing here does I/O but
// what a template asks of the functions that Istio gives it (env, expandenv, getHostByName). A Config may be used by
// any number of goroutines.
package inject

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/pkg/proxyconfig"
)

// Names of containers that Istio's templates use.
const (
	proxyContainer      = "istio-proxy"
	initContainer       = "istio-init"
	validationContainer = "istio-validation"
	coreDumpContainer   = "enable-core-dump"
)

// Request is one Pod to inject.
type Request struct {
	// Pod is never changed. It needs its namespace; the webhook takes it from the admission request if the Pod has
	// none.
	Pod *corev1.Pod
	// Namespace may be nil. Its annotations decide the proxy's user on OpenShift.
	Namespace *corev1.Namespace
	// Owner is the workload that the Pod belongs to; nil derives it from the Pod with OwnerOf.
	Owner *Owner
	// ProxyConfigs are the ProxyConfig resources of the root namespace and of the Pod's; the selectors of the latter
	// are compared with the Pod's labels here.
	ProxyConfigs []proxyconfig.Resource
	// Env are variables of the proxy, and above the configuration's values, as EnvOfPath reads them from the webhook's
	// URL.
	Env map[string]string
	// LocalCA is the address of the ca in the cluster that Config is of, a Service of that cluster: Pods of other
	// clusters, which Env names, ask for certificates where they ask for configuration instead. "" is none.
	LocalCA string
	// NativeSidecars makes the proxy an init container that keeps running. The Pod's annotation
	// sidecar.istio.io/nativeSidecar wins.
	NativeSidecars bool
}

// Owner is a workload: its type, name and namespace.
type Owner struct {
	Type metav1.TypeMeta
	Name types.NamespacedName
}

// Result is what became of a Request.
type Result struct {
	// Pod is the injected Pod, or Request.Pod itself.
	Pod      *corev1.Pod
	Injected bool
	// Reason says why the Pod was not injected.
	Reason string
	// Warnings are for the user: what was accepted and has no effect, or will not work.
	Warnings []string
}

// Inject decides about a Pod and injects it. An error names the Pod; nothing was injected then.
func (c *Config) Inject(r Request) (Result, error) {
	decision := c.Decide(r.Pod)
	if !decision.Inject {
		return Result{Pod: r.Pod, Reason: decision.Reason, Warnings: decision.Warnings}, nil
	}
	in := injection{config: c, request: r, warnings: decision.Warnings}
	pod, err := in.run()
	if err != nil {
		return Result{Pod: r.Pod, Warnings: in.warnings}, fmt.Errorf("Pod %s: %w", Name(r.Pod), err)
	}
	return Result{Pod: pod, Injected: true, Warnings: in.warnings}, nil
}

// Name returns "namespace/name" of a Pod, with the prefix of a name that is yet to be generated.
func Name(pod *corev1.Pod) string {
	name := pod.Name
	if name == "" {
		name = pod.GenerateName + "*"
	}
	if pod.Namespace == "" {
		return name
	}
	return pod.Namespace + "/" + name
}
