package manifests_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/installer/internal/install/manifest"
	"fairlead.dev/services/installer/internal/install/render"
	"fairlead.dev/services/installer/internal/install/tree"
)

// verbsOf are what an installation does with objects of a kind. Namespaces and volumes are not deleted.
func verbsOf(kind string) []string {
	verbs := []string{"get", "list", "watch", "create", "patch"}
	if kind != "Namespace" && kind != "PersistentVolumeClaim" {
		verbs = append(verbs, "delete")
	}
	return verbs
}

// TestOperatorRights holds that the operator may do what an installation of any profile needs, and no more: write the
// kinds that it consists of, give the rights that its services have, keep inventories, and look at Pods.
// `go test ./services/installer/manifests -run TestOperatorRights -update` writes the file.
func TestOperatorRights(t *testing.T) {
	pkg := open(t)
	// bound is the keeper's rule for roles that it binds by name.
	var bound rbacv1.PolicyRule
	// Verbs by group and resource, "apps deployments".
	own := map[string]map[string]bool{}
	add := func(group, resource string, verbs ...string) {
		key := group + " " + resource
		if own[key] == nil {
			own[key] = map[string]bool{}
		}
		for _, verb := range verbs {
			own[key][verb] = true
		}
	}
	look := func(o *manifest.Object) {
		group, version, found := strings.Cut(o.APIVersion(), "/")
		if !found {
			group, version = "", group
		}
		plural, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Group: group, Version: version, Kind: o.Kind()})
		add(group, plural.Resource, verbsOf(o.Kind())...)
		if o.Kind() == "CustomResourceDefinition" {
			group, _, _ := unstructured.NestedString(o.Tree, "spec", "group")
			plural, _, _ := unstructured.NestedString(o.Tree, "spec", "names", "plural")
			add(group, plural, "list") // a definition with objects is not deleted
		}
		if !slices.Contains([]string{"Role", "ClusterRole"}, o.Kind()) {
			return
		}
		var role rbacv1.ClusterRole
		if text, err := json.Marshal(o.Tree); err != nil || json.Unmarshal(text, &role) != nil {
			t.Fatalf("%s: %v", o.ID(), err)
		}
		for _, rule := range role.Rules {
			if slices.Contains(rule.Verbs, "bind") {
				// Whoever may bind any role may do everything. A setting takes one of the roles away.
				if len(rule.ResourceNames) > len(bound.ResourceNames) {
					bound = rule
				}
				continue
			}
			// Names have the revision and the namespace of an installation in them.
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					add(group, resource, rule.Verbs...)
				}
			}
			if len(rule.NonResourceURLs) > 0 {
				t.Errorf("%s is about paths: %v", o.ID(), rule.NonResourceURLs)
			}
		}
	}
	for _, name := range profiles {
		for _, with := range variants {
			for _, o := range generate(t, pkg, name, with.files, with.set...).Objects {
				look(o)
			}
		}
	}
	for _, way := range []string{"deletePods", "labelPods"} {
		for _, o := range generate(t, pkg, "empty", nil, "components.cni.enabled=true", "values.cni.repair.repairPods=false",
			"values.cni.repair."+way+"=true", "values.cni.taint=example.com/t").Objects {
			look(o)
		}
	}
	for _, o := range generate(t, pkg, "default", nil, "values.pilot.env.ENABLE_MCS_SERVICE_DISCOVERY=true",
		"values.pilot.env.ENABLE_MCS_AUTO_EXPORT=true").Objects {
		look(o)
	}
	add("", "secrets", "get", "list", "create", "update", "delete")
	add("", "pods", "create", "delete", "get", "list") // a Pod tries a new image before the old Pod ends
	add("", "pods/log", "get")
	var rules []rbacv1.PolicyRule
	for _, key := range slices.Sorted(maps.Keys(own)) {
		group, resource, _ := strings.Cut(key, " ")
		rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource},
			Verbs: slices.Sorted(maps.Keys(own[key]))})
	}
	if roles := []string{"fairlead-config-watcher-credentials", "fairlead-config-watcher-registration"}; !slices.Equal(bound.ResourceNames,
		roles) || !slices.Equal(bound.Resources, []string{"clusterroles"}) {
		t.Errorf("the operator would have the right to bind %v %v", bound.Resources, bound.ResourceNames)
	}
	for _, rule := range rules {
		if text := fmt.Sprint(rule); strings.Contains(text, "*") || slices.Contains(rule.Verbs, "escalate") ||
			slices.Contains(rule.Verbs, "bind") {
			t.Errorf("the operator would have a right without bounds: %s", text)
		}
	}
	text, err := yaml.Marshal(append(rules, bound))
	if err != nil {
		t.Fatal(err)
	}
	testkit.Golden(t, "charts/operator/files/rights.yaml",
		append([]byte("# Written by go test ./services/installer/manifests -run TestOperatorRights -update, from the charts.\n"), text...))
}

// TestOperatorChart holds the objects of the operator: alone, and as a revision that watches two namespaces.
func TestOperatorChart(t *testing.T) {
	pkg := open(t)
	chart, err := pkg.Chart("charts/operator")
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range map[string]tree.Map{
		"default": {},
		"watched": {"revision": "canary", "watchedNamespaces": []any{"istio-system", "mesh"},
			"global": tree.Map{"hub": "example.com/mesh", "tag": "1", "imagePullSecrets": []any{"key"}, "networkPolicy": tree.Map{"enabled": true}}},
	} {
		objects, err := render.Chart("operator", chart, values, "istio-operator")
		if err != nil {
			t.Fatal(err)
		}
		got := text(t, withoutCRDs(objects))
		if _, err := decode(got); err != nil {
			t.Error(err)
		}
		testkit.Golden(t, "testdata/operator/"+name+".yaml", []byte(got))
	}
}
