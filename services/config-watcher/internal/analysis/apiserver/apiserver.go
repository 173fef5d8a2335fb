// Package apiserver reads the objects that package whole looks at from a Kubernetes API server: one list for each
// kind, page by page. Of Secrets it reads those alone that a Gateway or DestinationRule names, one by one. It changes
// nothing.
package apiserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"fairlead.dev/pkg/gatewaydeploy"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/analysis/whole"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
)

// page is the number of objects that are asked for at once.
const page = 500

// Config names an API server as kubectl does.
type Config struct {
	// Kubeconfig is a file; "" takes KUBECONFIG, the user's own file, or the Pod's service account.
	Kubeconfig string
	// Context is a context of the file; "" takes the current one.
	Context string
	// Namespace is the one whose objects are listed where listing all is forbidden; "" for none.
	Namespace string
}

// Reader reads objects. Use New.
type Reader struct {
	client    dynamic.Interface
	discovery discovery.DiscoveryInterface
	namespace string
}

// New returns a reader and the namespace of the context.
func New(cfg Config) (*Reader, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = cfg.Kubeconfig
	loaded := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: cfg.Context})
	config, err := loaded.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("no API server: %w; name a file with --kubeconfig", err)
	}
	namespace, _, err := loaded.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("namespace of the context: %w", err)
	}
	config.QPS, config.Burst, config.UserAgent = 50, 100, "fairlead-analyze"
	config.WarningHandler = rest.NoWarnings{}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, "", err
	}
	known, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, "", err
	}
	return &Reader{client, known, cfg.Namespace}, namespace, nil
}

// Unread is a kind that could not be read, or only in part, and why.
type Unread struct {
	Kind, Reason string
	// Part is true if the objects of one namespace were read.
	Part bool
}

// String says it to a person.
func (u Unread) String() string {
	if u.Part {
		return fmt.Sprintf("%s of other namespaces: %s", u.Kind, u.Reason)
	}
	return u.Kind + ": " + u.Reason
}

// kind is a kind to read, with its resource's name.
type kind struct {
	group, name, resource string
	// from are the names of the objects to read; nil for all.
	names []string
}

// kinds are the kinds to read, except Secrets.
var kinds = []kind{
	{"", "Namespace", "namespaces", nil}, {"", "Service", "services", nil}, {"", "Pod", "pods", nil},
	{"", "ConfigMap", "configmaps", []string{"istio", "istio-sidecar-injector"}},
	{"apps", "Deployment", "deployments", nil}, {"apps", "StatefulSet", "statefulsets", nil}, {"apps", "DaemonSet", "daemonsets", nil},
	{"admissionregistration.k8s.io", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", nil},
	{"admissionregistration.k8s.io", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", nil},
	{"networking.istio.io", "VirtualService", "virtualservices", nil}, {"networking.istio.io", "DestinationRule", "destinationrules", nil},
	{"networking.istio.io", "Gateway", "gateways", nil}, {"networking.istio.io", "ServiceEntry", "serviceentries", nil},
	{"networking.istio.io", "Sidecar", "sidecars", nil}, {"networking.istio.io", "WorkloadEntry", "workloadentries", nil},
	{"networking.istio.io", "WorkloadGroup", "workloadgroups", nil}, {"networking.istio.io", "EnvoyFilter", "envoyfilters", nil},
	{"networking.istio.io", "ProxyConfig", "proxyconfigs", nil},
	{"security.istio.io", "PeerAuthentication", "peerauthentications", nil},
	{"security.istio.io", "RequestAuthentication", "requestauthentications", nil},
	{"security.istio.io", "AuthorizationPolicy", "authorizationpolicies", nil},
	{"telemetry.istio.io", "Telemetry", "telemetries", nil}, {"extensions.istio.io", "WasmPlugin", "wasmplugins", nil},
	{"extensions.istio.io", "TrafficExtension", "trafficextensions", nil},
	{"networking.k8s.io", "Ingress", "ingresses", nil}, {"networking.k8s.io", "IngressClass", "ingressclasses", nil},
	{groupGateway, "GatewayClass", "gatewayclasses", nil}, {groupGateway, "Gateway", "gateways", nil},
	{groupGateway, "ListenerSet", "listenersets", nil}, {groupGateway, "HTTPRoute", "httproutes", nil},
	{groupGateway, "GRPCRoute", "grpcroutes", nil}, {groupGateway, "TLSRoute", "tlsroutes", nil},
	{groupGateway, "TCPRoute", "tcproutes", nil}, {groupGateway, "UDPRoute", "udproutes", nil},
	{groupGateway, "BackendTLSPolicy", "backendtlspolicies", nil}, {groupGateway, "ReferenceGrant", "referencegrants", nil},
}

const groupGateway = contract.GroupGatewayAPI

// gatewayCRDs are the CRDs whose annotations are read.
var gatewayCRDs = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// Load reads the objects into a mesh. It returns the kinds that could not be read; a kind that the API server does not
// serve has no objects. An error means that the API server cannot be asked at all.
func (r *Reader) Load(ctx context.Context, mesh *whole.Mesh) ([]Unread, error) {
	versions, err := r.versions()
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	var unread []Unread
	for _, k := range kinds {
		version := versions[k.group+"/"+k.name]
		if version == "" {
			continue
		}
		gvr := schema.GroupVersionResource{Group: k.group, Version: version, Resource: k.resource}
		load := func(o *unstructured.Unstructured) { mesh.Load(&manifest.Document{Tree: o.Object}) }
		if k.names != nil {
			err = r.named(ctx, gvr, mesh.RootNamespace(), k.names, load)
		} else {
			err = r.list(ctx, gvr, "", "", load)
		}
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("API server: %w", err)
		}
		u := Unread{Kind: k.name, Reason: cause(err)}
		if apierrors.IsForbidden(err) && r.namespace != "" && k.names == nil && r.list(ctx, gvr, r.namespace, "", load) == nil {
			u.Part = true
		}
		unread = append(unread, u)
	}
	if err := r.list(ctx, gatewayCRDs, "", "", func(o *unstructured.Unstructured) {
		if strings.HasSuffix(o.GetName(), "."+groupGateway) {
			mesh.Load(&manifest.Document{Tree: o.Object})
		}
	}); err != nil {
		unread = append(unread, Unread{Kind: "CustomResourceDefinition", Reason: cause(err)})
	}
	return append(unread, r.secrets(ctx, mesh)...), nil
}

// secrets reads the Secrets and ConfigMaps that credentialNames stand for, or that objects of the Gateway API refer to,
// and the defaults of their classes.
func (r *Reader) secrets(ctx context.Context, mesh *whole.Mesh) []Unread {
	var unread []Unread
	load := func(o *unstructured.Unstructured) { mesh.Load(&manifest.Document{Tree: o.Object}) }
	refs, root := mesh.Referenced()
	if root != "" {
		maps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
		if err := r.list(ctx, maps, root, gatewaydeploy.DefaultsLabel, load); err != nil {
			unread = append(unread, Unread{Kind: "ConfigMap", Reason: cause(err)})
		}
	}
	for _, of := range []struct{ kind, resource string }{{"Secret", "secrets"}, {"ConfigMap", "configmaps"}} {
		gvr := schema.GroupVersionResource{Version: "v1", Resource: of.resource}
		all := slices.DeleteFunc(slices.Clone(refs), func(k object.Key) bool { return k.Kind != of.kind })
		for _, ref := range append(all, mesh.Credentials()...) {
			err := r.named(ctx, gvr, ref.Namespace, []string{ref.Name}, load)
			if err != nil {
				if !slices.ContainsFunc(unread, func(u Unread) bool { return u.Kind == of.kind }) {
					unread = append(unread, Unread{Kind: of.kind, Reason: cause(err)})
				}
				if !apierrors.IsForbidden(err) {
					break
				}
			}
		}
	}
	return unread
}

// versions maps "group/Kind" to the version that the API server prefers.
func (r *Reader) versions() (map[string]string, error) {
	_, lists, err := r.discovery.ServerGroupsAndResources()
	var partly *discovery.ErrGroupDiscoveryFailed
	if err != nil && !errors.As(err, &partly) {
		return nil, err
	}
	out := map[string]string{}
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			continue
		}
		for _, resource := range l.APIResources {
			// The versions of a group come in the order of the server's preference.
			if key := gv.Group + "/" + resource.Kind; !strings.Contains(resource.Name, "/") && out[key] == "" {
				out[key] = gv.Version
			}
		}
	}
	return out, nil
}

// list calls do with the objects of a kind, those of a namespace unless it is "", that have a label unless it is "".
func (r *Reader) list(ctx context.Context, gvr schema.GroupVersionResource, namespace, label string,
	do func(*unstructured.Unstructured),
) error {
	options := metav1.ListOptions{Limit: page, LabelSelector: label}
	restarted := false
	for {
		var list *unstructured.UnstructuredList
		var err error
		if namespace == "" {
			list, err = r.client.Resource(gvr).List(ctx, options)
		} else {
			list, err = r.client.Resource(gvr).Namespace(namespace).List(ctx, options)
		}
		if apierrors.IsResourceExpired(err) && !restarted {
			// The snapshot of the pages is gone. Objects that were read already count once.
			options.Continue, restarted = "", true
			continue
		}
		if err != nil {
			return err
		}
		for i := range list.Items {
			do(&list.Items[i])
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			return nil
		}
	}
}

// named calls do with the objects of these names that exist.
func (r *Reader) named(ctx context.Context, gvr schema.GroupVersionResource, namespace string, names []string,
	do func(*unstructured.Unstructured)) error {
	for _, name := range names {
		o, err := r.client.Resource(gvr).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return err
		default:
			do(o)
		}
	}
	return nil
}

// cause shortens an API server's error.
func cause(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Message != "" {
		return status.Status().Message
	}
	return err.Error()
}
