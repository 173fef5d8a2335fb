// Package gatewayclass creates the mesh's own GatewayClasses where an API server has the Gateway API, as istiod does.
package gatewayclass

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
	"fairlead.dev/proto/fairlead/contract"
)

const (
	// absentInterval is how often an API server without the Gateway API is asked whether it has it now, and
	// lookInterval how often one with it, whether a class is gone.
	absentInterval = 5 * time.Second
	lookInterval   = 30 * time.Second
	// callTimeout bounds a request.
	callTimeout = 10 * time.Second
)

// classes are those that are created, as in Istio but for fairlead.
var classes = []struct{ name, controller, description string }{
	{"istio", contract.GatewayControllerIstio, "Served by the mesh, with a deployment for each Gateway"},
	{"fairlead", contract.GatewayControllerFairlead, "Served by the mesh, with a deployment for each Gateway"},
	{"istio-remote", contract.GatewayControllerUnmanaged, "For Gateways whose workloads are in another cluster"},
}

var resource = schema.GroupVersionResource{Group: contract.GroupGatewayAPI, Version: "v1", Resource: "gatewayclasses"}

// Config of a Creator. All fields are required.
type Config struct {
	API   *rest.Config
	Log   *slog.Logger
	Clock clock.Clock
}

// Creator creates the classes that are absent. One that is there stays as it is, whoever has made it.
type Creator struct {
	cfg    Config
	client dynamic.NamespaceableResourceInterface
	// told is the last failure that the log has.
	told string
}

// New returns a creator; Run does the work.
func New(cfg Config) (*Creator, error) {
	api := rest.CopyConfig(cfg.API)
	api.RateLimiter = nil // few requests, which shall not wait for others
	client, err := dynamic.NewForConfig(api)
	if err != nil {
		return nil, err
	}
	return &Creator{cfg: cfg, client: client.Resource(resource)}, nil
}

// Run creates classes until ctx ends. It is for one replica at a time.
func (c *Creator) Run(ctx context.Context) {
	for {
		wait := lookInterval
		err := c.create(ctx)
		switch {
		case err == nil:
			c.told = ""
		case apierrors.IsNotFound(err): // the API server has no such kind
			wait = absentInterval
		case ctx.Err() == nil && c.told != err.Error():
			c.told = err.Error()
			c.cfg.Log.Warn("GatewayClasses of the mesh cannot be created; it is tried again", "error", err,
				"remedy", "let config-watcher's service account get and create gatewayclasses.gateway.networking.k8s.io")
		}
		select {
		case <-ctx.Done():
			return
		case <-c.cfg.Clock.After(wait):
		}
	}
}

// create creates the classes that are absent.
func (c *Creator) create(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for _, class := range classes {
		_, err := c.client.Get(ctx, class.name, metav1.GetOptions{})
		if err == nil {
			continue
		}
		if !apierrors.IsNotFound(err) {
			return err
		}
		_, err = c.client.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": resource.GroupVersion().String(), "kind": "GatewayClass", "metadata": map[string]any{"name": class.name},
			"spec": map[string]any{"controllerName": class.controller, "description": class.description},
		}}, metav1.CreateOptions{FieldManager: "fairlead-config-watcher"})
		switch {
		case apierrors.IsAlreadyExists(err):
		case err != nil:
			return err
		default:
			c.cfg.Log.Info("GatewayClass created", "name", class.name, "controller", class.controller)
		}
	}
	return nil
}
