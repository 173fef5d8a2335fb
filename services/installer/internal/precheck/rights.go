package precheck

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	authv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/services/installer/internal/install/manifest"
	"fairlead.dev/services/installer/internal/install/tree"
)

// verbs that an installation needs: it reads, applies on the server's side, and prunes.
var verbs = []string{"get", "create", "patch", "delete"}

// right is one that an installation needs.
type right struct{ verb, group, resource, namespace string }

func (r right) String() string {
	name := r.resource
	if r.group != "" {
		name += "." + r.group
	}
	if r.namespace != "" {
		return r.verb + " " + name + " in namespace " + r.namespace
	}
	return r.verb + " " + name
}

// atOnce bounds the questions that are under way.
const atOnce = 8

// rights asks whether the user may write what the installation consists of.
func (c *checker) rights(ctx context.Context) error {
	// The namespace is not among the objects.
	needed := []right{{"get", "", "namespaces", ""}, {"create", "", "namespaces", ""}, {"patch", "", "namespaces", ""}}
	for _, o := range c.Objects {
		resource, namespaced := c.resource(o)
		r := right{"", o.Group(), resource, ""}
		if namespaced {
			r.namespace = o.Namespace()
		}
		for _, r.verb = range verbs {
			if !slices.Contains(needed, r) {
				needed = append(needed, r)
			}
		}
	}
	everything, err := c.may(ctx, right{"*", "*", "*", ""})
	if err != nil || everything {
		return err
	}
	missing, err := c.missing(ctx, needed)
	if err != nil {
		return err
	}
	grouped := map[string][]string{}
	for _, r := range missing {
		verb := r.verb
		r.verb = ""
		name := strings.TrimSpace(r.String())
		grouped[name] = append(grouped[name], verb)
	}
	for name, missing := range grouped {
		c.say(Error, RightMissing, "", "have an administrator grant it, or install as another user", "the user may not %s %s",
			strings.Join(missing, ", "), name)
	}
	return c.escalation(ctx)
}

// escalation looks for the right to grant what the user has not: without it the API server refuses roles.
func (c *checker) escalation(ctx context.Context) error {
	if !slices.ContainsFunc(c.Objects, func(o *manifest.Object) bool { return strings.HasSuffix(o.Kind(), "Role") }) {
		return nil
	}
	may, err := c.may(ctx, right{"escalate", "rbac.authorization.k8s.io", "clusterroles", ""})
	if err == nil && !may {
		c.say(Warning, "RolesMayBeRefused", "", "have the right to escalate clusterroles, or hold the rights of these roles",
			"the installation writes roles, and an API server lets a user grant only what the user may do")
	}
	return err
}

func (c *checker) missing(ctx context.Context, needed []right) ([]right, error) {
	var mu sync.Mutex
	var missing []right
	var failed error
	var group sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for _, r := range needed {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			may, err := c.may(ctx, r)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = err
			} else if !may {
				missing = append(missing, r)
			}
		})
	}
	group.Wait()
	slices.SortFunc(missing, func(a, b right) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return missing, failed
}

func (c *checker) may(ctx context.Context, r right) (bool, error) {
	review, err := c.API.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx,
		&authv1.SelfSubjectAccessReview{Spec: authv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authv1.ResourceAttributes{Verb: r.verb, Group: r.group, Resource: r.resource, Namespace: r.namespace},
		}}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return review.Status.Allowed, nil
}

// resource names the resource of an object: as the API server serves it, as a definition of the installation says, or
// by the kind's plural.
func (c *checker) resource(o *manifest.Object) (name string, namespaced bool) {
	if r, ok := c.resources[kind{o.Group(), o.Kind()}]; ok {
		return r.name, r.namespaced
	}
	for _, d := range lists.Filter(c.Objects, isDefinition) {
		if tree.GetString(d.Tree, "spec", "group") == o.Group() && tree.GetString(d.Tree, "spec", "names", "kind") == o.Kind() {
			return tree.GetString(d.Tree, "spec", "names", "plural"), tree.GetString(d.Tree, "spec", "scope") == "Namespaced"
		}
	}
	return strings.ToLower(o.Kind()) + "s", o.Namespace() != ""
}

func isDefinition(o *manifest.Object) bool { return o.Kind() == "CustomResourceDefinition" }
