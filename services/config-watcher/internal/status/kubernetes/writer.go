// Package kubernetes writes statuses into the objects of an API server. Writer.Write changes the subresource `status`
// of one object. The replica that holds the lease of LeaseName writes.
package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/status"
)

const (
	// attempts is how often one write is tried when others change the object meanwhile.
	attempts = 4
	// pauseForbidden is how long no request is made for a kind whose status may not be written.
	pauseForbidden = 30 * time.Second
	// pageSize and maxListed bound the objects of a kind that are listed at once, and remembered.
	pageSize  = 500
	maxListed = 50_000
)

// LeaseName is the name of the lease for a revision of the control plane; "" is the only one.
func LeaseName(revision string) string {
	name := "fairlead-config-watcher-status"
	if revision != "" {
		name += "-" + strings.Trim(strings.ToLower(strings.ReplaceAll(revision, "_", "-")), "-.")
	}
	return name
}

// Config of a Writer. All fields are required.
type Config struct {
	API *rest.Config
	// QPS and Burst bound the requests a second.
	QPS   float32
	Burst int
	Clock clock.Clock
}

// Writer implements status.Writer. It is safe for concurrent use.
type Writer struct {
	client dynamic.Interface
	// raw reads and writes single objects, of which most is not decoded.
	raw   rest.Interface
	clock clock.Clock

	mu sync.Mutex
	// listed are a kind's objects as this replica has found them when it began to write. Each spares the first write of
	// an object that has its status already, and one request if it has another one.
	listed map[schema.GroupVersionResource]map[types.NamespacedName]*current
	// forbidden is why the status of a kind's objects may not be written, and until when that is not tried again.
	forbidden map[schema.GroupVersionResource]refusal
}

// current is what is read of an object.
type current struct {
	Metadata struct {
		UID             types.UID `json:"uid"`
		Generation      int64     `json:"generation"`
		ResourceVersion string    `json:"resourceVersion"`
	} `json:"metadata"`
	Status map[string]any `json:"status"`
}

type refusal struct {
	err   error
	until time.Time
}

// NewWriter returns a writer with a client of its own, so that statuses do not delay the reading of objects.
func NewWriter(cfg Config) (*Writer, error) {
	api := rest.CopyConfig(cfg.API)
	api.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(cfg.QPS, cfg.Burst)
	client, err := dynamic.NewForConfig(api)
	if err != nil {
		return nil, err
	}
	single := dynamic.ConfigFor(api)
	single.GroupVersion, single.APIPath = nil, "/apis"
	raw, err := rest.UnversionedRESTClientFor(single)
	if err != nil {
		return nil, err
	}
	w := &Writer{client: client, raw: raw, clock: cfg.Clock}
	w.Reset()
	return w, nil
}

// Reset forgets what was read. Call it when the replica becomes the leader: another one has written meanwhile.
func (w *Writer) Reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listed = map[schema.GroupVersionResource]map[types.NamespacedName]*current{}
	w.forbidden = map[schema.GroupVersionResource]refusal{}
}

// Write implements status.Writer.
func (w *Writer) Write(ctx context.Context, to status.Target, s *status.Status) (written bool, err error) {
	gv, err := schema.ParseGroupVersion(to.APIVersion)
	if err != nil {
		return false, err
	}
	gvr := resourceOf(gv.WithKind(to.Key.Kind))
	if err := w.paused(gvr); err != nil {
		return false, err
	}
	name := types.NamespacedName{Namespace: to.Key.Namespace, Name: to.Key.Name}
	o := w.found(ctx, gvr, name)
	if o != nil {
		patch, err := patchOf(o, to, s, w.clock.Now())
		if err == nil && patch == nil {
			return false, nil
		}
		if err != nil {
			o = nil // it has changed since
		}
	}
	for range attempts {
		if o == nil {
			if o, err = w.get(ctx, gvr, name); err != nil {
				break
			}
		}
		var patch []byte
		if patch, err = patchOf(o, to, s, w.clock.Now()); err != nil || patch == nil {
			return false, err
		}
		if err = w.patch(ctx, gvr, name, patch); err == nil {
			return true, nil
		}
		if !apierrors.IsConflict(err) {
			break
		}
		o = nil
	}
	switch {
	case apierrors.IsNotFound(err):
		return false, status.ErrGone
	case apierrors.IsForbidden(err):
		err = fmt.Errorf("%w; allow config-watcher's service account to get %s.%s and to patch their status", err, gvr.Resource, gvr.Group)
		w.mu.Lock()
		w.forbidden[gvr] = refusal{err, w.clock.Now().Add(pauseForbidden)}
		w.mu.Unlock()
	}
	return false, err
}

// pathOf is the path of an object, or of a part of it.
func pathOf(gvr schema.GroupVersionResource, name types.NamespacedName, part ...string) []string {
	out := []string{"apis", gvr.Group, gvr.Version}
	if name.Namespace != "" {
		out = append(out, "namespaces", name.Namespace)
	}
	return append(append(out, gvr.Resource, name.Name), part...)
}

// get reads what Merge needs of an object.
func (w *Writer) get(ctx context.Context, gvr schema.GroupVersionResource, name types.NamespacedName) (*current, error) {
	text, err := w.raw.Get().AbsPath(pathOf(gvr, name)...).Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	out := &current{}
	return out, utiljson.Unmarshal(text, out)
}

// patch changes the status of an object. The answer repeats the object, and is not decoded.
func (w *Writer) patch(ctx context.Context, gvr schema.GroupVersionResource, name types.NamespacedName, patch []byte) error {
	return w.raw.Patch(types.MergePatchType).AbsPath(pathOf(gvr, name, "status")...).Body(patch).Do(ctx).Error()
}

// resourceOf is the resource of a kind that the mesh writes the status of.
func resourceOf(kind schema.GroupVersionKind) schema.GroupVersionResource {
	plural, singular := meta.UnsafeGuessKindToResource(kind)
	switch kind.Kind { // where client-go guesses "gatewaies" and "xmeshs"
	case "Gateway":
		plural.Resource = singular.Resource + "s"
	case "XMesh":
		plural.Resource = singular.Resource + "es"
	}
	return plural
}

// paused is why the status of a kind's objects is not written at present; nil if it is.
func (w *Writer) paused(gvr schema.GroupVersionResource) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, known := w.forbidden[gvr]
	switch {
	case !known:
		return nil
	case w.clock.Now().Before(r.until):
		return r.err
	}
	delete(w.forbidden, gvr)
	return nil
}

// found returns an object as it was found when the kind was listed, once; nil if it is not known. The first call for a
// kind lists it.
func (w *Writer) found(ctx context.Context, gvr schema.GroupVersionResource, name types.NamespacedName) *current {
	w.mu.Lock()
	defer w.mu.Unlock()
	objects, listed := w.listed[gvr]
	if !listed {
		objects = w.list(ctx, gvr)
		w.listed[gvr] = objects
	}
	o := objects[name]
	delete(objects, name)
	return o
}

// list reads what Merge needs of a kind's objects. Without an answer, each object is read when its status is written.
func (w *Writer) list(ctx context.Context, gvr schema.GroupVersionResource) map[types.NamespacedName]*current {
	out := map[types.NamespacedName]*current{}
	options := metav1.ListOptions{Limit: pageSize}
	for len(out) < maxListed {
		page, err := w.client.Resource(gvr).List(ctx, options)
		if err != nil {
			return out
		}
		for i := range page.Items {
			o := &page.Items[i]
			kept := &current{}
			kept.Metadata.UID, kept.Metadata.Generation, kept.Metadata.ResourceVersion = o.GetUID(), o.GetGeneration(), o.GetResourceVersion()
			kept.Status, _ = o.Object["status"].(map[string]any)
			out[types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}] = kept
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			break
		}
	}
	return out
}

// patchOf returns the merge patch that brings an object's status up to date; nil if it is. The patch names the version
// that it was made from, so that it takes nothing back that others write meanwhile.
func patchOf(o *current, to status.Target, s *status.Status, now time.Time) ([]byte, error) {
	switch {
	case string(o.Metadata.UID) != to.UID:
		return nil, status.ErrGone
	case o.Metadata.Generation != to.Generation:
		return nil, status.ErrOutdated
	}
	before := o.Status
	after, changed := status.Merge(before, s, now)
	messages, _ := before[fieldMessages].([]any)
	if own := messagesOf(s.Findings); s.API == nil && !slices.EqualFunc(messages, own, sameCode) {
		changed = true
		after[fieldMessages] = own
	}
	if !changed {
		return nil, nil
	}
	for name, value := range before {
		if same, _ := json.Marshal(value); string(same) == marshalled(after[name]) {
			delete(after, name) // others' fields stay out of the patch
		}
	}
	if len(after) == 0 {
		return nil, errors.New("a change of the status has no content")
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": o.Metadata.ResourceVersion}, "status": maps.Clone(after)})
}

func marshalled(v any) string {
	text, _ := json.Marshal(v)
	return string(text)
}

// fieldMessages is the field of a status with what is found about the object, as in Istio.
const fieldMessages = "validationMessages"

// messagesOf are the fields that the CustomResourceDefinitions keep of a message. What it says is in the condition
// Accepted.
func messagesOf(codes []string) []any {
	var out []any
	for _, code := range codes {
		out = append(out, map[string]any{
			"type": map[string]any{"name": code, "code": code}, "level": "WARNING",
			"documentationUrl": finding.Code(code).Reference(),
		})
	}
	return out
}

// sameCode reports whether two messages have one code.
func sameCode(a, b any) bool {
	code := func(v any) any {
		m, _ := v.(map[string]any)
		t, _ := m["type"].(map[string]any)
		return t["code"]
	}
	return code(a) != nil && code(a) == code(b)
}
