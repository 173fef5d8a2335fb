package gateways

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"fairlead.dev/pkg/gatewaydeploy"
	"fairlead.dev/services/installer/internal/gateways/objects"
)

// istioManager is the field manager of Istio's controller.
const istioManager = "istio.io/gateway-controller"

// Repairs of one Gateway that follow each other within repairWindow are put off, from firstDelay on, since somebody
// seems to insist.
const repairWindow = time.Minute

// written is an object as this term has written it.
type written struct {
	// wanted is a hash of what was applied, live of what the API server made of the same fields.
	wanted, live [sha256.Size]byte
	version      string
}

// make writes the objects of a Gateway that differ, and removes those that it has no more. It returns what is in its
// way, and after which time to look again.
func (c *controller) make(
	ctx context.Context,
	k *known,
	gw *gatewayv1.Gateway,
	wanted []objects.Object,
) (foreign []string, again time.Duration,
	err error,
) {
	for _, o := range wanted {
		live, err := c.live(ctx, o)
		if err != nil {
			return nil, 0, err
		}
		state := stateOf(live, gw)
		switch {
		case state == stale:
			return nil, 0, fmt.Errorf("%s %s is of an earlier Gateway of this name, and is not removed yet", o.Kind.Kind, o.GetName())
		case state == others && o.Kind.Kind == "ServiceAccount":
			// Pods with it would have its rights.
			return []string{
				fmt.Sprintf("ServiceAccount %s was not made for this Gateway, so no Pod gets it, and nothing is made: name another by "+
					"annotation %s, or remove that one", o.GetName(), gatewaydeploy.AccountAnnotation),
			}, 0, nil
		case state == others:
			foreign = append(foreign, fmt.Sprintf("%s %s was not made for this Gateway, and is left as it is: name others by annotation %s, or "+
				"remove that one", o.Kind.Kind, o.GetName(), gatewaydeploy.NameAnnotation))
			continue
		}
		wait, err := c.write(ctx, k, o, live)
		if err != nil {
			return nil, 0, err
		}
		if wait > 0 && (again == 0 || wait < again) {
			again = wait
		}
	}
	return foreign, again, c.prune(ctx, k, gw, wanted)
}

// Whose an object is.
type ownership int

const (
	absent ownership = iota
	own
	// stale is of a Gateway of the same name that was deleted; Kubernetes is about to remove it.
	stale
	others
)

func stateOf(live *unstructured.Unstructured, gw *gatewayv1.Gateway) ownership {
	if live == nil {
		return absent
	}
	owner, has := ownerOf(live)
	switch {
	case live.GetLabels()[gatewaydeploy.ManagedLabel] == "" || !has || owner.Name != gw.Name:
		return others
	case owner.UID != gw.UID:
		return stale
	}
	return own
}

// live is an object as it is; nil if it is not there. What is not among those with the managed label is asked for, as
// somebody else's.
func (c *controller) live(ctx context.Context, o objects.Object) (*unstructured.Unstructured, error) {
	stored, _, err := c.children[o.Resource].GetStore().GetByKey(o.GetNamespace() + "/" + o.GetName())
	if u, ok := stored.(*unstructured.Unstructured); ok || err != nil {
		return u, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	u, err := c.resource(o).Get(ctx, o.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return u, err
}

func (c *controller) resource(o objects.Object) dynamic.ResourceInterface {
	return c.objects.Resource(o.Resource).Namespace(o.GetNamespace())
}

// write applies an object if it is not as it was applied. It returns how long to wait if others keep changing it.
func (c *controller) write(
	ctx context.Context,
	k *known,
	o objects.Object,
	live *unstructured.Unstructured,
) (wait time.Duration, err error) {
	key, hash := objectKey{o.Resource, o.GetName()}, sum(o.Object)
	if before, ok := k.written[key]; ok && before.wanted == hash {
		if live != nil && (before.live == sum(project(live.Object, o.Object)) || older(live.GetResourceVersion(), before.version)) {
			return 0, nil
		}
		if wait := c.repair(k); wait > 0 {
			return wait, nil
		}
		c.metrics.repairs.Inc()
		c.Log.Info(
			"an object of a Gateway was changed or deleted by somebody else, and is made again",
			"gateway",
			k.Gateway,
			"kind",
			o.Kind.Kind,
			"name",
			o.GetName(),
		)
	}
	if live != nil && slices.ContainsFunc(live.GetManagedFields(), byIstio) {
		if err := c.takeOver(ctx, o); err != nil {
			return 0, err
		}
	}
	u := o.DeepCopy()
	if live != nil {
		// If that was replaced by another meanwhile, it is a conflict.
		u.SetUID(live.GetUID())
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c.metrics.writes.WithLabelValues(verbApply).Inc()
	now, err := c.resource(o).Apply(ctx, o.GetName(), u, metav1.ApplyOptions{FieldManager: manager, Force: true})
	if err != nil {
		return 0, fmt.Errorf("%s %s: %w", o.Kind.Kind, o.GetName(), err)
	}
	k.written[key] = written{hash, sum(project(now.Object, o.Object)), now.GetResourceVersion()}
	return 0, nil
}

// repair counts a repair of a Gateway, and returns how long it has to wait.
func (c *controller) repair(k *known) time.Duration {
	now := c.clock.Now()
	if now.Sub(k.repaired) > repairWindow+lastDelay {
		k.repairs = 0
	}
	if k.repairs > 0 {
		delay := min(firstDelay<<min(k.repairs-1, 10), lastDelay)
		if wait := k.repaired.Add(delay).Sub(now); wait > 0 {
			return wait
		}
	}
	k.repairs, k.repaired = k.repairs+1, now
	return 0
}

func byIstio(m metav1.ManagedFieldsEntry) bool {
	return m.Manager == istioManager && m.Subresource == "" && m.Operation == metav1.ManagedFieldsOperationApply
}

// takeOver makes the fields of Istio's controller those of this one, so that those that are no longer wanted go when
// the object is applied. Nothing but managedFields changes.
func (c *controller) takeOver(ctx context.Context, o objects.Object) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	u, err := c.resource(o).Get(ctx, o.GetName(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	fields := u.GetManagedFields()
	mine := slices.ContainsFunc(fields, func(m metav1.ManagedFieldsEntry) bool {
		return m.Manager == manager && m.Subresource == "" && m.Operation == metav1.ManagedFieldsOperationApply
	})
	if i := slices.IndexFunc(fields, byIstio); i >= 0 && mine {
		fields = slices.Delete(fields, i, i+1)
	} else if i >= 0 {
		fields[i].Manager = manager
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": u.GetUID(), "resourceVersion": u.GetResourceVersion(),
		"managedFields": fields}})
	if err != nil {
		return err
	}
	c.Log.Info(
		"an object that Istio's controller has made is taken over",
		"namespace",
		o.GetNamespace(),
		"kind",
		o.Kind.Kind,
		"name",
		o.GetName(),
	)
	_, err = c.resource(o).Patch(ctx, o.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: manager})
	return err
}

// prune removes the objects of a Gateway that it has no more.
func (c *controller) prune(ctx context.Context, k *known, gw *gatewayv1.Gateway, wanted []objects.Object) error {
	var errs []error
	for _, kind := range objects.Kinds() {
		found, _ := c.children[kind.Resource].GetIndexer().ByIndex(byOwner, gw.Namespace+"/"+gw.Name)
		for _, o := range found {
			u, ok := o.(*unstructured.Unstructured)
			if !ok || stateOf(u, gw) != own || u.GetDeletionTimestamp() != nil {
				continue
			}
			if slices.ContainsFunc(wanted, func(w objects.Object) bool { return w.Resource == kind.Resource && w.GetName() == u.GetName() }) {
				continue
			}
			uid, background := u.GetUID(), metav1.DeletePropagationBackground
			call, cancel := context.WithTimeout(ctx, callTimeout)
			err := c.objects.Resource(kind.Resource).Namespace(u.GetNamespace()).Delete(call, u.GetName(),
				metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &background})
			cancel()
			if err != nil && !apierrors.IsNotFound(err) {
				errs = append(errs, fmt.Errorf("%s %s, which is no longer wanted: %w", kind.Kind, u.GetName(), err))
				continue
			}
			c.metrics.writes.WithLabelValues(verbDelete).Inc()
			delete(k.written, objectKey{kind.Resource, u.GetName()})
		}
	}
	return errors.Join(errs...)
}

// older reports whether a version of an object was before another one, which this process has seen already.
func older(version, than string) bool {
	a, errA := strconv.ParseUint(version, 10, 64)
	b, errB := strconv.ParseUint(than, 10, 64)
	return errA == nil && errB == nil && a < b
}

// sum is a hash of a tree.
func sum(tree any) [sha256.Size]byte {
	text, err := json.Marshal(tree) // which sorts keys
	if err != nil {
		return [sha256.Size]byte{}
	}
	return sha256.Sum256(text)
}

// project is what an object has in the fields of another one, lists as they are.
func project(from, by map[string]any) map[string]any {
	out := map[string]any{}
	for name, want := range by {
		have, ok := from[name]
		if !ok {
			continue
		}
		inner, isMap := want.(map[string]any)
		if of, both := have.(map[string]any); isMap && both {
			have = project(of, inner)
		}
		out[name] = have
	}
	return out
}
