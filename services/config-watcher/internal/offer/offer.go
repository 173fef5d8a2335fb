// Package offer tells an API server with the Gateway API what the mesh has to offer: it creates the GatewayClasses that
// every mesh has, as istiod does, and an XMesh, and says in the status of XMeshes which features of the Gateway API the
// mesh supports. The status of GatewayClasses comes from package gatewayapi.
package offer

import (
	"context"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/gatewaydeploy"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/config-watcher/internal/status"
)

const (
	// absentInterval is how often an API server without one of the kinds is asked whether it has it now, and
	// lookInterval how often one with them, whether an object is gone or new.
	absentInterval = 5 * time.Second
	lookInterval   = 30 * time.Second
	// callTimeout bounds the requests of one look at a kind.
	callTimeout = 10 * time.Second
	// manager is the field manager of what is created.
	manager = "fairlead-config-watcher"
)

var (
	classResource = schema.GroupVersionResource{Group: contract.GroupGatewayAPI, Version: "v1", Resource: "gatewayclasses"}
	meshResource  = schema.GroupVersionResource{Group: "gateway.networking.x-k8s.io", Version: "v1alpha1", Resource: "xmeshes"}
)

// Config of an Offer. All fields are required.
type Config struct {
	API *rest.Config
	// Writer writes the statuses of XMeshes.
	Writer status.Writer
	// Writes reports whether this control plane writes the status of a cluster-wide object with these labels.
	Writes func(labels map[string]string) bool
	Log    *slog.Logger
	Clock  clock.Clock
}

// Offer creates the objects that are absent. One that is there stays as it is, whoever has made it.
type Offer struct {
	cfg    Config
	client dynamic.Interface
	// told are the last failures that the log has, by resource.
	told map[string]string
}

// New returns an Offer; Run does the work.
func New(cfg Config) (*Offer, error) {
	api := rest.CopyConfig(cfg.API)
	api.RateLimiter = nil // few requests, which shall not wait for others
	client, err := dynamic.NewForConfig(api)
	if err != nil {
		return nil, err
	}
	return &Offer{cfg: cfg, client: client, told: map[string]string{}}, nil
}

// Run works until ctx ends. It is for one replica at a time.
func (o *Offer) Run(ctx context.Context) {
	for {
		classes := o.look(ctx, classResource, "get and create gatewayclasses.gateway.networking.k8s.io", o.createClasses)
		meshes := o.look(ctx, meshResource, "list, get and create xmeshes.gateway.networking.x-k8s.io and patch their status", o.meshes)
		wait := absentInterval
		if classes && meshes {
			wait = lookInterval
		}
		select {
		case <-ctx.Done():
			return
		case <-o.cfg.Clock.After(wait):
		}
	}
}

// look makes one look at a kind, and reports whether the API server has the kind. It tells of each failure once.
func (o *Offer) look(ctx context.Context, of schema.GroupVersionResource, rights string, at func(context.Context) error) (there bool) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := at(ctx)
	switch {
	case err == nil:
		delete(o.told, of.Resource)
	case apierrors.IsNotFound(err): // the API server has no such kind
		return false
	case ctx.Err() == nil && o.told[of.Resource] != err.Error():
		o.told[of.Resource] = err.Error()
		o.cfg.Log.Warn("what the mesh offers to users of the Gateway API cannot be written; it is tried again",
			"resource", of.GroupResource().String(), "error", err, "remedy", "let config-watcher's service account "+rights)
	}
	return true
}

// create creates an object that is absent.
func (o *Offer) create(ctx context.Context, of schema.GroupVersionResource, kind, name string, spec map[string]any) error {
	_, err := o.client.Resource(of).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": of.GroupVersion().String(), "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec,
	}}, metav1.CreateOptions{FieldManager: manager})
	switch {
	case apierrors.IsAlreadyExists(err):
		return nil
	case err != nil:
		return err
	}
	o.cfg.Log.Info("object of the Gateway API created", "kind", kind, "name", name)
	return nil
}

// createClasses creates the GatewayClasses that are absent.
func (o *Offer) createClasses(ctx context.Context) error {
	for _, class := range gatewaydeploy.Classes() {
		_, err := o.client.Resource(classResource).Get(ctx, class.Name, metav1.GetOptions{})
		switch {
		case err == nil:
			continue
		case !apierrors.IsNotFound(err):
			return err
		}
		err = o.create(ctx, classResource, "GatewayClass", class.Name, map[string]any{
			"controllerName": string(class.Controller), "description": class.Description,
		})
		if err != nil {
			return err
		}
	}
	return nil
}
