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

	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/inventory"
	"fairlead.dev/services/installer/internal/tag"
)

// injected is the annotation of Pods that have a proxy, which says in contract.RevisionLabel whose it is.
const injected = "sidecar.istio.io/status"

// Use says who uses a revision.
type Use struct {
	Revision string
	// Proxies are the Pods with a proxy of the revision that do not go with it.
	Proxies int
	// Gateways are the Deployments that do not go with it, and whose proxies get their configuration from it.
	Gateways []string
	// Namespaces ask for the revision, or for a tag of it; those of Enabled by the label istio-injection.
	Namespaces, Enabled []string
	// Unknown says what may not be looked at.
	Unknown string
}

// None says whether nobody is known to use the revision.
func (u Use) None() bool {
	return u.Proxies == 0 && len(u.Gateways) == 0 && len(u.Namespaces) == 0 && u.Unknown == ""
}

// String says it to people, with what happens to who uses it.
func (u Use) String() string {
	if u.Unknown != "" {
		return fmt.Sprintf("who uses revision %s is not known: %s", u.Revision, u.Unknown)
	}
	gateways := ""
	if n := len(u.Gateways); n > 0 {
		gateways = fmt.Sprintf(", %d gateways%s", n, examples(u.Gateways))
	}
	var then []string
	if u.Proxies > 0 || len(u.Namespaces) > 0 {
		then = append(then, "its proxies keep what they have and get nothing new, and new Pods in these namespaces get no proxy; to move them "+
			"first, "+u.moves()+", and restart the Pods")
	}
	if gateways != "" {
		then = append(then, "the gateways go on to ask its control plane (--discovery-address), get nothing new, and their new Pods get "+
			"nothing at all; run `fairlead install` of the revision that stays, with its file, first or afterwards: it takes the gateways back")
	}
	return fmt.Sprintf("%d proxies%s and %d namespaces%s use revision %s: %s", u.Proxies, gateways, len(u.Namespaces), examples(u.Namespaces),
		u.Revision, strings.Join(then, "; "))
}

// moves says how namespaces get another revision, by the label that each has.
func (u Use) moves() string {
	const label = "change the label istio.io/rev or the tag"
	if len(u.Enabled) == 0 {
		return label
	}
	enabled := fmt.Sprintf("replace the label istio-injection=enabled%s by istio.io/rev=REVISION (`kubectl label namespace NAMESPACE "+
		"istio.io/rev=REVISION istio-injection-`), or let the tag default stand for another revision", examples(u.Enabled))
	if len(u.Enabled) == len(u.Namespaces) && u.Proxies == 0 {
		return enabled
	}
	return label + ", of namespaces with istio.io/rev; " + enabled
}

// examples are the first of a list, in brackets after a space; empty if there are none.
func examples(list []string) string {
	if len(list) == 0 {
		return ""
	}
	shown := strings.Join(list[:min(len(list), maxExamples)], ", ")
	if len(list) > maxExamples {
		shown += ", …"
	}
	return " (" + shown + ")"
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
	for _, ns := range namespaces {
		if ns.Labels[contract.InjectionLabel] == "enabled" && slices.Contains(u.Namespaces, ns.Name) {
			u.Enabled = append(u.Enabled, ns.Name)
		}
	}
	slices.Sort(u.Enabled)
	if u.Gateways, err = r.gateways(ctx, c, revision); err != nil {
		return u, err
	}
	pods, err := c.List(ctx, cluster.ID{Version: "v1", Kind: "Pod"}, metav1.ListOptions{})
	for i := range pods {
		if a := pods[i].GetAnnotations(); a[injected] != "" && a[contract.RevisionLabel] == revision && !r.takes(&pods[i]) {
			u.Proxies++
		}
	}
	return u, err
}

// gateways names the Deployments that stay, and whose proxies get their configuration from a Service of the revision
// that goes or is gone: gateways that several revisions have, of which it was installed last. Of an injected one, the
// Pods are counted.
func (r *Removal) gateways(ctx context.Context, c *cluster.Client, revision string) (names []string, err error) {
	list, err := c.List(ctx, cluster.ID{Group: "apps", Version: "v1", Kind: "Deployment"}, metav1.ListOptions{})
	for i := range list {
		status, _, _ := unstructured.NestedString(list[i].Object, "spec", "template", "metadata", "annotations", injected)
		service, ok := discovery(&list[i])
		if !ok || status != "" || !slices.ContainsFunc(r.Records,
			func(rec *inventory.Record) bool { return rec.Revision == revision && rec.Has(service) }) {
			continue
		}
		own := cluster.Of(&list[i])
		gone, stays := false, true
		for _, v := range r.Verdicts {
			gone = gone || v.Key() == service.Key() && (v.Fate == Delete || v.Live == nil)
			stays = stays && (v.Key() != own.Key() || v.Fate != Delete)
		}
		if gone && stays {
			names = append(names, own.String())
		}
	}
	slices.Sort(names)
	return names, err
}

// discovery is the Service from which the proxy of a workload gets its configuration, by the flag that the chart of
// gateways gives it; false if none is named.
func discovery(workload *unstructured.Unstructured) (service cluster.ID, ok bool) {
	containers, _, _ := unstructured.NestedSlice(workload.Object, "spec", "template", "spec", "containers")
	for _, item := range containers {
		container, _ := item.(map[string]any)
		if container["name"] != "istio-proxy" {
			continue
		}
		args, _, _ := unstructured.NestedStringSlice(container, "args")
		for _, arg := range args {
			address, found := strings.CutPrefix(arg, "--discovery-address=")
			host, _, _ := strings.Cut(address, ":")
			if parts := strings.Split(host, "."); found && len(parts) > 2 && parts[2] == "svc" {
				return cluster.ID{Version: "v1", Kind: "Service", Namespace: parts[1], Name: parts[0]}, true
			}
		}
	}
	return cluster.ID{}, false
}

// namesOf are the names by which namespaces ask for a revision: its own, unless it is a tag of another revision, and
// its tags.
func namesOf(ctx context.Context, c *cluster.Client, revision string) ([]string, error) {
	hooks, err := c.List(ctx, cluster.ID{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "MutatingWebhookConfiguration"},
		metav1.ListOptions{LabelSelector: tagLabel})
	taken := false
	var names []string
	for i := range hooks {
		name := hooks[i].GetLabels()[tagLabel]
		if hooks[i].GetLabels()[contract.RevisionLabel] == revision {
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
