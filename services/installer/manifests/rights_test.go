package manifests_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/installer/internal/install/manifest"
	"fairlead.dev/services/installer/internal/install/render"
	"fairlead.dev/services/installer/internal/install/tree"
)

// rights lists what each service account may, one line for each account, verb and resource: "ca create configmaps in
// every namespace".
func rights(t *testing.T, objects []runtime.Object) []string {
	t.Helper()
	rules := map[string][]rbacv1.PolicyRule{}
	for _, o := range objects {
		switch o := o.(type) {
		case *rbacv1.ClusterRole:
			rules["ClusterRole "+o.Name] = o.Rules
		case *rbacv1.Role:
			rules["Role "+o.Namespace+"/"+o.Name] = o.Rules
		}
	}
	var lines []string
	grant := func(ref rbacv1.RoleRef, subjects []rbacv1.Subject, namespace string) {
		role, where := ref.Kind+" "+ref.Name, "in every namespace"
		if namespace != "" {
			where = "in " + namespace
		}
		if ref.Kind == "Role" {
			role = "Role " + namespace + "/" + ref.Name
		}
		found, ok := rules[role]
		if !ok {
			t.Errorf("%s is bound, but not rendered", role)
		}
		for _, s := range subjects {
			for _, r := range found {
				if len(r.NonResourceURLs) > 0 || s.Kind != rbacv1.ServiceAccountKind {
					t.Errorf("%s grants %v to %s %s", role, r.NonResourceURLs, s.Kind, s.Name)
				}
				for _, verb := range r.Verbs {
					for _, resource := range r.Resources {
						names := ""
						if len(r.ResourceNames) > 0 {
							names = " " + strings.Join(r.ResourceNames, ",")
						}
						lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s/%s may %s %s.%s%s %s", s.Namespace, s.Name, verb, resource, r.APIGroups[0],
							names, where)))
						if verb == "*" || resource == "*" || slices.Contains(r.APIGroups, "*") || len(r.APIGroups) != 1 {
							t.Errorf("%s has a wildcard, or several groups: %+v", role, r)
						}
					}
				}
			}
		}
	}
	for _, o := range objects {
		switch o := o.(type) {
		case *rbacv1.ClusterRoleBinding:
			grant(o.RoleRef, o.Subjects, "")
		case *rbacv1.RoleBinding:
			grant(o.RoleRef, o.Subjects, o.Namespace)
		}
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

// TestRightsOfServices holds the whole matrix of service, verb and resource, for each profile. Whoever changes it reads
// the difference.
func TestRightsOfServices(t *testing.T) {
	pkg := open(t)
	for _, name := range []string{"minimal", "compact", "remote", "demo"} {
		objects, err := decode(text(t, withoutCRDs(generate(t, pkg, name, nil).Objects)))
		if err != nil {
			t.Fatal(err)
		}
		lines := rights(t, objects)
		switch name {
		case "minimal":
			table(t, "../../../docs/security.md", lines)
			fallthrough
		case "compact", "remote":
			testkit.Golden(t, "testdata/rights/"+name+".txt", []byte(strings.Join(lines, "\n")+"\n"))
		}
		for _, line := range lines {
			who, right, _ := strings.Cut(line, " may ")
			verb, what, _ := strings.Cut(right, " ")
			changes := !slices.Contains([]string{"get", "list", "watch"}, verb)
			allowed := map[string]bool{
				"create configmaps. in every namespace": true, "update configmaps. istio-ca-root-cert in every namespace": true,
				"update configmaps. fairlead-jwks in istio-system":                                 true,
				"create leases.coordination.k8s.io in istio-system":                                true,
				"update leases.coordination.k8s.io fairlead-config-watcher-status in istio-system": true,
				// Classes select no controller but the mesh's, and are given no rights by anybody.
				"create gatewayclasses.gateway.networking.k8s.io in every namespace": true,
				"create xmeshes.gateway.networking.x-k8s.io in every namespace":      true,
			}
			bindings := "rolebindings.rbac.authorization.k8s.io fairlead-config-watcher-credentials,fairlead-config-watcher-registration in every " +
				"namespace"
			if name == "compact" {
				bindings = "rolebindings.rbac.authorization.k8s.io " +
					"fairlead-config-watcher-credentials-xds-server,fairlead-config-watcher-registration-xds-server in every namespace"
			}
			// Whoever may change a webhook configuration decides about everything: only the process that nobody can
			// talk to may.
			keeps := map[string]bool{
				"patch validatingwebhookconfigurations.admissionregistration.k8s.io fairlead-validator in every namespace":   true,
				"patch mutatingwebhookconfigurations.admissionregistration.k8s.io istio-sidecar-injector in every namespace": true,
				"bind clusterroles.rbac.authorization.k8s.io fairlead-config-watcher-credentials,fairlead-config-watcher-registration in every " +
					"namespace": true,
				"create rolebindings.rbac.authorization.k8s.io in every namespace": true, "delete " + bindings: true,
				"patch configmaps. fairlead-remote-roots in istio-system": name == "remote",
			}
			// Whoever makes Deployments everywhere may run any Pod: a policy bounds what this account makes, which
			// TestAStolenTokenMakesNothingButGateways of tests/kube/gateways holds.
			deploys := map[string]bool{
				"create events. in every namespace":                                   true,
				"create leases.coordination.k8s.io in istio-system":                   true,
				"update leases.coordination.k8s.io fairlead-gateways in istio-system": true,
			}
			for _, verb := range []string{"create", "patch", "delete"} {
				for _, of := range []string{"serviceaccounts.", "services.", "deployments.apps", "horizontalpodautoscalers.autoscaling",
					"poddisruptionbudgets.policy"} {
					deploys[verb+" "+of+" in every namespace"] = true
				}
			}
			if name == "remote" && changes && !strings.HasSuffix(who, "/keeper") {
				t.Errorf("profile remote: %s changes something: %s", who, right)
			}
			switch {
			case strings.HasSuffix(who, "/keeper") && keeps[right]:
			case who == "istio-system/gateways" && (deploys[right] || !changes):
			case changes && verb == "patch" && strings.Contains(what, "/status."):
			case changes && !allowed[right]:
				t.Errorf("profile %s: %s may change more than it must: %s", name, who, right)
			case strings.HasSuffix(who, "/xds-server") && name != "compact", strings.Contains(who, "gateway"):
				t.Errorf("profile %s: %s may %s", name, who, right)
			case strings.HasSuffix(who, "/ca") && strings.HasPrefix(what, "secrets"):
				t.Errorf("profile %s: the ca may %s", name, right)
			}
		}
	}
}

// table holds the table of rights in a document, between two comments. tests/kube reads it, and tries a token of each
// account.
func table(t *testing.T, path string, lines []string) {
	t.Helper()
	type row struct{ account, verbs, names, where string }
	verbs, resources := map[[3]string][]string{}, map[row][]string{}
	for _, line := range lines {
		account, right, _ := strings.Cut(line, " may ")
		verb, what, _ := strings.Cut(right, " ")
		verbs[[3]string{account, what}] = append(verbs[[3]string{account, what}], verb)
	}
	for of, all := range verbs {
		what, where, _ := strings.Cut(of[1], " in ")
		resource, names, _ := strings.Cut(what, " ")
		r := row{of[0], strings.Join(all, ", "), strings.ReplaceAll(names, ",", ", "), where}
		resources[r] = append(resources[r], "`"+strings.TrimSuffix(resource, ".")+"`")
	}
	var rows []string
	for r, all := range resources {
		slices.Sort(all)
		if r.names == "" {
			r.names = "all"
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s | %s |\n", r.account, r.verbs, strings.Join(all, ", "), r.names, r.where))
	}
	slices.Sort(rows)
	const begin, end = "<!-- Rights: written by `make generate`. -->\n", "<!-- End of rights. -->\n"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), begin)
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no place for the table of rights", path)
	}
	head := "| account | may | of | named | in |\n|---|---|---|---|---|\n"
	testkit.Golden(t, path, []byte(before+begin+head+strings.Join(rows, "")+end+after))
}

// TestRightsOfSplitNamespaces holds the same matrix where each service has a namespace of its own, as in the overlay
// split-namespaces. tests/kube compares both with what an API server lets the services do.
func TestRightsOfSplitNamespaces(t *testing.T) {
	result := generate(t, open(t), "minimal", nil, "components.ca.namespace=fairlead-ca", "components.xdsServer.namespace=fairlead-xds")
	objects, err := decode(text(t, withoutCRDs(result.Objects)))
	if err != nil {
		t.Fatal(err)
	}
	testkit.Golden(t, "testdata/rights/split-namespaces.txt", []byte(strings.Join(rights(t, objects), "\n")+"\n"))
}

// TestRightsOfOtherAccounts holds what gateways, the CNI agent and the operator may. tests/kube tries their tokens.
func TestRightsOfOtherAccounts(t *testing.T) {
	pkg := open(t)
	chart, err := pkg.Chart("charts/operator")
	if err != nil {
		t.Fatal(err)
	}
	operator, err := render.Chart("operator", chart, tree.Map{}, "istio-operator")
	if err != nil {
		t.Fatal(err)
	}
	for name, all := range map[string][]*manifest.Object{
		"demo-cni": generate(t, pkg, "demo", nil, "components.cni.enabled=true").Objects,
		"operator": operator,
	} {
		objects, err := decode(text(t, withoutCRDs(all)))
		if err != nil {
			t.Fatal(err)
		}
		testkit.Golden(t, "testdata/rights/"+name+".txt", []byte(strings.Join(rights(t, objects), "\n")+"\n"))
	}
}

// TestRightsOfTheCNIAgent holds that the agent of nodes may change no more than its way to repair Pods asks for.
func TestRightsOfTheCNIAgent(t *testing.T) {
	pkg := open(t)
	for way, want := range map[string]struct {
		set  []string
		more []string
	}{
		"repair": {nil, []string{"create events. in every namespace"}},
		"delete": {[]string{"values.cni.repair.repairPods=false", "values.cni.repair.deletePods=true"},
			[]string{"create events. in every namespace", "delete pods. in every namespace"}},
		"label": {[]string{"values.cni.repair.repairPods=false", "values.cni.repair.labelPods=true"},
			[]string{"create events. in every namespace", "patch pods/status. in every namespace"}},
		"off": {[]string{"values.cni.repair.enabled=false"}, nil},
		"taint": {[]string{"values.cni.repair.enabled=false", "values.cni.taint=example.com/t"},
			[]string{"get nodes. in every namespace", "patch nodes. in every namespace"}},
	} {
		result := generate(t, pkg, "empty", nil, append([]string{"components.cni.enabled=true"}, want.set...)...)
		objects, err := decode(text(t, result.Objects))
		if err != nil {
			t.Fatal(err)
		}
		all := append([]string{
			"get daemonsets.apps fairlead-cni-node in kube-system", "get pods. in every namespace", "list pods. in every namespace",
			"watch pods. in every namespace",
		}, want.more...)
		for i, right := range all {
			all[i] = "kube-system/fairlead-cni may " + right
		}
		slices.Sort(all)
		if got := rights(t, objects); !slices.Equal(got, all) {
			t.Errorf("%s: %q, want %q", way, got, all)
		}
		capabilities := strings.Count(text(t, result.Objects), "SYS_ADMIN")
		if (way == "repair") != (capabilities == 1) || len(result.Warnings) > 0 {
			t.Errorf("%s: SYS_ADMIN %d times, warnings %q", way, capabilities, result.Warnings)
		}
	}
}
