// Package apiserver is a Kubernetes API server for fleets: with the mesh's CustomResourceDefinitions, the rights that
// deploy/ gives config-watcher, by a keeper, the validating webhook, and the controllers that make EndpointSlices. One
// fleet uses it at a time.
package apiserver

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"fairlead.dev/pkg/svid"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/tests/internal/kubeapi"
	"fairlead.dev/tests/internal/process"
)

// ServiceRanges are those that the addresses of scenarios' Services are in.
const ServiceRanges = "198.19.0.0/16,fd19::c610:0/108"

// controllers make EndpointSlices of Services and Pods, and of Endpoints.
var controllers = []string{"endpointslice-controller", "endpointslice-mirroring-controller"}

// Server is an API server, until the end of a test.
type Server struct {
	// Kubeconfig is config-watcher's, with its rights.
	Kubeconfig string
	// Address is where it listens, on loopback.
	Address string

	client dynamic.Interface
	kinds  *kinds

	mu sync.Mutex
	// namespaces are those that are known to be there.
	namespaces map[string]bool
	// newest is the youngest object of each kind.
	newest map[schema.GroupVersionKind]newest
}

// Start starts an API server, which ends with the test. program is config-watcher, and root the directory of the
// repository.
func Start(t testing.TB, program, root string) *Server {
	t.Helper()
	api := kubeapi.Start(t, kubeapi.Options{Controllers: controllers, Args: []string{"--service-cluster-ip-range=" + ServiceRanges}})
	for _, dir := range []string{"crds", "gateway-api/experimental"} {
		dir = filepath.Join(root, "services/installer/manifests/charts/base/files", dir)
		files, err := filepath.Glob(filepath.Join(dir, "*.*.*.yaml"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no CustomResourceDefinitions in %s: %v", dir, err)
		}
		api.ApplyCRDs(t, files...)
	}
	s, err := Connect(api.Config)
	if err != nil {
		t.Fatal(err)
	}
	s.Kubeconfig = api.ServiceAccount(t, contract.SystemNamespace, contract.ConfigWatcherAccount)
	keeper := api.ServiceAccount(t, contract.SystemNamespace, "keeper")
	for _, dir := range []string{"base", "config-watcher", "keeper"} {
		rights, err := os.ReadFile(filepath.Join(root, "deploy/kustomize/base", dir, "rbac.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		api.Apply(t, string(rights))
	}
	kubeapi.Keeper(t, keeper, "", "--bind-credentials", "fairlead-config-watcher-credentials",
		"--bind-registration", "fairlead-config-watcher-registration", "--bind-to", contract.SystemNamespace+"/"+contract.ConfigWatcherAccount)
	at, err := url.Parse(api.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	s.Address = at.Host
	s.serveWebhook(t, api, program)
	return s
}

// Connect is an API server that runs already, with the mesh's CustomResourceDefinitions and all else that Start brings:
// that of a cluster. It has neither Kubeconfig nor Address.
func Connect(config *rest.Config) (*Server, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	discover, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	groups, err := restmapper.GetAPIGroupResources(discover)
	if err != nil {
		return nil, err
	}
	return &Server{
		client: client, namespaces: map[string]bool{}, newest: map[schema.GroupVersionKind]newest{},
		kinds: &kinds{mapper: restmapper.NewDiscoveryRESTMapper(groups), known: map[schema.GroupVersionKind]*meta.RESTMapping{}},
	}, nil
}

// serveWebhook has config-watcher check objects of the mesh's kinds before the API server stores them, in a process
// that lasts longer than a fleet.
func (s *Server) serveWebhook(t testing.TB, api *kubeapi.Server, program string) {
	t.Helper()
	ca, at := testkit.PKI(t), testkit.FreeAddress(t)
	state := filepath.Join(api.Dir, "webhook")
	ca.WriteSVID(filepath.Join(state, "svid", svid.CacheFile), contract.SystemNamespace, contract.ConfigWatcherAccount, testkit.On(at.Addr()))
	roots, log := ca.WriteRoot(state), filepath.Join(api.Dir, "webhook.log")
	p := process.Run(t, process.Program{Name: "webhook", Path: program, Stdout: log, Stderr: log, Args: []string{
		"--webhook-only", "--webhook-address", at.String(), "--ops-address", testkit.FreeAddress(t).String(), "--trust-domain",
		testkit.TrustDomain,
		"--root-cert-file", roots, "--state-dir", state, "--ca-address", "127.0.0.1:1",
	}})
	t.Cleanup(func() {
		if err := p.Died(); err != nil {
			t.Errorf("the webhook ended by itself: %v", err)
		}
	})
	bundle, err := os.ReadFile(roots)
	if err != nil {
		t.Fatal(err)
	}
	target, fail, none := "https://"+at.String()+"/validate", registrationv1.Fail, registrationv1.SideEffectClassNone
	_, err = api.Client(t).AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(),
		&registrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "fairlead-validator"},
			Webhooks: []registrationv1.ValidatingWebhook{{
				Name: webhookName, ClientConfig: registrationv1.WebhookClientConfig{URL: &target, CABundle: bundle}, FailurePolicy: &fail,
				SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
				Rules: []registrationv1.RuleWithOperations{{
					Operations: []registrationv1.OperationType{registrationv1.Create, registrationv1.Update},
					Rule: registrationv1.Rule{APIGroups: []string{"networking.istio.io", "security.istio.io", "telemetry.istio.io",
						"extensions.istio.io", "fairlead.dev"}, APIVersions: []string{"*"}, Resources: []string{"*"}},
				}},
			}},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// The API server learns of the configuration a moment later.
	bad := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": map[string]any{"name": "bad"},
		"spec": map[string]any{"hosts": []any{"a b"}},
	}}
	testkit.Eventually(t, testkit.Patience, func() error {
		resource, err := s.resource(bad)
		if err != nil {
			return err
		}
		if _, err := resource.Create(t.Context(), bad, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); !fromWebhook(err) {
			return fmt.Errorf("the webhook is not asked yet: %w", err)
		}
		return nil
	})
}

// webhookName is in what the API server says of an object that the webhook has denied.
const webhookName = "validation.fairlead.dev"
