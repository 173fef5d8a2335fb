package deploy

import (
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// grants are the rules of each service account, by its name.
func grants(t *testing.T, objects []runtime.Object) map[string][]rbacv1.PolicyRule {
	t.Helper()
	rules := map[string][]rbacv1.PolicyRule{}
	collect := func(binding string, ref rbacv1.RoleRef, subjects []rbacv1.Subject) {
		var found []rbacv1.PolicyRule
		if r, ok := named[*rbacv1.ClusterRole](objects, ref.Name); ok && ref.Kind == "ClusterRole" {
			found = r.Rules
		} else if r, ok := named[*rbacv1.Role](objects, ref.Name); ok && ref.Kind == "Role" {
			found = r.Rules
		} else {
			t.Errorf("%s grants %s %s, which is not rendered", binding, ref.Kind, ref.Name)
		}
		for _, s := range subjects {
			if s.Kind != rbacv1.ServiceAccountKind || s.Namespace != namespace {
				t.Errorf("%s grants to %s %s/%s", binding, s.Kind, s.Namespace, s.Name)
			}
			rules[s.Name] = append(rules[s.Name], found...)
		}
	}
	for _, b := range all[*rbacv1.ClusterRoleBinding](objects) {
		collect(b.Name, b.RoleRef, b.Subjects)
	}
	for _, b := range all[*rbacv1.RoleBinding](objects) {
		collect(b.Name, b.RoleRef, b.Subjects)
	}
	return rules
}

func TestOnlyConfigWatcherTalksToKubernetes(t *testing.T) {
	objects := mesh(t)
	for account, rules := range grants(t, objects) {
		if account != "config-watcher" {
			t.Errorf("%s may %+v", account, rules)
		}
	}
	for _, name := range services {
		d, _ := service(t, objects, name)
		mounted := d.Spec.Template.Spec.AutomountServiceAccountToken
		if mounted == nil || *mounted != (name == "config-watcher") {
			t.Errorf("%s has a token for Kubernetes' API: %v", name, mounted)
		}
	}
}

func TestConfigWatcherReadsAndSetsStatusOnly(t *testing.T) {
	rules := grants(t, mesh(t))["config-watcher"]
	if len(rules) == 0 {
		t.Fatal("config-watcher may nothing")
	}
	read := []string{"get", "list", "watch"}
	readable := map[string]bool{}
	for _, r := range rules {
		if len(r.NonResourceURLs) > 0 || slices.Contains(append(append(slices.Clone(r.APIGroups), r.Resources...), r.Verbs...), "*") {
			t.Errorf("rule with a wildcard: %+v", r)
		}
		for _, resource := range r.Resources {
			base, isStatus := strings.CutSuffix(resource, "/status")
			switch {
			case strings.Contains(base, "secrets") || strings.Contains(base, "/"):
				t.Errorf("config-watcher may %v %s", r.Verbs, resource)
			case isStatus && (!slices.Equal(r.Verbs, []string{"patch"}) || !strings.HasSuffix(r.APIGroups[0], ".istio.io")):
				t.Errorf("config-watcher may %v %s of %v", r.Verbs, resource, r.APIGroups)
			case isStatus && !readable[r.APIGroups[0]+"/"+base]:
				t.Errorf("config-watcher may set the status of %s, which it does not read", base)
			case !isStatus && !slices.Equal(r.Verbs, read):
				t.Errorf("config-watcher may %v %s", r.Verbs, resource)
			case !isStatus:
				readable[r.APIGroups[0]+"/"+base] = true
			}
		}
	}
	for _, needed := range []string{
		"/services", "/pods", "/nodes", "/namespaces", "discovery.k8s.io/endpointslices", "networking.istio.io/virtualservices",
		"networking.istio.io/destinationrules", "networking.istio.io/gateways", "networking.istio.io/sidecars", "security.istio.io/peerauthentications",
	} {
		if !readable[needed] {
			t.Errorf("config-watcher cannot read %s", needed)
		}
	}
}
