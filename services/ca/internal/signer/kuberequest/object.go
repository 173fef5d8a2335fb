package kuberequest

import (
	"context"
	"errors"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/services/ca/internal/signer"
)

const (
	// approveTries bounds the updates of an object that others change, too.
	approveTries = 5
	// deleteTimeout bounds one deletion, and how long Run waits for those under way when it ends.
	deleteTimeout = 10 * time.Second
	// A deletion that fails is tried again after retryPeriod, which doubles to maxRetryPeriod.
	retryPeriod    = time.Second
	maxRetryPeriod = 30 * time.Second
	// orphanAge is how long an object of another process is seen before it counts as left behind. No process keeps one
	// for as long as that, and clocks do not matter.
	orphanAge = 5 * time.Minute
	// Objects in one answer to a list, and answers for one list.
	listPage, maxListPages = 500, 20
)

// approve sets the condition Approved, unless somebody has decided already.
func (i *Issuer) approve(ctx context.Context, o *unstructured.Unstructured, signedBy string) *signer.Error {
	doing := "approve " + i.object(o.GetName())
	for try := 1; ; try++ {
		conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		if slices.ContainsFunc(conditions, decided) {
			return nil
		}
		conditions = append(conditions, map[string]any{
			"type": "Approved", "status": "True", "reason": "ApprovedByFairlead", "message": "the ca has authenticated the workload",
			"lastTransitionTime": i.deps.Clock.Now().UTC().Format(time.RFC3339),
		})
		if err := unstructured.SetNestedSlice(o.Object, conditions, "status", "conditions"); err != nil {
			return signer.Errorf(signer.Away, "%s: %w", doing, err)
		}
		_, err := i.objects.Update(ctx, o, metav1.UpdateOptions{}, i.kind.Approval)
		switch {
		case err == nil:
			return nil
		case errors.Is(ctx.Err(), context.Canceled):
			return i.abandoned(o.GetName())
		case apierrors.IsNotFound(err):
			return signer.Errorf(signer.Away, "%s: it was deleted before %s answered; ask again, and see who deletes such objects", doing, signedBy)
		case !apierrors.IsConflict(err) || try == approveTries:
			return apiError(err, doing, i.kind.ApproveRights)
		}
		if o, err = i.objects.Get(ctx, o.GetName(), metav1.GetOptions{}); err != nil {
			return apiError(err, doing, i.kind.verbs("get"))
		}
	}
}

func decided(condition any) bool {
	c, _ := condition.(map[string]any)
	return c["type"] == "Approved" || c["type"] == "Denied"
}

// drop deletes an object and then gives its place back, so that there are never more objects than places: where objects
// cannot be deleted, no more are made. It tries until it succeeds or Run ends.
func (i *Issuer) drop(m made) {
	defer i.leave()
	for wait := retryPeriod; ; wait = min(2*wait, maxRetryPeriod) {
		err := i.delete(m.name, m.uid)
		if err == nil {
			i.undeleted.Store(nil)
			return
		}
		if i.undeleted.Swap(err) == nil {
			i.deps.Log.Error("objects of the signer are not deleted; the ca tries again", "error", err)
		}
		select {
		case <-i.ended:
			return
		case <-i.deps.Clock.After(wait):
		}
	}
}

// delete deletes an object, whatever has become of the request. An object that is not there is none of this process.
func (i *Issuer) delete(name string, uid types.UID) *signer.Error {
	ctx, cancel := context.WithTimeout(context.Background(), deleteTimeout)
	defer cancel()
	var o metav1.DeleteOptions
	if uid != "" {
		o.Preconditions = &metav1.Preconditions{UID: &uid}
	}
	err := i.objects.Delete(ctx, name, o)
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return apiError(err, "delete "+i.object(name), i.kind.verbs("delete"))
}

// settle waits until all objects are deleted, but not for long. Nobody gets a place afterwards.
func (i *Issuer) settle() {
	timeout := time.After(deleteTimeout)
	for range cap(i.places) {
		select {
		case i.places <- struct{}{}:
		case <-timeout:
			return
		}
	}
}

// collectOrphans deletes what ended processes have left behind, until ctx ends.
func (i *Issuer) collectOrphans(ctx context.Context) {
	var before map[types.UID]bool
	for {
		seen, err := i.sweep(ctx, before)
		if err == nil {
			before = seen
		} else if ctx.Err() == nil {
			i.deps.Log.Warn("objects that an ended ca may have left behind are not collected; the ca tries again", "error", err)
		}
		if !clock.Sleep(ctx, i.deps.Clock, orphanAge) {
			return
		}
	}
}

// sweep deletes those objects of other processes that an earlier sweep has seen. It returns those that are left.
func (i *Issuer) sweep(ctx context.Context, before map[types.UID]bool) (map[types.UID]bool, error) {
	seen := map[types.UID]bool{}
	o := metav1.ListOptions{LabelSelector: managedBy + "," + processLabel + "," + processLabel + "!=" + i.process, Limit: listPage}
	deleted := 0
	for range maxListPages {
		list, err := i.listed(ctx, o)
		if err != nil {
			return nil, err
		}
		for _, object := range list.Items {
			if !before[object.GetUID()] {
				seen[object.GetUID()] = true
				continue
			}
			if err := i.delete(object.GetName(), object.GetUID()); err != nil {
				return nil, err
			}
			deleted++
		}
		if o.Continue = list.GetContinue(); o.Continue == "" {
			break
		}
	}
	if deleted > 0 {
		i.deps.Log.Info("objects that an ended ca has left behind are deleted", "kind", i.kind.Name, "count", deleted)
	}
	return seen, nil
}

func (i *Issuer) listed(ctx context.Context, o metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	ctx, cancel := context.WithTimeout(ctx, deleteTimeout)
	defer cancel()
	list, err := i.watched.List(ctx, o)
	if err != nil {
		return nil, apiError(err, "list "+i.kind.Resource.GroupResource().String(), i.kind.verbs("list"))
	}
	return list, nil
}
