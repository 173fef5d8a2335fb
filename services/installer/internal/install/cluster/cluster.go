// Package cluster is the engine's connection to a Kubernetes API server. It reads, applies and deletes objects of every
// kind, and turns what the API server answers into errors that say what to do. Packages inventory, wait and apply use
// it.
package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// Manager is the field manager of everything that is applied. It is the same in all releases: fields that one release
// applied are the next one's.
const Manager = "fairlead-installer"

// Oldest is the oldest Kubernetes that an installation runs on: images have no shell, and Pods need preStop.sleep.
// Check refuses an older one before an installation begins, and package precheck tells of it.
const Oldest = "1.30"

const (
	// maxWarnings bounds the warnings of an API server that are kept.
	maxWarnings = 100
	// maxLog bounds what is read of a container's log, in bytes.
	maxLog = 4096
)

// Client is a connection. Its methods are safe for concurrent use.
type Client struct {
	// Host is the API server's address, for messages.
	Host string

	dynamic dynamic.Interface
	disco   discovery.DiscoveryInterface
	mapper  *restmapper.DeferredDiscoveryRESTMapper

	mu       sync.Mutex
	warnings []string
}

// Connect makes a client; it sends nothing. The configuration is package kube's.
func Connect(config *rest.Config) (*Client, error) {
	config = rest.CopyConfig(config)
	config.UserAgent = Manager
	config.QPS = -1 // the API server's own limits count
	client := &Client{Host: config.Host}
	config.WarningHandler, config.WarningHandlerWithContext = nil, client
	var err error
	if client.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return nil, err
	}
	disco, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	client.disco = disco
	client.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco))
	return client, nil
}

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext: it keeps the text for Warnings.
func (c *Client) HandleWarningHeaderWithContext(_ context.Context, code int, _, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if code == 299 && text != "" && len(c.warnings) < maxWarnings && !slices.Contains(c.warnings, text) {
		c.warnings = append(c.warnings, text)
	}
}

// Warnings returns what the API server has warned of since the last call, each once.
func (c *Client) Warnings() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.warnings
	c.warnings = nil
	return all
}

// Check asks the API server for its version, and refuses one that is too old.
func (c *Client) Check(ctx context.Context) error {
	text, err := c.Version(ctx)
	if err != nil {
		return err
	}
	v, err := version.ParseGeneric(text)
	if err != nil {
		return fmt.Errorf("the API server at %s says that it is version %q: %w", c.Host, text, err)
	}
	if v.LessThan(version.MustParseGeneric(Oldest)) {
		return fmt.Errorf("the API server at %s is Kubernetes %s; %s is the oldest that can be installed on: upgrade the cluster first", c.Host,
			text, Oldest)
	}
	return nil
}

// Version returns the API server's version, "v1.36.3".
func (c *Client) Version(ctx context.Context) (string, error) {
	// The request of discovery.ServerVersion, with a context.
	raw, err := c.disco.RESTClient().Get().AbsPath("/version").Do(ctx).Raw()
	if err != nil {
		return "", c.unreachable(err)
	}
	var answer struct {
		GitVersion string `json:"gitVersion"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return "", fmt.Errorf("the API server at %s answers no version: %w", c.Host, err)
	}
	return answer.GitVersion, nil
}

func (c *Client) unreachable(err error) error {
	if apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		return fmt.Errorf("the API server at %s: %w; check --kubeconfig and --context", c.Host, err)
	}
	return fmt.Errorf("the API server at %s cannot be reached: %w; check --kubeconfig and --context", c.Host, err)
}

// Reset forgets which kinds the API server has, after CustomResourceDefinitions were applied.
func (c *Client) Reset() { c.mapper.Reset() }

// Scope says whether objects of a kind are in namespaces. The error is meta.IsNoMatchError for a kind that the API
// server does not have.
func (c *Client) Scope(id ID) (namespaced bool, err error) {
	m, err := c.mapping(id)
	if err != nil {
		return false, err
	}
	return m.Scope.Name() == meta.RESTScopeNameNamespace, nil
}

func (c *Client) mapping(id ID) (*meta.RESTMapping, error) {
	kind := schema.GroupKind{Group: id.Group, Kind: id.Kind}
	var versions []string
	if id.Version != "" {
		versions = append(versions, id.Version)
	}
	m, err := c.mapper.RESTMapping(kind, versions...)
	if err != nil && !meta.IsNoMatchError(err) {
		return nil, c.unreachable(err)
	}
	return m, err
}

// resource is where an object's requests go.
func (c *Client) resource(id ID) (dynamic.ResourceInterface, error) {
	m, err := c.mapping(id)
	if err != nil {
		return nil, err
	}
	if m.Scope.Name() == meta.RESTScopeNameNamespace {
		return c.dynamic.Resource(m.Resource).Namespace(id.Namespace), nil
	}
	return c.dynamic.Resource(m.Resource), nil
}

// Dynamic is the client itself, for who watches.
func (c *Client) Dynamic() dynamic.Interface { return c.dynamic }

// Resource is what the API server calls a kind. The error is meta.IsNoMatchError for one that it does not have.
func (c *Client) Resource(id ID) (schema.GroupVersionResource, error) {
	m, err := c.mapping(id)
	if err != nil {
		return schema.GroupVersionResource{}, err
	}
	return m.Resource, nil
}

// Get returns an object; nil if it, or its kind, is not there.
func (c *Client) Get(ctx context.Context, id ID) (*unstructured.Unstructured, error) {
	r, err := c.resource(id)
	if meta.IsNoMatchError(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	u, err := r.Get(ctx, id.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return u, c.explain(ctx, id, err, "get")
}

// List returns the objects of a kind: of one namespace, or of all if it is empty; none if the kind is not there.
func (c *Client) List(ctx context.Context, kind ID, options metav1.ListOptions) ([]unstructured.Unstructured, error) {
	m, err := c.mapping(kind)
	if meta.IsNoMatchError(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var r dynamic.ResourceInterface = c.dynamic.Resource(m.Resource)
	if kind.Namespace != "" {
		r = c.dynamic.Resource(m.Resource).Namespace(kind.Namespace)
	}
	var all []unstructured.Unstructured
	if options.Limit == 0 {
		options.Limit = 500
	}
	for {
		list, err := r.List(ctx, options)
		if apierrors.IsNotFound(err) {
			return all, nil // the kind has just gone
		}
		if err != nil {
			return nil, c.explain(ctx, kind, err, "list")
		}
		all = append(all, list.Items...)
		if options.Continue = list.GetContinue(); options.Continue == "" {
			return all, nil
		}
	}
}

// ApplyOptions of Apply.
type ApplyOptions struct {
	// DryRun changes nothing, and returns what the object would be.
	DryRun bool
	// Force takes fields over from other managers.
	Force bool
}

// Apply applies an object on the server's side. A conflict is a *Conflict.
func (c *Client) Apply(ctx context.Context, u *unstructured.Unstructured, o ApplyOptions) (*unstructured.Unstructured, error) {
	id := Of(u)
	r, err := c.resource(id)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(u.Object)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", id, err)
	}
	options := metav1.PatchOptions{FieldManager: Manager, Force: &o.Force, FieldValidation: metav1.FieldValidationWarn}
	if o.DryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	got, err := r.Patch(ctx, id.Name, types.ApplyPatchType, text, options)
	return got, c.explain(ctx, id, err, "patch", "create")
}

// Try says whether an object could be created, without effect.
func (c *Client) Try(ctx context.Context, u *unstructured.Unstructured) error {
	id := Of(u)
	r, err := c.resource(id)
	if err != nil {
		return err
	}
	_, err = r.Create(ctx, u, metav1.CreateOptions{FieldManager: Manager, DryRun: []string{metav1.DryRunAll}})
	return c.explain(ctx, id, err, "create")
}

// Put creates an object without a resourceVersion, and else replaces it if it is still that version.
func (c *Client) Put(ctx context.Context, u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	id := Of(u)
	r, err := c.resource(id)
	if err != nil {
		return nil, err
	}
	if u.GetResourceVersion() == "" {
		u, err = r.Create(ctx, u, metav1.CreateOptions{FieldManager: Manager})
	} else {
		u, err = r.Update(ctx, u, metav1.UpdateOptions{FieldManager: Manager})
	}
	return u, c.explain(ctx, id, err, "create", "update")
}

// Delete deletes an object if it still has a UID; empty means any. It returns before finalizers have ended. What is not
// there is no error.
func (c *Client) Delete(ctx context.Context, id ID, uid types.UID) error {
	r, err := c.resource(id)
	if meta.IsNoMatchError(err) {
		return nil
	}
	if err != nil {
		return err
	}
	background := metav1.DeletePropagationBackground
	options := metav1.DeleteOptions{PropagationPolicy: &background}
	if uid != "" {
		options.Preconditions = &metav1.Preconditions{UID: &uid}
	}
	if err = r.Delete(ctx, id.Name, options); apierrors.IsNotFound(err) {
		return nil
	}
	return c.explain(ctx, id, err, "delete")
}

// LastLog returns the last line that a container has logged, of its previous run if it has one; empty if there is none,
// or it cannot be read.
func (c *Client) LastLog(ctx context.Context, namespace, pod, container string) string {
	for _, previous := range []string{"true", "false"} {
		body, err := c.disco.RESTClient().Get().AbsPath("/api/v1/namespaces", namespace, "pods", pod, "log").
			Param("container", container).Param("previous", previous).Param("tailLines", "1").Stream(ctx)
		if err != nil {
			continue
		}
		text, err := io.ReadAll(io.LimitReader(body, maxLog))
		_ = body.Close()
		if line := strings.TrimSpace(string(text)); err == nil && line != "" {
			return line
		}
	}
	return ""
}

// NamespacedKinds returns the kinds of objects in namespaces that can be listed and deleted.
func (c *Client) NamespacedKinds() ([]ID, error) {
	lists, err := c.disco.ServerPreferredNamespacedResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return nil, c.unreachable(err)
	}
	var kinds []ID
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue
		}
		for _, r := range list.APIResources {
			if slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "delete") {
				kinds = append(kinds, ID{Group: gv.Group, Version: gv.Version, Kind: r.Kind})
			}
		}
	}
	return kinds, nil
}

var _ rest.WarningHandlerWithContext = (*Client)(nil)
