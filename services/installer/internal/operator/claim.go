package operator

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/inventory"
)

// claim says why a resource may not decide what a revision is; empty if it may. A revision has one resource: the one
// that its inventory names, else the oldest. A resource has one revision, that of the inventories that name it.
func (r *reconciler) claim(ctx context.Context, it *resource, revision, namespace string, records []*inventory.Record) (string, error) {
	for _, rec := range records {
		switch {
		case rec.State == inventory.Removed:
		case rec.Holder.Is(it.GetNamespace(), it.GetName()):
			if rec.Revision != revision || rec.Namespace != namespace {
				return fmt.Sprintf("it has installed revision %s in namespace %s, and asks for revision %s in namespace %s now; nothing is changed: "+
					"proxies would lose their control plane. Set spec.revision and values.global.istioNamespace back, and make a second IstioOperator "+
					"for the other revision",
					rec.Revision, rec.Namespace, revision, namespace), nil
			}
		case rec.Holder != nil && rec.Revision == revision:
			live, err := r.client.Get(ctx, rec.Holder.ID())
			if err != nil {
				return "", fmt.Errorf("revision %s is held by %s, which cannot be read: %w", revision, rec.Holder.ID(), err)
			}
			if live != nil {
				return held(revision, rec.Holder.ID()), nil
			}
		}
	}
	for _, other := range r.resources() {
		if other.key() == it.key() {
			break // the rest is younger
		}
		if r.revision(other) == revision {
			return held(revision, cluster.Of(other.Unstructured)), nil
		}
	}
	return "", nil
}

func held(revision string, by cluster.ID) string {
	return fmt.Sprintf("revision %s is held by %s; nothing is changed: give this one another spec.revision, or delete one of the two",
		revision, by)
}

// foreign says whether resources of a revision are reconciled by operators with another --revision.
func (r *reconciler) foreign(ctx context.Context, revision string) (bool, error) {
	if r.options.Revision != "" {
		return revision != r.options.Revision, nil
	}
	if revision == inventory.Default {
		return false, nil
	}
	return Running(ctx, r.client, r.options.Namespace+"/"+LeaseName(revision))
}

// Running says whether some operator holds a lease, NAMESPACE/NAME.
func Running(ctx context.Context, c *cluster.Client, lease string) (bool, error) {
	namespace, name, _ := strings.Cut(lease, "/")
	u, err := c.Get(ctx, cluster.ID{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease", Namespace: namespace, Name: name})
	if err != nil || u == nil {
		return false, err
	}
	return fresh(u, time.Now()), nil
}

// fresh judges a lease. Clocks of several machines differ, so that one is taken for lost only after twice its time.
func fresh(lease *unstructured.Unstructured, now time.Time) bool {
	holder, _, _ := unstructured.NestedString(lease.Object, "spec", "holderIdentity")
	seconds, _, _ := unstructured.NestedInt64(lease.Object, "spec", "leaseDurationSeconds")
	text, _, _ := unstructured.NestedString(lease.Object, "spec", "renewTime")
	renewed, err := time.Parse(time.RFC3339Nano, text)
	return holder != "" && err == nil && now.Before(renewed.Add(2*time.Duration(seconds)*time.Second))
}
