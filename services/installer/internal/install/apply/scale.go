package apply

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/inventory"
)

// The replicas of a workload are the installation's where it has no HorizontalPodAutoscaler, and the autoscaler's where
// it has one. Between the two they keep their number.

// autoscaler is the manager of the replicas that a HorizontalPodAutoscaler has set.
const autoscaler = "kube-controller-manager (scale)"

const replicasField = ".spec.replicas"

// horizontal is the kind of HorizontalPodAutoscalers.
var horizontal = cluster.ID{Group: "autoscaling", Version: "v2", Kind: "HorizontalPodAutoscaler"}

func isAutoscaler(id cluster.ID) bool {
	return id.Kind == horizontal.Kind && id.Group == horizontal.Group
}

// scaled returns the workloads that HorizontalPodAutoscalers among the objects scale, with the fewest Pods of each.
func scaled(all []item) map[cluster.ID]int64 {
	out := map[cluster.ID]int64{}
	for _, it := range all {
		if !isAutoscaler(it.ID) {
			continue
		}
		fewest, found, _ := unstructured.NestedInt64(it.object.Object, "spec", "minReplicas")
		if !found {
			fewest = 1
		}
		out[target(it.object)] = fewest
	}
	return out
}

// target is what an autoscaler scales.
func target(u *unstructured.Unstructured) cluster.ID {
	get := func(field string) string {
		s, _, _ := unstructured.NestedString(u.Object, "spec", "scaleTargetRef", field)
		return s
	}
	group, _, found := strings.Cut(get("apiVersion"), "/")
	if !found {
		group = ""
	}
	return cluster.ID{Group: group, Kind: get("kind"), Namespace: u.GetNamespace(), Name: get("name")}
}

// hold sets the number of replicas of a workload that an autoscaler scales: what the installation has set before stays,
// for without a number an API server makes it one; and there are no fewer than the autoscaler's minimum, for it does
// nothing for a workload at 0. The autoscaler becomes the manager of the number when it changes it.
func (l *comparison) hold(ch *Change) {
	n, wanted, _ := unstructured.NestedInt64(ch.want.Object, "spec", "replicas")
	fewest, autoscaled := l.scaled[ch.Key()]
	switch {
	case wanted:
		ch.Replicas = n
		return
	case !autoscaled:
		return
	}
	ch.Replicas = fewest
	if ch.Live != nil {
		n, _, _ = unstructured.NestedInt64(ch.Live.Object, "spec", "replicas")
	}
	switch {
	case n < fewest:
		n, ch.raised = fewest, true
	case ch.Live == nil || !ownsReplicas(ch.Live): // with a minimum of 0 there may be none
		return
	}
	ch.want = ch.want.DeepCopy()
	_ = unstructured.SetNestedField(ch.want.Object, n, "spec", "replicas") // spec is a mapping
	ch.held = true
}

// raisedAlone says whether a conflict is about the replicas of a workload alone that is raised to its minimum.
func raisedAlone(ch *Change, c *cluster.Conflict) bool {
	return ch.raised && !slices.ContainsFunc(c.Fields, func(f cluster.ConflictField) bool { return f.Field != replicasField })
}

func ownsReplicas(u *unstructured.Unstructured) bool {
	var owned struct {
		Spec map[string]json.RawMessage `json:"f:spec"`
	}
	if json.Unmarshal([]byte(cluster.OwnedFields(u)), &owned) != nil {
		return false
	}
	_, owns := owned.Spec["f:replicas"]
	return owns
}

// lapsed returns a conflict without the replicas that an autoscaler has set which is gone, or goes with what the
// installation has no more: nobody manages these any longer. It is nil if nothing else is in conflict.
func (l *comparison) lapsed(ctx context.Context, ch *Change, c *cluster.Conflict) (*cluster.Conflict, error) {
	rest := slices.DeleteFunc(slices.Clone(c.Fields), func(f cluster.ConflictField) bool {
		return f.Field == replicasField && f.Manager == autoscaler
	})
	if len(rest) == len(c.Fields) {
		return c, nil
	}
	kind := horizontal
	kind.Namespace = ch.Namespace
	list, err := l.client.List(ctx, kind, metav1.ListOptions{})
	if apierrors.IsForbidden(err) {
		return c, nil
	}
	if err != nil {
		return nil, err
	}
	held := inventory.Others(l.others, l.record)
	for i := range list {
		id := cluster.Of(&list[i])
		_, others := held[id.Key()]
		if goes := l.record.Has(id) && !others && owner(&list[i]) == ""; target(&list[i]) == ch.Key() && !goes {
			return c, nil
		}
	}
	if len(rest) == 0 {
		return nil, nil //nolint:nilnil // there is none
	}
	return &cluster.Conflict{ID: c.ID, Fields: rest}, nil
}

// yieldScale returns an object without replicas that an autoscaler has set, the user's own included.
func yieldScale(u *unstructured.Unstructured, fields []cluster.ConflictField) *unstructured.Unstructured {
	out := u.DeepCopy()
	for _, f := range fields {
		if f.Manager == autoscaler {
			unstructured.RemoveNestedField(out.Object, strings.Split(strings.TrimPrefix(f.Field, "."), ".")...)
		}
	}
	return out
}
