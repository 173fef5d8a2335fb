package accounts

import (
	"context"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/services/ca/internal/holders"
)

const (
	// lookEvery is the time between two looks for deleted Pods, askPerLook how many Pods that the watch does not have
	// the API server is asked about at each.
	lookEvery  = time.Minute
	askPerLook = 500
)

// RunDeleted tells gone the UIDs of Pods that were deleted, among those with certificates, every minute until ctx ends.
// Nobody has their keys any more, so that no rotation waits for them. What the watch does not have, the API server is
// asked about: a watch may lag behind what was just made.
func (r *Registry) RunDeleted(ctx context.Context, of func() []holders.Pod, gone func(podUIDs []string)) error {
	for {
		if uids := r.deleted(ctx, of()); len(uids) > 0 {
			gone(uids)
		}
		if !clock.Sleep(ctx, r.clock, lookEvery) {
			return nil
		}
	}
}

func (r *Registry) deleted(ctx context.Context, of []holders.Pod) (uids []string) {
	if !r.pods.informer.HasSynced() {
		return nil
	}
	asked := 0
	for _, p := range of {
		if o, found, _ := r.pods.store.GetByKey(p.Name); found { // a map's error: never
			if m, ok := o.(*metav1.PartialObjectMetadata); ok && string(m.UID) == p.UID {
				continue
			}
		}
		if asked++; asked > askPerLook {
			return uids
		}
		if r.podGone(ctx, p) {
			uids = append(uids, p.UID)
		}
	}
	return uids
}

func (r *Registry) podGone(ctx context.Context, p holders.Pod) bool {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	namespace, name, _ := strings.Cut(p.Name, "/")
	m, err := r.client.Resource(pods).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	return apierrors.IsNotFound(err) || err == nil && string(m.UID) != p.UID
}
