package remotesecret

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"fairlead.dev/services/installer/internal/install/cluster"
	"fairlead.dev/services/installer/internal/kube"
)

// Account is the account that the chart remote makes in a cluster that is read.
const Account = "fairlead-reader"

// tokenSuffix ends the name of an account's first token, as in Istio; further ones have a random end.
const tokenSuffix = "-istio-remote-secret-token"

// Cluster is a cluster that is read by others.
type Cluster struct {
	API kube.API
	// Installer writes what the chart remote would.
	Installer *cluster.Client
	// Wait is how long Kubernetes may take to fill in a token.
	Wait time.Duration
}

// account looks for the account, and makes it with the right to read.
func (c Cluster) account(ctx context.Context, o Options) error {
	_, err := c.API.CoreV1().ServiceAccounts(o.Namespace).Get(ctx, o.Account, metav1.GetOptions{})
	switch {
	case err == nil:
		return nil
	case !apierrors.IsNotFound(err):
		return kube.Explain(err)
	case !o.Create:
		return fmt.Errorf("service account %s/%s is not there; install the profile remote, name another with --service-account, or allow it to "+
			"be made with --create-service-account", o.Namespace, o.Account)
	}
	_, err = c.API.CoreV1().Namespaces().Get(ctx, o.Namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		fresh := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: o.Namespace}}
		_, err = c.API.CoreV1().Namespaces().Create(ctx, fresh, metav1.CreateOptions{})
	}
	if err != nil {
		return kube.Explain(err)
	}
	for _, object := range Reader(o.Namespace, o.Account) {
		tree, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return err
		}
		delete(tree["metadata"].(map[string]any), "creationTimestamp")
		if _, err := c.Installer.Apply(ctx, &unstructured.Unstructured{Object: tree}, cluster.ApplyOptions{}); err != nil {
			return fmt.Errorf("the account that others read the cluster with cannot be made: %w", err)
		}
	}
	return nil
}

// Reader are the objects of an account that may read what a control plane reads of other clusters. They are those of
// the chart remote.
func Reader(namespace, account string) []runtime.Object {
	labels := map[string]string{"app": "reader", "app.kubernetes.io/part-of": "fairlead"}
	read := []string{"get", "list", "watch"}
	no := false
	rbac := metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1"}
	role, binding := rbac, rbac
	role.Kind, binding.Kind = "ClusterRole", "ClusterRoleBinding"
	meta := metav1.ObjectMeta{Name: account, Labels: labels}
	return []runtime.Object{
		&corev1.ServiceAccount{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
			ObjectMeta: metav1.ObjectMeta{Name: account, Namespace: namespace, Labels: labels}, AutomountServiceAccountToken: &no},
		&rbacv1.ClusterRole{TypeMeta: role, ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"services", "pods", "nodes", "namespaces"}, Verbs: read},
			{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: read},
			{APIGroups: []string{"multicluster.x-k8s.io"}, Resources: []string{"serviceexports", "serviceimports"}, Verbs: read},
		}},
		&rbacv1.ClusterRoleBinding{TypeMeta: binding, ObjectMeta: meta,
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: account},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: account, Namespace: namespace}}},
	}
}

// token returns the token Secret to use, filled in by Kubernetes.
func (c Cluster) token(ctx context.Context, o Options) (*corev1.Secret, error) {
	secrets := c.API.CoreV1().Secrets(o.Namespace)
	var found *corev1.Secret
	switch {
	case o.TokenSecret != "":
		named, err := secrets.Get(ctx, o.TokenSecret, metav1.GetOptions{})
		if err != nil {
			return nil, kube.Explain(err)
		}
		if !isTokenOf(named, o.Account) {
			return nil, fmt.Errorf("--secret-name: Secret %s/%s is no token of service account %s; name one of type %s", o.Namespace, o.TokenSecret,
				o.Account, corev1.SecretTypeServiceAccountToken)
		}
		found = named
	default:
		all, err := c.tokens(ctx, o)
		if err != nil {
			return nil, err
		}
		if len(all) > 0 && !o.Rotate {
			found = &all[len(all)-1]
			break
		}
		fresh := &corev1.Secret{Type: corev1.SecretTypeServiceAccountToken,
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{corev1.ServiceAccountNameKey: o.Account}}}
		if fresh.Name = o.Account + tokenSuffix; len(all) > 0 {
			fresh.Name, fresh.GenerateName = "", o.Account+tokenSuffix+"-"
		}
		if found, err = secrets.Create(ctx, fresh, metav1.CreateOptions{}); err != nil {
			return nil, kube.Explain(err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.Wait)
	defer cancel()
	for len(found.Data[corev1.ServiceAccountTokenKey]) == 0 || len(found.Data[corev1.ServiceAccountRootCAKey]) == 0 {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the token of Secret %s/%s is not there within %s; see whether kube-controller-manager runs, and try again",
				found.Namespace, found.Name, c.Wait)
		case <-time.After(100 * time.Millisecond):
		}
		got, err := secrets.Get(ctx, found.Name, metav1.GetOptions{})
		switch {
		case err == nil:
			found = got
		case ctx.Err() == nil:
			return nil, kube.Explain(err)
		}
	}
	return found, nil
}

// tokens lists the account's token Secrets, the newest last.
func (c Cluster) tokens(ctx context.Context, o Options) ([]corev1.Secret, error) {
	list, err := c.API.CoreV1().Secrets(o.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: "type=" + string(corev1.SecretTypeServiceAccountToken)})
	if err != nil {
		return nil, kube.Explain(err)
	}
	out := slices.DeleteFunc(list.Items, func(s corev1.Secret) bool { return !isTokenOf(&s, o.Account) })
	slices.SortFunc(out, byAge)
	return out, nil
}

// byAge orders Secrets, the oldest first.
func byAge(a, b corev1.Secret) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
}

func isTokenOf(s *corev1.Secret, account string) bool {
	return s.Type == corev1.SecretTypeServiceAccountToken && s.Annotations[corev1.ServiceAccountNameKey] == account
}

// Revoke removes all tokens of the account but one, and returns the names of those that it has removed. Who reads with
// one of them is refused from then on.
func (c Cluster) Revoke(ctx context.Context, o Options, keep string) ([]string, error) {
	all, err := c.tokens(ctx, o)
	if err != nil {
		return nil, err
	}
	var gone []string
	var failed []error
	for _, s := range all {
		if s.Name == keep {
			continue
		}
		if err := c.API.CoreV1().Secrets(o.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, kube.Explain(err))
			continue
		}
		gone = append(gone, s.Name)
	}
	return gone, errors.Join(failed...)
}
