// Package deployment puts the operator into a cluster and takes it out: `fairlead operator init`, dump and remove. Its
// objects are those of charts/operator of the install package, applied by themselves: an operator is no revision and
// has no inventory. What is of one operator has a label with its name, by which it is found again.
package deployment

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/install/manifest"
	"fairlead.dev/services/installer/internal/install/profile"
	"fairlead.dev/services/installer/internal/install/render"
	"fairlead.dev/services/installer/internal/install/tree"
	"fairlead.dev/services/installer/internal/install/wait"
	"fairlead.dev/services/installer/internal/operator"
)

// Label is on every object of an operator but its namespaces and the definition; its value is the operator's name.
const Label = "install.fairlead.dev/operator"

// chart of the install package.
const chart = "charts/operator"

// Settings of an operator.
type Settings struct {
	Namespace, Revision string
	// Hub and Tag are those of the chart if they are empty.
	Hub, Tag         string
	ImagePullSecrets []string
	// Watched namespaces; none means all.
	Watched []string
}

// Name is that of the Deployment, and of the lease.
func (s Settings) Name() string { return operator.LeaseName(s.Revision) }

// Objects are the operator's, in the order in which they are applied: its namespace and the watched ones, the
// definition of IstioOperators, and the rest.
func (s Settings) Objects(pkg *profile.Package) ([]*manifest.Object, error) {
	c, err := pkg.Chart(chart)
	if err != nil {
		return nil, fmt.Errorf("the install package has no operator: %w", err)
	}
	global := tree.Map{}
	if s.Hub != "" {
		global["hub"] = s.Hub
	}
	if s.Tag != "" {
		global["tag"] = s.Tag
	}
	if len(s.ImagePullSecrets) > 0 {
		global["imagePullSecrets"] = texts(s.ImagePullSecrets)
	}
	values := tree.Map{"global": global, "revision": s.Revision, "watchedNamespaces": texts(s.Watched)}
	rendered, err := render.Chart("operator", c, values, s.Namespace)
	if err != nil {
		return nil, err
	}
	var objects []*manifest.Object
	names := append([]string{s.Namespace}, s.Watched...)
	for i, name := range names {
		if !slices.Contains(names[:i], name) {
			labels := tree.Map{"app.kubernetes.io/part-of": "fairlead"}
			if i == 0 {
				labels["pod-security.kubernetes.io/enforce"] = "restricted"
			}
			objects = append(objects, &manifest.Object{Component: "operator", Tree: tree.Map{
				"apiVersion": "v1", "kind": "Namespace", "metadata": tree.Map{"name": name, "labels": labels},
			}})
		}
	}
	slices.SortStableFunc(rendered, func(a, b *manifest.Object) int { return place(a.Kind()) - place(b.Kind()) })
	return append(objects, rendered...), nil
}

func texts(list []string) []any {
	out := []any{}
	for _, text := range list {
		out = append(out, text)
	}
	return out
}

// place is where a kind comes: what others need goes first, and the Deployment last.
func place(kind string) int {
	if kind == "Deployment" {
		return 1
	}
	first := []string{"Role", "ClusterRole", "ServiceAccount", "CustomResourceDefinition"}
	return min(0, -1-slices.Index(first, kind))
}

// Change is what Install does with an object.
type Change struct {
	cluster.ID
	// Action is "create", "configure", "delete", or "keep" for what is there and is not the operator's own.
	Action string
	object *unstructured.Unstructured
}

// Plan compares objects with the cluster. Namespaces that are there stay as they are, and so does a definition of
// IstioOperators that others manage; what an earlier init has made for namespaces that are not watched any more goes.
func (s Settings) Plan(ctx context.Context, c *cluster.Client, objects []*manifest.Object) ([]Change, error) {
	if err := c.Check(ctx); err != nil {
		return nil, err
	}
	var plan []Change
	for _, o := range objects {
		u, err := cluster.Object(o)
		if err != nil {
			return nil, err
		}
		id := cluster.Of(u)
		live, err := c.Get(ctx, id)
		if err != nil {
			return nil, err
		}
		ch := Change{id, "create", u}
		switch {
		case live == nil:
		case id.IsNamespace(), id.IsCRD() && cluster.OwnedFields(live) == "":
			ch.Action = "keep"
		default:
			ch.Action = "configure"
		}
		plan = append(plan, ch)
	}
	there, err := s.found(ctx, c)
	if err != nil {
		return nil, err
	}
	for _, id := range there {
		if !slices.ContainsFunc(plan, func(ch Change) bool { return ch.Key() == id.Key() }) {
			plan = append(plan, Change{id, "delete", nil})
		}
	}
	return plan, nil
}

// kinds of an operator's objects, in the order in which they are removed.
var kinds = []cluster.ID{
	{Group: "apps", Version: "v1", Kind: "Deployment"},
	{Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRoleBinding"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "RoleBinding"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "Role"},
	{Version: "v1", Kind: "ServiceAccount"},
}

// found lists the objects of the operator by their label.
func (s Settings) found(ctx context.Context, c *cluster.Client) ([]cluster.ID, error) {
	var ids []cluster.ID
	for _, kind := range kinds {
		list, err := c.List(ctx, kind, metav1.ListOptions{LabelSelector: Label + "=" + s.Name()})
		if err != nil {
			return nil, err
		}
		for i := range list {
			id := cluster.Of(&list[i])
			// Operators of several namespaces have one name; what is of no namespace names it.
			if id.Namespace == s.Namespace || id.Name == s.Name()+"-"+s.Namespace {
				ids = append(ids, id)
			}
		}
	}
	return ids, nil
}

// Install makes a plan's changes. With force it takes fields over from others.
func Install(ctx context.Context, c *cluster.Client, plan []Change, force bool) error {
	for _, ch := range plan {
		var err error
		switch ch.Action {
		case "keep":
		case "delete":
			err = c.Delete(ctx, ch.ID, "")
		case "create":
			if ch.IsNamespace() {
				// Not applied: it would pass for one that an installation has made, which a purge deletes.
				_, err = c.Put(ctx, ch.object)
				break
			}
			fallthrough
		default:
			_, err = c.Apply(ctx, ch.object, cluster.ApplyOptions{Force: force})
		}
		if err != nil {
			return err
		}
		if ch.IsCRD() {
			if err := wait.Ready(ctx, c, []cluster.ID{ch.ID}, func(string) {}); err != nil {
				return err
			}
			c.Reset()
		}
	}
	return nil
}

// Await waits until the operator's Deployment is ready.
func (s Settings) Await(ctx context.Context, c *cluster.Client, patience time.Duration, tell func(string)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return wait.Ready(ctx, c, []cluster.ID{{Group: "apps", Version: "v1", Kind: "Deployment", Namespace: s.Namespace, Name: s.Name()}}, tell)
}

// Installed lists the operators of a cluster, by their Deployments.
func Installed(ctx context.Context, c *cluster.Client) ([]Settings, error) {
	list, err := c.List(ctx, kinds[0], metav1.ListOptions{LabelSelector: Label})
	var all []Settings
	for i := range list {
		name := list[i].GetLabels()[Label]
		all = append(all, Settings{Namespace: list[i].GetNamespace(),
			Revision: strings.TrimPrefix(strings.TrimPrefix(name, operator.LeaseName("")), "-")})
	}
	return all, err
}

// Removal lists what Remove deletes.
func (s Settings) Removal(ctx context.Context, c *cluster.Client) ([]cluster.ID, error) {
	ids, err := s.found(ctx, c)
	if err != nil {
		return nil, err
	}
	lease := cluster.ID{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease", Namespace: s.Namespace, Name: s.Name()}
	if live, err := c.Get(ctx, lease); err == nil && live != nil && len(ids) > 0 {
		ids = append(ids, lease)
	}
	return ids, nil
}

// Remove deletes objects, and waits until they are gone, unless the patience is zero.
func Remove(ctx context.Context, c *cluster.Client, ids []cluster.ID, patience time.Duration, tell func(string)) error {
	for _, id := range ids {
		if err := c.Delete(ctx, id, ""); err != nil {
			return err
		}
	}
	if patience == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return wait.Gone(ctx, c, ids, tell)
}

// Left are the IstioOperators of a cluster that wait for an operator when they are deleted, by its finalizer.
func Left(ctx context.Context, c *cluster.Client) ([]cluster.ID, error) {
	list, err := c.List(ctx, cluster.ID{Group: operator.Resource.Group, Version: operator.Resource.Version, Kind: "IstioOperator"},
		metav1.ListOptions{})
	var ids []cluster.ID
	for i := range list {
		if slices.Contains(list[i].GetFinalizers(), operator.Finalizer) {
			ids = append(ids, cluster.Of(&list[i]))
		}
	}
	return ids, err
}
