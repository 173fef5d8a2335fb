// Package binder gives config-watcher its rights where they are needed, and nowhere else. It keeps a RoleBinding of a
// ClusterRole in each namespace whose workloads use a Secret that a Gateway, DestinationRule or Ingress names, or whose
// Secrets and ConfigMaps objects of the Gateway API name, and of another one in each namespace with a WorkloadGroup.
// Its own account may bind these two ClusterRoles alone. A binding that somebody else has made under the same name is
// left as it is.
package binder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metafields "k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/notify"
)

// Label marks the RoleBindings of this package.
const (
	Label      = "fairlead.dev/bound-by"
	labelValue = "keeper"
)

const (
	// again is the time until what failed is tried again.
	again = 2 * time.Second
	// callTimeout bounds one call of the API server.
	callTimeout = 20 * time.Second
)

// Config of a Binder. All fields but the roles are required.
type Config struct {
	API *rest.Config
	// Credentials and Registration are the ClusterRoles; an empty one is not bound. The names of their RoleBindings are
	// the role's with Suffix, one for each Account.
	Credentials, Registration, Suffix string
	// Account is config-watcher's service account.
	Account types.NamespacedName
	// Ingress are the labels of the gateways that serve Ingresses.
	Ingress map[string]string
	// Grace is how long a binding stays after the last object that needs it, so that one that is made anew takes
	// nothing away in between.
	Grace time.Duration
	Log   *slog.Logger
	Clock clock.Clock
}

// Binder keeps RoleBindings. Run does all of it.
type Binder struct {
	cfg     Config
	client  *kubernetes.Clientset
	objects *dynamic.DynamicClient
	pods    metadata.Interface
	wake    chan struct{}

	watches  []*following          // of gateways, rules, ingresses, groups and entries
	bindings map[string]*following // by role
	selected map[string]*following // Pods, by selector
	// unneeded is since when a binding is not needed, by role and namespace.
	unneeded map[[2]string]time.Time
	// told are the failures that the log has.
	told map[string]string
}

// New returns a binder.
func New(cfg Config) (*Binder, error) {
	b := &Binder{
		cfg: cfg, wake: make(chan struct{}, 1), bindings: map[string]*following{}, selected: map[string]*following{},
		unneeded: map[[2]string]time.Time{}, told: map[string]string{},
	}
	var errs [3]error
	b.client, errs[0] = kubernetes.NewForConfig(cfg.API)
	b.objects, errs[1] = dynamic.NewForConfig(cfg.API)
	b.pods, errs[2] = metadata.NewForConfig(cfg.API)
	return b, errors.Join(errs[:]...)
}

// Run keeps the bindings until ctx ends.
func (b *Binder) Run(ctx context.Context) error {
	wake := func() { notify.Wake(b.wake) }
	all := []schema.GroupVersionResource{gateways, rules, ingresses, groups, entries}
	for _, of := range append(all, apiClasses, apiGateways, apiSets, apiPolicies, apiGrants) {
		f, err := followObjects(ctx, b.objects, of, wake)
		if err != nil {
			return err
		}
		b.watches = append(b.watches, f)
	}
	for _, role := range b.roles() {
		f, err := b.followBindings(ctx, role, wake)
		if err != nil {
			return err
		}
		b.bindings[role] = f
	}
	for {
		next := b.cfg.Clock.After(b.keep(ctx))
		select {
		case <-ctx.Done():
			return nil
		case <-next:
		case <-b.wake:
			select {
			case <-ctx.Done():
				return nil
			case <-b.cfg.Clock.After(settle):
			}
		}
	}
}

func (b *Binder) roles() []string {
	return slices.DeleteFunc([]string{b.cfg.Credentials, b.cfg.Registration}, func(role string) bool { return role == "" })
}

func (b *Binder) followBindings(ctx context.Context, role string, wake func()) (*following, error) {
	lw := cache.NewListWatchFromClient(b.client.RbacV1().RESTClient(), "rolebindings", "",
		metafields.OneTermEqualSelector(metav1.ObjectNameField, role+b.cfg.Suffix))
	return run(ctx, cache.NewSharedIndexInformer(lw, &rbacv1.RoleBinding{}, 0, cache.Indexers{}), nil, wake)
}

// keep brings the bindings in line once, as far as the objects are known, and returns when to look again.
func (b *Binder) keep(ctx context.Context) time.Duration {
	s := &state{
		gateways: b.watches[0].objects(), rules: b.watches[1].objects(), ingresses: b.watches[2].objects(), groups: b.watches[3].objects(),
		entries: b.watches[4].objects(),
		api: gatewayAPI{classes: b.watches[5].objects(), gateways: b.watches[6].objects(), sets: b.watches[7].objects(),
			policies: b.watches[8].objects(), grants: b.watches[9].objects()},
		ingress: b.cfg.Ingress,
		pods: func(selector string) []string {
			if f := b.selected[selector]; f != nil {
				return f.namespaces()
			}
			return nil
		},
	}
	b.watchPods(ctx, s)
	next := time.Hour
	for role, wanted := range map[string]func() need{b.cfg.Credentials: s.credentials, b.cfg.Registration: s.registration} {
		if role == "" || !b.bindings[role].informer.HasSynced() {
			continue
		}
		next = min(next, b.bind(ctx, role, wanted()))
	}
	return next
}

// watchPods watches the Pods of the selectors that matter now.
func (b *Binder) watchPods(ctx context.Context, s *state) {
	if b.cfg.Credentials == "" {
		return
	}
	wanted, left := s.selectors()
	if left > 0 {
		b.fail("selectors", fmt.Errorf(
			"%d selectors of Gateways are beyond the bounds, %d and %d of a namespace; the Secrets of these Gateways are not read: remove "+
				"Gateways, or list the "+
				"namespaces in values.configWatcher.credentialNamespaces", left, maxSelectors, maxSelectorsOfNamespace))
	} else {
		delete(b.told, "selectors")
	}
	for selector, f := range b.selected {
		if !wanted[selector] {
			f.stop()
			delete(b.selected, selector)
		}
	}
	for selector := range wanted {
		if b.selected[selector] != nil {
			continue
		}
		f, err := followPods(ctx, b.pods, selector, func() { notify.Wake(b.wake) })
		if err != nil {
			b.fail("pods "+selector, err)
			continue
		}
		b.selected[selector] = f
	}
}

// known tells whether all that a need could come from has been read.
func (b *Binder) known() bool {
	for _, f := range slices.Concat(b.watches, slices.Collect(maps.Values(b.selected))) {
		if !f.known() {
			return false
		}
	}
	return true
}

// bind makes the bindings of a role that are missing, and removes those that nobody has needed for the grace.
func (b *Binder) bind(ctx context.Context, role string, wanted need) time.Duration {
	next, now := time.Hour, b.cfg.Clock.Now()
	there := map[string]*rbacv1.RoleBinding{}
	for _, o := range b.bindings[role].informer.GetStore().List() {
		if binding, ok := o.(*rbacv1.RoleBinding); ok {
			there[binding.Namespace] = binding
		}
	}
	maps.DeleteFunc(b.unneeded, func(at [2]string, _ time.Time) bool { return at[0] == role && there[at[1]] == nil })
	maps.DeleteFunc(b.told, func(what string, _ string) bool {
		namespace, of, found := strings.Cut(strings.TrimPrefix(what, "RoleBinding "), "/")
		return found && of == role+b.cfg.Suffix && wanted[namespace] == "" && there[namespace] == nil
	})
	for namespace, because := range wanted {
		delete(b.unneeded, [2]string{role, namespace})
		what := b.binding(namespace, role)
		if err := b.make(ctx, role, namespace, because, there[namespace]); err != nil {
			b.fail(what, fmt.Errorf("%w; %s needs it", err, because))
			next = again
			continue
		}
		delete(b.told, what)
	}
	for namespace, binding := range there {
		at := [2]string{role, namespace}
		if _, needed := wanted[namespace]; needed || !ours(binding) || !b.known() {
			continue
		}
		since, waiting := b.unneeded[at]
		if !waiting {
			since = now
			b.unneeded[at] = now
		}
		if left := b.cfg.Grace - now.Sub(since); left > 0 {
			next = min(next, left)
			continue
		}
		if err := b.remove(ctx, binding); err != nil {
			b.fail(b.binding(namespace, role), err)
			next = again
			continue
		}
		delete(b.unneeded, at)
		b.cfg.Log.Info("rights removed, nothing needs them", "role", role, "namespace", namespace)
	}
	return next
}

// binding names a RoleBinding in messages.
func (b *Binder) binding(namespace, role string) string {
	return "RoleBinding " + namespace + "/" + role + b.cfg.Suffix
}

func ours(binding *rbacv1.RoleBinding) bool { return binding.Labels[Label] == labelValue }

// make makes a binding, in place of one of this package's that says something else.
func (b *Binder) make(ctx context.Context, role, namespace, because string, is *rbacv1.RoleBinding) error {
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}
	subject := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: b.cfg.Account.Namespace, Name: b.cfg.Account.Name}
	if is != nil {
		switch {
		case is.RoleRef == ref && slices.Equal(is.Subjects, []rbacv1.Subject{subject}):
			return nil
		case !ours(is) && is.RoleRef == ref && slices.Contains(is.Subjects, subject):
			return nil
		case !ours(is):
			return fmt.Errorf("somebody else's object has the name, and does not give ClusterRole %s to %s; remove it", role, b.cfg.Account)
		}
		if err := b.remove(ctx, is); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	of, err := b.client.RbacV1().ClusterRoles().Get(ctx, role, metav1.GetOptions{})
	if err != nil {
		return err
	}
	_, err = b.client.RbacV1().RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{
			Name: role + b.cfg.Suffix, Namespace: namespace, Labels: map[string]string{Label: labelValue, "app.kubernetes.io/part-of": "fairlead"},
			// Goes with the installation.
			OwnerReferences: []metav1.OwnerReference{{APIVersion: ref.APIGroup + "/v1", Kind: ref.Kind, Name: role, UID: of.UID}},
		},
		RoleRef: ref, Subjects: []rbacv1.Subject{subject},
	}, metav1.CreateOptions{FieldManager: "fairlead-keeper"})
	if apierrors.IsAlreadyExists(err) {
		return nil // the watch tells which
	}
	if err == nil {
		b.cfg.Log.Info("rights given", "role", role, "namespace", namespace, "because", because)
	}
	return err
}

func (b *Binder) remove(ctx context.Context, is *rbacv1.RoleBinding) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := b.client.RbacV1().RoleBindings(is.Namespace).Delete(ctx, is.Name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &is.UID}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // the watch tells what is there now
	}
	return err
}

// fail logs what failed, once.
func (b *Binder) fail(what string, err error) {
	if b.told[what] != err.Error() {
		b.told[what] = err.Error()
		b.cfg.Log.Warn("rights of config-watcher are not as they should be", "what", what, "error", err)
	}
}
