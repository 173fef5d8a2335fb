package apply

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/tag"
)

// injected is the annotation of Pods that have a proxy, which says in revisionLabel whose it is.
const injected = "sidecar.istio.io/status"

// Use says who uses a revision.
type Use struct {
	Revision string
	// Proxies are the Pods with a proxy of the revision that do not go with it.
	Proxies int
	// Namespaces ask for the revision, or for a tag of it.
	Namespaces []string
	// Unknown says what may not be looked at.
	Unknown string
}

// None says whether nobody is known to use the revision.
func (u Use) None() bool { return u.Proxies == 0 && len(u.Namespaces) == 0 && u.Unknown == "" }

// String says it to people, with what happens to who uses it.
func (u Use) String() string {
	if u.Unknown != "" {
		return fmt.Sprintf("who uses revision %s is not known: %s", u.Revision, u.Unknown)
	}
	namespaces := ""
	if n := len(u.Namespaces); n > 0 {
		shown := strings.Join(u.Namespaces[:min(n, maxExamples)], ", ")
		if n > maxExamples {
			shown += ", …"
		}
		namespaces = " (" + shown + ")"
	}
	return fmt.Sprintf("%d proxies and %d namespaces%s use revision %s: its proxies keep what they have and get nothing new, and new Pods in these namespaces get no proxy; to move them first, change the label istio.io/rev or the tag, and restart the Pods",
		u.Proxies, len(u.Namespaces), namespaces, u.Revision)
}

// Uses says who uses the revisions that a removal removes; nobody's are left out.
func (r *Removal) Uses(ctx context.Context, c *cluster.Client) ([]Use, error) {
	var out []Use
	for _, rec := range r.Records {
		if slices.ContainsFunc(out, func(u Use) bool { return u.Revision == rec.Revision }) || len(rec.Objects) == 0 {
			continue
		}
		u, err := r.use(ctx, c, rec.Revision)
		if apierrors.IsForbidden(err) {
			u, err = Use{Revision: rec.Revision, Unknown: err.Error()}, nil
		}
		if err != nil {
			return nil, err
		}
		if !u.None() {
			out = append(out, u)
		}
	}
	return out, nil
}

func (r *Removal) use(ctx context.Context, c *cluster.Client, revision string) (Use, error) {
	u := Use{Revision: revision}
	names, err := namesOf(ctx, c, revision)
	if err != nil {
		return u, err
	}
	list, err := c.List(ctx, cluster.Namespace(""), metav1.ListOptions{})
	if err != nil {
		return u, err
	}
	var namespaces []corev1.Namespace
	for i := range list {
		namespaces = append(namespaces, corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: list[i].GetName(), Labels: list[i].GetLabels()}})
	}
	for _, name := range names {
		u.Namespaces = append(u.Namespaces, tag.Using(namespaces, name)...)
	}
	slices.Sort(u.Namespaces)
	u.Namespaces = slices.Compact(u.Namespaces)
	pods, err := c.List(ctx, cluster.ID{Version: "v1", Kind: "Pod"}, metav1.ListOptions{})
	for i := range pods {
		if a := pods[i].GetAnnotations(); a[injected] != "" && a[revisionLabel] == revision && !r.takes(&pods[i]) {
			u.Proxies++
		}
	}
	return u, err
}

// namesOf are the names by which namespaces ask for a revision: its own, unless it is a tag of another revision, and
// its tags.
func namesOf(ctx context.Context, c *cluster.Client, revision string) ([]string, error) {
	hooks, err := c.List(ctx, cluster.ID{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "MutatingWebhookConfiguration"}, metav1.ListOptions{LabelSelector: tagLabel})
	taken := false
	var names []string
	for i := range hooks {
		name := hooks[i].GetLabels()[tagLabel]
		if hooks[i].GetLabels()[revisionLabel] == revision {
			names = append(names, name)
		}
		taken = taken || name == revision
	}
	if !taken {
		names = append(names, revision)
	}
	return names, err
}

// takes says whether a Pod goes with what is removed, as that of a gateway.
func (r *Removal) takes(pod *unstructured.Unstructured) bool {
	return slices.ContainsFunc(r.Verdicts, func(v Verdict) bool {
		if v.Fate != Delete || v.Live == nil || v.Namespace != pod.GetNamespace() {
			return false
		}
		match, _, _ := unstructured.NestedStringMap(v.Live.Object, "spec", "selector", "matchLabels")
		return len(match) > 0 && labels.SelectorFromSet(match).Matches(labels.Set(pod.GetLabels()))
	})
}
