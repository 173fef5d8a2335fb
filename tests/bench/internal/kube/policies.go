package kube

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// Policies are the AuthorizationPolicies of each namespace while they are there. The first one selects the Pods
	// with proxies.
	Policies = 2
	// RulesOfPolicy are the rules of each.
	RulesOfPolicy = 10
)

// AuthorizationPolicies is their resource.
var AuthorizationPolicies = schema.GroupVersionResource{Group: "security.istio.io", Version: "v1", Resource: "authorizationpolicies"}

// Policy is AuthorizationPolicy i of namespace n, one of whose rules names the text in a path.
func Policy(n, i int, text string) *unstructured.Unstructured {
	var rules []any
	for r := range RulesOfPolicy {
		path := fmt.Sprintf("/api/v1/items-%d/*", r)
		if r == RulesOfPolicy-1 {
			path = "/" + text + "/*"
		}
		principal := fmt.Sprintf("%s/ns/%s/sa/default", domain, Namespace(n+r))
		rules = append(rules, map[string]any{
			"from": []any{map[string]any{"source": map[string]any{"principals": []any{principal}}}},
			"to":   []any{map[string]any{"operation": map[string]any{"methods": []any{"GET", "POST"}, "paths": []any{path}}}},
		})
	}
	return meshObject(AuthorizationPolicies, "AuthorizationPolicy", ServiceName(i), Namespace(n), map[string]any{
		"selector": map[string]any{"matchLabels": map[string]any{"app": ServiceName(i)}}, "action": "ALLOW", "rules": rules,
	}).Unstructured
}

// AddPolicies creates the AuthorizationPolicies of all namespaces.
func (a *API) AddPolicies(ctx context.Context, s Spec) error {
	return parallel(ctx, s.Namespaces*Policies, func(ctx context.Context, k int) error {
		p := Policy(k/Policies, k%Policies, "first.")
		_, err := a.Dynamic.Resource(AuthorizationPolicies).Namespace(p.GetNamespace()).Create(ctx, p, metav1.CreateOptions{})
		return err
	})
}

// RemovePolicies deletes them.
func (a *API) RemovePolicies(ctx context.Context, s Spec) error {
	return parallel(ctx, s.Namespaces, func(ctx context.Context, n int) error {
		client := a.Dynamic.Resource(AuthorizationPolicies).Namespace(Namespace(n))
		return client.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	})
}
