// Package waiting waits until the proxies of a mesh have acknowledged an object, or that it is gone. It is what
// `fairlead wait` does.
package waiting

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/configapi"
	"fairlead.dev/services/installer/internal/kinds"
	"fairlead.dev/services/installer/internal/kube"
	"fairlead.dev/services/installer/internal/meshclient"
)

// pollInterval is how often the config-watchers are asked.
const pollInterval = 200 * time.Millisecond

// What can be waited for.
const (
	Programmed = "programmed"
	Delivery   = "delivery"
	Deleted    = "deleted"
)

// Conditions are the values of --for, in istioctl's spelling and as kubectl's condition too.
var Conditions = map[string]string{
	Programmed: Programmed, "condition=programmed": Programmed, Delivery: Delivery, "distribution": Delivery,
	Deleted: Deleted, "delete": Deleted,
}

// statusGroups are the API groups of the kinds whose objects have conditions.
var statusGroups = map[string][]string{
	"networking.istio.io": {"VirtualService", "DestinationRule", "Gateway", "ServiceEntry", "Sidecar", "WorkloadEntry", "WorkloadGroup",
		"EnvoyFilter", "ProxyConfig"},
	"security.istio.io":  {"PeerAuthentication", "RequestAuthentication", "AuthorizationPolicy"},
	"telemetry.istio.io": {"Telemetry"}, "extensions.istio.io": {"WasmPlugin"},
	groupGatewayAPI: {kinds.APIGateway, "GatewayClass", "ListenerSet", "HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute",
		"BackendTLSPolicy"},
}

const groupGatewayAPI = "gateway.networking.k8s.io"

// Result is how a wait has ended.
type Result struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// For is what was waited for: programmed, delivery or deleted.
	For  string `json:"for"`
	Done bool   `json:"done"`
	// Message says how it ended, or what is missing.
	Message string  `json:"message"`
	Seconds float64 `json:"seconds"`
}

// Request says what is waited for, and how long.
type Request struct {
	Key *configv1.ObjectKey
	// Generation of the object; 0 means the newest.
	Generation int64
	// Threshold is the share of the proxies that is enough, of Delivery and Deleted.
	Threshold float64
	// For is Programmed, Delivery or Deleted.
	For     string
	Timeout time.Duration
	// Progress, if it is not nil, is told how far it is each time that changes.
	Progress func(took time.Duration, text string)
}

// String is "<kind> <namespace>/<name>".
func (r *Request) String() string {
	return kinds.Text(r.Key)
}

// wait is a request with what was found so far.
type wait struct {
	Request

	mesh  *meshclient.Mesh
	began time.Time
	// targets are the revisions by which the object has become what is waited for, by replica; nil before the first
	// look.
	targets  map[string]*configv1.Revision
	watchers []meshclient.Watcher
}

// Until waits until a request has come true, until it cannot any more, or until its time is over; the last two are
// errors. The result is nil if waiting could not begin, or ctx was cancelled.
func Until(ctx context.Context, mesh *meshclient.Mesh, r Request) (*Result, error) {
	w := &wait{Request: r, mesh: mesh, began: time.Now()}
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	if w.Generation == 0 && w.For != Deleted {
		var err error
		if w.Generation, err = newestGeneration(ctx, mesh, r.Key); err != nil {
			return nil, err
		}
	}
	defer func() { meshclient.CloseAll(w.watchers) }()
	said, absent := "", false
	for {
		step, err := w.look(ctx)
		if err == nil {
			absent = step.absent
		}
		switch {
		case step.done:
			return w.result(step.text, nil)
		case step.final:
			return w.result("", err)
		case err != nil:
			w.forget()
			step.text = err.Error()
		}
		if ctx.Err() == nil && step.text != said && w.Progress != nil {
			said = step.text
			w.Progress(time.Since(w.began), said)
		}
		select {
		case <-ctx.Done():
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return nil, ctx.Err()
			}
			why := ""
			if absent {
				why = w.unknown(context.WithoutCancel(ctx))
			}
			if why == "" {
				why = lastWord(said, step.text) + "; `fairlead proxy-status` says what proxies wait for, and --timeout sets another time"
			}
			return w.result("", fmt.Errorf("%s: not %s within %s: %s", w, w.For, w.Timeout, why))
		case <-time.After(pollInterval):
		}
	}
}

// result is how the wait has ended: with a text, or with an error.
func (w *wait) result(text string, err error) (*Result, error) {
	if err != nil {
		text = err.Error()
	}
	return &Result{
		Kind: w.Key.GetKind(), Namespace: w.Key.GetNamespace(), Name: w.Key.GetName(), For: w.For, Done: err == nil, Message: text,
		Seconds: float64(time.Since(w.began).Milliseconds()) / 1000,
	}, err
}

// lastWord is what was said last before a deadline, whose own error says nothing.
func lastWord(said, text string) string {
	if said != "" && (text == "" || strings.Contains(text, "deadline")) {
		return said
	}
	return text
}

// GroupOf is the API group of a kind, as kinds.Parse returns it, whose objects have conditions; "" for others.
func GroupOf(kind string) string {
	for group, kinds := range statusGroups {
		if slices.Contains(kinds, kind) {
			return group
		}
	}
	return ""
}

// newestGeneration is the generation of the object where it is written: in the API server of a cluster, because a
// config-watcher may not have read it yet, else in config-watcher's store. It is 0 for an object of a file, or none.
func newestGeneration(ctx context.Context, mesh *meshclient.Mesh, key *configv1.ObjectKey) (int64, error) {
	controlPlane, err := mesh.ControlPlane(ctx)
	if err != nil {
		return 0, err
	}
	if controlPlane != nil {
		if generation, err := writtenGeneration(ctx, mesh.Cluster, key); err != nil || generation > 0 {
			return generation, err
		}
	}
	generation := int64(0)
	err = mesh.Call(ctx, func(ctx context.Context, client *configapi.Client) error {
		res, err := client.Get(ctx, &configv1.GetRequest{Key: key, InForce: true})
		if gone := new(configapi.NotFoundError); errors.As(client.Explain(err), &gone) {
			return nil
		}
		generation = res.GetObject().GetGeneration()
		return err
	})
	return generation, err
}

// writtenGeneration is the generation of the object in the API server; 0 if that has none.
func writtenGeneration(ctx context.Context, cluster *meshclient.Cluster, key *configv1.ObjectKey) (int64, error) {
	config, err := cluster.Rest()
	if err != nil {
		return 0, err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return 0, err
	}
	api, err := kube.NewAPI(config)
	if err != nil {
		return 0, err
	}
	groups, err := api.Discovery().ServerGroups()
	if err != nil {
		return 0, kube.Explain(err)
	}
	resource := schema.GroupVersionResource{Group: GroupOf(kinds.NameOf(key)),
		Resource: kinds.Plural(strings.ToLower(key.GetKind()))}
	for _, g := range groups.Groups {
		if g.Name == resource.Group {
			resource.Version = g.PreferredVersion.Version
		}
	}
	if resource.Version == "" {
		return 0, nil // the objects are not in the cluster, but in files or in the store
	}
	o, err := client.Resource(resource).Namespace(key.GetNamespace()).Get(ctx, key.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, kube.Explain(err)
	}
	return o.GetGeneration(), nil
}
