package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/kubeapi"
	"fairlead.dev/tests/internal/process"
)

// right is a line of services/installer/manifests/testdata/rights: who may do what, where. An empty namespace is every
// one, an empty list of names is every name.
type right struct {
	account, verb, resource, group, namespace string
	names                                     []string
}

// rightsTable reads the table of docs/security.md, which has the same of the profile minimal.
func rightsTable(t *testing.T) []right {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(content), "\n| account | may | of | named | in |\n|---|---|---|---|---|\n")
	var out []right
	for line := range strings.Lines(rest) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(cells) != 5 {
			break
		}
		for i := range cells {
			cells[i] = strings.Trim(cells[i], " `")
		}
		r := right{account: cells[0]}
		if cells[3] != "all" {
			r.names = strings.Split(cells[3], ", ")
		}
		if cells[4] != "every namespace" {
			r.namespace = cells[4]
		}
		for _, r.verb = range strings.Split(cells[1], ", ") {
			for _, of := range strings.Split(cells[2], ", ") {
				r.resource, r.group, _ = strings.Cut(strings.Trim(of, "`"), ".")
				out = append(out, r)
			}
		}
	}
	if len(out) < 50 {
		t.Fatalf("the table has only %d rights", len(out))
	}
	return out
}

// expectedRights reads such a file.
func expectedRights(t *testing.T, name string) []right {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "services", "installer", "manifests", "testdata", "rights", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	var out []right
	for line := range strings.Lines(string(content)) {
		account, rest, may := strings.Cut(strings.TrimSpace(line), " may ")
		what, where, in := strings.Cut(rest, " in ")
		f := strings.Fields(what)
		if !may || !in || len(f) < 2 {
			t.Fatalf("%s.txt has %q", name, line)
		}
		r := right{account: account, verb: f[0]}
		r.resource, r.group, _ = strings.Cut(f[1], ".")
		if len(f) > 2 {
			r.names = strings.Split(f[2], ",")
		}
		if where != "every namespace" {
			r.namespace = where
		}
		out = append(out, r)
	}
	return out
}

// allows tells whether rights give an account a verb on a resource; name "" is every name.
func allows(rights []right, account, verb string, of schema.GroupResource, namespace, name string) bool {
	return slices.ContainsFunc(rights, func(r right) bool {
		return r.account == account && r.verb == verb && r.resource == of.Resource && r.group == of.Group &&
			(r.namespace == "" || r.namespace == namespace) && (len(r.names) == 0 || name != "" && slices.Contains(r.names, name))
	})
}

// what every account may, by Kubernetes' own roles: ask about itself.
var ofEverybody = []schema.GroupResource{
	{Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"},
	{Group: "authorization.k8s.io", Resource: "selfsubjectrulesreviews"},
	{Group: "authentication.k8s.io", Resource: "selfsubjectreviews"},
}

// served is a resource of the API server, also one below another, as pods/log.
type served struct {
	schema.GroupVersionResource
	namespaced bool
	verbs      []string
}

func (s served) of() schema.GroupResource { return s.GroupResource() }

func resources(t *testing.T, client kubernetes.Interface) []served {
	t.Helper()
	_, lists, err := client.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	var out []served
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range l.APIResources {
			out = append(out, served{gv.WithResource(r.Name), r.Namespaced, r.Verbs})
		}
	}
	if len(out) < 100 {
		t.Fatalf("only %d resources", len(out))
	}
	return out
}

// TestAStolenTokenDoesNothingButItsOwn takes a token of each service account of an installation, as a thief would, and
// tries everything that the API server offers: by its own answer for each resource, verb, namespace and name, and by
// getting and listing every resource. What is allowed is exactly what the installation package says.
func TestAStolenTokenDoesNothingButItsOwn(t *testing.T) {
	kustomize := func(dir string) func(t *testing.T) []*unstructured.Unstructured {
		return func(t *testing.T) []*unstructured.Unstructured {
			return accountsOf(t, filepath.Join("..", "..", "deploy", "kustomize", dir))
		}
	}
	rendered := func(args ...string) func(t *testing.T) []*unstructured.Unstructured {
		return func(t *testing.T) []*unstructured.Unstructured {
			out := process.MustDo(t, exec.CommandContext(t.Context(), binaries.Built(t, "fairlead"), args...)) //nolint:gosec // under test
			objects, err := kubeapi.Decode([]byte(out))
			if err != nil {
				t.Fatal(err)
			}
			return objects
		}
	}
	generate := []string{"manifest", "generate", "--set"}
	for name, of := range map[string]struct {
		objects func(t *testing.T) []*unstructured.Unstructured
		rights  string
		// tried are the accounts whose tokens are taken, and all without any.
		tried []string
	}{
		"base":             {kustomize("base"), "minimal", nil},
		"split namespaces": {kustomize("overlays/split-namespaces"), "split-namespaces", nil},
		"compact":          {rendered(append(generate, "profile=compact")...), "compact", nil},
		"remote": {rendered(append(generate, "profile=remote", "--set", "values.global.remotePilotAddress=192.0.2.1")...), "remote",
			nil},
		"gateways and the CNI agent": {rendered(append(generate, "profile=demo", "--set", "components.cni.enabled=true")...), "demo-cni",
			[]string{"istio-system/istio-ingressgateway-service-account", "istio-system/istio-egressgateway-service-account",
				"kube-system/fairlead-cni"}},
		"the operator": {rendered("operator", "dump"), "operator", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := kubeapi.Start(t, kubeapi.Options{})
			s.ApplyCRDs(t)
			rights, accounts := expectedRights(t, of.rights), install(t, s, of.objects(t))
			if name == "base" {
				rights = rightsTable(t)
			}
			for _, r := range rights {
				if !slices.Contains(accounts, r.account) {
					t.Errorf("%s may %s %s, and is not installed", r.account, r.verb, r.resource)
				}
			}
			all := resources(t, s.Client(t))
			tried := of.tried
			if len(tried) == 0 {
				tried = accounts
			}
			for _, account := range tried {
				if !slices.Contains(accounts, account) {
					t.Fatalf("there is no account %s among %v", account, accounts)
				}
				namespace, name, _ := strings.Cut(account, "/")
				config := kubeapi.Load(t, s.ServiceAccount(t, namespace, name))
				client, err := kubernetes.NewForConfig(config)
				if err != nil {
					t.Fatal(err)
				}
				objects, err := dynamic.NewForConfig(config)
				if err != nil {
					t.Fatal(err)
				}
				namespaces := []string{namespace, "apps", "kube-system"}
				for _, other := range accounts {
					if in, _, _ := strings.Cut(other, "/"); !slices.Contains(namespaces, in) {
						namespaces = append(namespaces, in)
					}
				}
				asks(t, client, account, rights, all, namespaces)
				takes(t, objects, account, rights, all, namespaces)
			}
		})
	}
}

// accountsOf reads the namespaces, accounts and rights of a directory of deploy/kustomize.
func accountsOf(t *testing.T, dir string) (all []*unstructured.Unstructured) {
	t.Helper()
	for _, file := range []string{"*/namespace.yaml", "*/serviceaccount.yaml", "*/rbac.yaml"} {
		paths, err := filepath.Glob(filepath.Join(dir, file))
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s has no %s: %v", dir, file, err)
		}
		for _, path := range paths {
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			objects, err := kubeapi.Decode(content)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, objects...)
		}
	}
	return all
}

// install applies accounts and rights, and the namespaces that they are in, and returns the accounts. No two accounts
// share a role, so that taking the others' rights away takes none from it.
func install(t *testing.T, s *kubeapi.Server, objects []*unstructured.Unstructured) (accounts []string) {
	t.Helper()
	made := map[string]bool{}
	namespace := func(name string) {
		if name != "" && name != "kube-system" && !made[name] {
			made[name] = true
			s.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+name+"}}")
		}
	}
	owner := map[string]string{}
	for _, o := range objects {
		switch o.GetKind() {
		case "ServiceAccount":
			accounts = append(accounts, o.GetNamespace()+"/"+o.GetName())
		case "RoleBinding", "ClusterRoleBinding":
			ownRole(t, o, owner)
		case "Role", "ClusterRole":
		default:
			continue
		}
		namespace(o.GetNamespace())
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		s.Apply(t, string(text))
	}
	namespace("apps")
	s.Apply(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: theirs, namespace: apps}\n---\n"+
		"apiVersion: v1\nkind: Secret\nmetadata: {name: theirs, namespace: kube-system}\n")
	if len(accounts) == 0 {
		t.Fatal("there is no account")
	}
	return accounts
}

func ownRole(t *testing.T, o *unstructured.Unstructured, owner map[string]string) {
	t.Helper()
	var b rbacv1.ClusterRoleBinding // a RoleBinding is decoded alike
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &b); err != nil {
		t.Fatal(err)
	}
	role := b.RoleRef.Kind + " " + b.Namespace + "/" + b.RoleRef.Name
	for _, subject := range b.Subjects {
		account := subject.Namespace + "/" + subject.Name
		if before := owner[role]; before != "" && before != account {
			t.Errorf("%s is bound to %s and to %s", role, before, account)
		}
		owner[role] = account
	}
}

// workers ask at the same time.
const workers = 16

// concurrently does something for each of many, and returns what went wrong.
func concurrently[T any](t *testing.T, of []T, do func(ctx context.Context, of T) error) {
	t.Helper()
	todo := make(chan T)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for range workers {
		wg.Go(func() {
			for item := range todo {
				if err := do(t.Context(), item); err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
			}
		})
	}
	for _, item := range of {
		todo <- item
	}
	close(todo)
	wg.Wait()
	if len(errs) > 20 {
		errs = append(errs[:20], fmt.Errorf("and %d more", len(errs)-20))
	}
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// asks has the API server say what the account may, by each resource, verb, namespace and name, and by its own list.
func asks(t *testing.T, client kubernetes.Interface, account string, rights []right, all []served, namespaces []string) {
	t.Helper()
	var attributes []authorizationv1.ResourceAttributes
	known := map[schema.GroupResource]bool{}
	for _, r := range all {
		of := r.of()
		if known[of] {
			continue // another version of it
		}
		known[of] = true
		resource, sub, _ := strings.Cut(of.Resource, "/")
		names := []string{"", "anything"}
		for _, right := range rights {
			if right.resource == of.Resource && right.group == of.Group {
				for _, name := range right.names {
					if !slices.Contains(names, name) {
						names = append(names, name)
					}
				}
			}
		}
		in := namespaces
		if !r.namespaced {
			in = []string{""}
		}
		verbs := []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "impersonate", "bind", "escalate",
			"*"}
		if len(names) == 2 && !slices.ContainsFunc(rights,
			func(right right) bool { return right.resource == of.Resource && right.group == of.Group }) {
			// Nobody may anything here. A right that held elsewhere would show in the list of rules below.
			in, names, verbs = in[:1], names[:1], verbs[:8]
		}
		for _, namespace := range in {
			for _, name := range names {
				for _, verb := range verbs {
					attributes = append(attributes, authorizationv1.ResourceAttributes{
						Group: of.Group, Resource: resource, Subresource: sub, Namespace: namespace, Name: name, Verb: verb,
					})
				}
			}
		}
	}
	// Ways to become somebody else that are no resources, or that the loop above has shortened.
	for _, as := range []authorizationv1.ResourceAttributes{
		{Resource: "users", Verb: "impersonate"}, {Resource: "groups", Verb: "impersonate"}, {Resource: "serviceaccounts", Verb: "impersonate"},
		{Group: "authentication.k8s.io", Resource: "uids", Verb: "impersonate"},
		{Group: "authentication.k8s.io", Resource: "userextras", Subresource: "scopes", Verb: "impersonate"},
		{Resource: "serviceaccounts", Subresource: "token", Verb: "create"}, {Resource: "nodes", Subresource: "proxy", Verb: "get"},
		{Resource: "nodes", Subresource: "proxy", Verb: "create"},
		{Resource: "pods", Verb: "create"}, {Resource: "pods", Subresource: "exec", Verb: "create"},
		{Resource: "pods", Subresource: "exec", Verb: "get"},
		{Resource: "pods", Subresource: "attach", Verb: "create"}, {Resource: "pods", Subresource: "ephemeralcontainers", Verb: "patch"},
		{Resource: "pods", Subresource: "ephemeralcontainers", Verb: "update"},
		{Group: "rbac.authorization.k8s.io", Resource: "roles", Verb: "bind"},
		{Group: "rbac.authorization.k8s.io", Resource: "roles", Verb: "escalate"},
		{Group: "rbac.authorization.k8s.io", Resource: "clusterroles", Verb: "bind"},
		{Group: "rbac.authorization.k8s.io", Resource: "clusterroles", Verb: "escalate"},
		{Group: "certificates.k8s.io", Resource: "signers", Verb: "approve"}, {Group: "certificates.k8s.io", Resource: "signers", Verb: "sign"},
	} {
		for _, namespace := range namespaces {
			as.Namespace = namespace
			attributes = append(attributes, as)
		}
	}
	concurrently(t, attributes, func(ctx context.Context, a authorizationv1.ResourceAttributes) error {
		review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx,
			&authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &a}},
			metav1.CreateOptions{})
		if err != nil {
			return err
		}
		of := schema.GroupResource{Group: a.Group, Resource: a.Resource}
		if a.Subresource != "" {
			of.Resource += "/" + a.Subresource
		}
		want := allows(rights, account, a.Verb, of, a.Namespace, a.Name) || a.Verb == "create" && slices.Contains(ofEverybody, of)
		if review.Status.Allowed != want {
			return fmt.Errorf("%s may %s %s %q in %q: %v, want %v", account, a.Verb, of, a.Name, a.Namespace, review.Status.Allowed, want)
		}
		return nil
	})
	for _, namespace := range namespaces {
		review, err := client.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(),
			&authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, rule := range review.Status.ResourceRules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						of := schema.GroupResource{Group: group, Resource: resource}
						for _, name := range append(slices.Clone(rule.ResourceNames), "")[:max(1, len(rule.ResourceNames))] {
							if !allows(rights, account, verb, of, namespace, name) && (verb != "create" || !slices.Contains(ofEverybody, of)) {
								t.Errorf("%s has the rule %s %s %q in %s", account, verb, of, name, namespace)
							}
						}
					}
				}
			}
		}
		for _, rule := range review.Status.NonResourceRules {
			for _, verb := range rule.Verbs {
				if verb != "get" {
					t.Errorf("%s may %s %v", account, verb, rule.NonResourceURLs)
				}
			}
		}
	}
}

// takes gets and lists every resource, in each namespace and in all together.
func takes(t *testing.T, client dynamic.Interface, account string, rights []right, all []served, namespaces []string) {
	t.Helper()
	type attempt struct {
		served
		verb, namespace string
	}
	var attempts []attempt
	for _, r := range all {
		if strings.Contains(r.Resource, "/") {
			continue // by asking alone: there is no object that it is below
		}
		for _, verb := range []string{"get", "list"} {
			if !slices.Contains(r.verbs, verb) {
				continue
			}
			in := []string{corev1.NamespaceAll}
			if r.namespaced && verb == "get" {
				in = namespaces[:2]
			} else if r.namespaced {
				in = []string{corev1.NamespaceAll, namespaces[0], namespaces[1]}
			}
			for _, namespace := range in {
				attempts = append(attempts, attempt{r, verb, namespace})
			}
		}
	}
	concurrently(t, attempts, func(ctx context.Context, a attempt) error {
		to := dynamic.ResourceInterface(client.Resource(a.GroupVersionResource))
		if a.namespaced {
			to = client.Resource(a.GroupVersionResource).Namespace(a.namespace)
		}
		var err error
		if a.verb == "get" {
			_, err = to.Get(ctx, "theirs", metav1.GetOptions{})
		} else {
			_, err = to.List(ctx, metav1.ListOptions{Limit: 1})
		}
		want := allows(rights, account, a.verb, a.of(), a.namespace, "")
		switch {
		case apierrors.IsForbidden(err) && !want, err == nil && want, apierrors.IsNotFound(err) && want && a.verb == "get":
			return nil
		default:
			return fmt.Errorf("%s: %s %s in %q: allowed %v, want %v: %w", account, a.verb, a.GroupVersionResource, a.namespace,
				!apierrors.IsForbidden(err), want, err)
		}
	})
}
