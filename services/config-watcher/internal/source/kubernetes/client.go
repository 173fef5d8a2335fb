package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/flowcontrol"
)

// Connection says which API server is read, and as whom.
type Connection struct {
	// Kubeconfig is a file; empty for the service account of the Pod that the process runs in.
	Kubeconfig string
	// Context of the file; empty for its current one.
	Context string
	// QPS and Burst bound the requests a second.
	QPS   float32
	Burst int
	// UserAgent names the process in the API server's audit log.
	UserAgent string
}

// Connect reads the connection's settings. It does not dial.
func Connect(c Connection) (*rest.Config, error) {
	var cfg *rest.Config
	var err error
	if c.Kubeconfig == "" {
		if cfg, err = rest.InClusterConfig(); err != nil {
			return nil, fmt.Errorf("this process does not run in a Pod with a service account (%w); name the cluster with --kubeconfig", err)
		}
	} else {
		rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig}
		if cfg, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
			&clientcmd.ConfigOverrides{CurrentContext: c.Context}).ClientConfig(); err != nil {
			return nil, fmt.Errorf("--kubeconfig %s: %w", c.Kubeconfig, err)
		}
	}
	// One limit for all clients made from this configuration.
	cfg.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(c.QPS, c.Burst)
	cfg.UserAgent = c.UserAgent
	return cfg, nil
}

// clients are the clients of one API server. They share its connections.
type clients struct {
	config    *rest.Config
	http      *http.Client
	discovery *discovery.DiscoveryClient
	dynamic   dynamic.Interface
	metadata  metadata.Interface

	mu    sync.Mutex
	typed map[schema.GroupVersion]rest.Interface
}

// errRedirect is why a redirect is not followed: its address has not been checked, and would be sent the credentials.
var errRedirect = errors.New("the API server answers with a redirect, which is not followed")

func newClients(cfg *rest.Config) (*clients, error) {
	c := &clients{config: cfg, typed: map[schema.GroupVersion]rest.Interface{}}
	var err error
	if c.http, err = rest.HTTPClientFor(cfg); err != nil {
		return nil, err
	}
	c.http.CheckRedirect = func(r *http.Request, _ []*http.Request) error {
		return fmt.Errorf("%w to %s", errRedirect, r.URL.Redacted())
	}
	var errs [3]error
	bounded := *c.http // discovery takes no context
	bounded.Timeout = discoverWithin
	c.discovery, errs[0] = discovery.NewDiscoveryClientForConfigAndClient(cfg, &bounded)
	c.dynamic, errs[1] = dynamic.NewForConfigAndClient(cfg, c.http)
	c.metadata, errs[2] = metadata.NewForConfigAndClient(metadata.ConfigFor(cfg), c.http)
	return c, errors.Join(errs[:]...)
}

// requests returns the calls for a resource: decoded by a Go type if client-go knows the kind, which costs a fraction,
// else as a tree. namespace "" means all.
func (c *clients) requests(kind schema.GroupVersionKind, resource, namespace string, typed bool) (requests, error) {
	if !typed || !clientscheme.Scheme.Recognizes(kind) {
		r := c.dynamic.Resource(kind.GroupVersion().WithResource(resource)).Namespace(namespace)
		return requests{
			list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				l, err := r.List(ctx, o)
				if err != nil {
					return nil, err
				}
				return l, nil
			},
			watch: r.Watch,
		}, nil
	}
	client, err := c.typedClient(kind.GroupVersion())
	if err != nil {
		return requests{}, err
	}
	get := func(o *metav1.ListOptions) *rest.Request {
		return client.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource).VersionedParams(o, clientscheme.ParameterCodec)
	}
	return requests{
		list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			into, err := clientscheme.Scheme.New(kind.GroupVersion().WithKind(kind.Kind + "List"))
			if err != nil {
				return nil, err
			}
			return into, get(&o).Do(ctx).Into(into)
		},
		watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return get(&o).Watch(ctx) },
	}, nil
}

func (c *clients) typedClient(gv schema.GroupVersion) (rest.Interface, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.typed[gv]; known != nil {
		return known, nil
	}
	cfg := rest.CopyConfig(c.config)
	cfg.GroupVersion = &gv
	cfg.APIPath = "/apis"
	if gv.Group == "" {
		cfg.APIPath = "/api"
	}
	cfg.NegotiatedSerializer = clientscheme.Codecs.WithoutConversion()
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := rest.RESTClientForConfigAndClient(cfg, c.http)
	if err != nil {
		return nil, err
	}
	c.typed[gv] = client
	return client, nil
}

// ready asks whether the API server answers within probeWithin. known is false if it answers that it is not ready: it
// may then leave kinds out that it has.
func (c *clients) ready(ctx context.Context) (known bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	var code int
	r := c.discovery.RESTClient().Get().AbsPath("/readyz").Do(ctx).StatusCode(&code)
	if code == 0 {
		return false, r.Error()
	}
	return code < http.StatusInternalServerError, nil
}
