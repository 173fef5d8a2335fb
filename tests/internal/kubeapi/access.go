package kubeapi

import (
	"fmt"
	"testing"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Rule allows verbs on resources of an API group in every namespace, for Grant.
func Rule(group string, resources []string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: verbs}
}

// User returns the kubeconfig of a user that may do nothing until Grant.
func (s *Server) User(t testing.TB, name string, groups ...string) (kubeconfig string) {
	t.Helper()
	kubeconfig, err := s.plane.UserKubeconfig("user-"+name, name, groups...)
	if err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

// ServiceAccount makes a service account, and its namespace, if they are not there, and returns the kubeconfig with a
// token of it, valid for an hour. It may do nothing until Grant.
func (s *Server) ServiceAccount(t testing.TB, namespace, name string) (kubeconfig string) {
	t.Helper()
	client, ctx := s.Client(t).CoreV1(), t.Context()
	_, err := client.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	_, err = client.ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	token, err := client.ServiceAccounts(namespace).CreateToken(ctx, name, &authv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err = s.plane.writeKubeconfig("sa-"+namespace+"-"+name, &clientcmdapi.AuthInfo{Token: token.Status.Token})
	if err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

// UserSubject is a user of User, ServiceAccountSubject an account of ServiceAccount, for Grant.
func UserSubject(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}
}

// ServiceAccountSubject is an account of ServiceAccount, for Grant.
func ServiceAccountSubject(namespace, name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}
}

// Grant replaces what Grant has allowed to a subject by rules, which hold in the whole cluster; without rules it may do
// nothing any more. The API server knows of it a moment later.
func (s *Server) Grant(t testing.TB, to rbacv1.Subject, rules ...rbacv1.PolicyRule) {
	t.Helper()
	client, ctx := s.Client(t).RbacV1(), t.Context()
	meta := metav1.ObjectMeta{Name: fmt.Sprintf("test:%s:%s:%s", to.Kind, to.Namespace, to.Name)}
	role := &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}
	_, err := client.ClusterRoles().Create(ctx, role, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = client.ClusterRoles().Update(ctx, role, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, Subjects: []rbacv1.Subject{to},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}
