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

func TestXDSServersDoNotTalkToKubernetes(t *testing.T) {
	objects := mesh(t)
	for account, rules := range grants(t, objects) {
		if account != "config-watcher" && account != "ca" && account != "injector" && account != "keeper" && account != "gateways" {
			t.Errorf("%s may %+v", account, rules)
		}
	}
	for _, name := range services {
		d, c := service(t, objects, name)
		if mounted := d.Spec.Template.Spec.AutomountServiceAccountToken; mounted == nil || *mounted {
			t.Errorf("%s gets a token for Kubernetes' API in every container", name)
		}
		if got := onMount(c, "/var/run/secrets/kubernetes.io/serviceaccount/token"); got != (name != "xds-server") {
			t.Errorf("%s has a token for Kubernetes' API: %v", name, got)
		}
	}
}

// The ca writes two ConfigMaps, and reads no other but those of remote clusters in its own namespace, by their label.
func TestTheCAKeepsTwoConfigMaps(t *testing.T) {
	own := 0
	for _, r := range grants(t, mesh(t))["ca"] {
		switch {
		case slices.Equal(r.Resources, []string{"namespaces"}) && slices.Equal(r.Verbs, []string{"list", "watch"}):
		case slices.Equal(r.Resources, []string{"serviceaccounts", "pods"}) && slices.Equal(r.Verbs, []string{"get", "list", "watch"}):
		case slices.Equal(r.Resources, []string{"identitybans"}) && slices.Equal(r.Verbs, []string{"list", "watch"}):
		case slices.Equal(r.Resources, []string{"mutatingwebhookconfigurations", "validatingwebhookconfigurations"}) &&
			slices.Equal(r.Verbs, []string{"list", "watch"}): // a rotation waits for their caBundles
		case !slices.Equal(r.Resources, []string{"configmaps"}):
			t.Errorf("the ca may %+v", r)
		case slices.Equal(r.Verbs, []string{"create"}): // a name cannot be asked for
		case slices.Equal(r.ResourceNames, []string{"istio-ca-root-cert"}) && slices.Equal(r.Verbs, []string{"get", "list", "watch", "update"}):
		case slices.Equal(r.ResourceNames, []string{"fairlead-jwks"}) && slices.Equal(r.Verbs, []string{"get", "update"}):
		case len(r.ResourceNames) == 0 && slices.Equal(r.Verbs, []string{"list", "watch"}) && own == 0:
			own++
		default:
			t.Errorf("the ca may %+v", r)
		}
	}
	for _, role := range all[*rbacv1.ClusterRole](mesh(t)) {
		for _, r := range role.Rules {
			if strings.HasPrefix(role.Name, "fairlead-ca") && slices.Contains(r.Resources, "configmaps") && len(r.ResourceNames) == 0 &&
				!slices.Equal(r.Verbs, []string{"create"}) {
				t.Errorf("the ca reads ConfigMaps of every namespace: %+v", r)
			}
		}
	}
}

func TestConfigWatcherChangesStatusAndEntriesOfMachinesOnly(t *testing.T) {
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
			case resource == "leases" && slices.Equal(r.APIGroups, []string{"coordination.k8s.io"}):
				checkLease(t, r)
			case resource == "validatingwebhookconfigurations" && slices.Equal(r.APIGroups, []string{"admissionregistration.k8s.io"}):
				checkWebhookRight(t, r)
			case resource == "workloadentries" && slices.Equal(r.Verbs, []string{"create", "patch", "delete"}) &&
				slices.Equal(r.APIGroups, []string{"networking.istio.io"}):
				// It registers machines, and removes them.
			case resource == "gatewayclasses" && slices.Equal(r.Verbs, []string{"create"}) &&
				slices.Equal(r.APIGroups, []string{"gateway.networking.k8s.io"}):
				// It makes the mesh's classes, where they are missing.
			case base == "xmeshes" && slices.Equal(r.APIGroups, []string{"gateway.networking.x-k8s.io"}):
				if want := map[bool][]string{true: {"patch"}, false: {"get", "list", "create"}}[isStatus]; !slices.Equal(r.Verbs, want) {
					t.Errorf("config-watcher may %v %s", r.Verbs, resource) // it makes its own, and says there what the mesh supports
				}
			case resource == "mutatingwebhookconfigurations" && slices.Equal(r.Verbs, []string{"list", "watch"}):
				// Tags of revisions, which decide who writes a status.
			case strings.Contains(base, "/"):
				t.Errorf("config-watcher may %v %s", r.Verbs, resource)
			case isStatus && (!slices.Equal(r.Verbs, []string{"patch"}) || !strings.HasSuffix(r.APIGroups[0], ".istio.io") &&
				r.APIGroups[0] != "gateway.networking.k8s.io" && resource != "ingresses/status"):
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
		"networking.istio.io/destinationrules", "networking.istio.io/gateways", "networking.istio.io/sidecars",
		"security.istio.io/peerauthentications",
		"/configmaps", "/secrets", "networking.k8s.io/ingresses", "networking.k8s.io/ingressclasses",
	} {
		if !readable[needed] {
			t.Errorf("config-watcher cannot read %s", needed)
		}
	}
}

// Secrets and ConfigMaps are readable by roles of their own, which an overlay can narrow without touching the rest: one
// for credentials, one for the namespace of the Secrets that name remote clusters, one for the ConfigMaps of the root
// namespace, and one for those of the mesh's settings and the injector's. fairlead-gateways reads no Secret.
func TestSecretsAreInARoleOfTheirOwn(t *testing.T) {
	objects := mesh(t)
	inRole := func(name string, rules []rbacv1.PolicyRule, inNamespace bool) {
		for _, r := range rules {
			for _, resource := range r.Resources {
				if resource != "secrets" && resource != "configmaps" {
					continue
				}
				switch {
				case name == "fairlead-config-watcher-credentials" && len(rules) == 1:
				case name == "fairlead-config-watcher-remote-clusters" && resource == "secrets" && len(rules) == 1:
				case name == "fairlead-ca" && resource == "configmaps": // TestTheCAKeepsTwoConfigMaps
				case name == "fairlead-injector" && resource == "configmaps" &&
					slices.Equal(r.ResourceNames, []string{"istio-sidecar-injector", "istio"}):
				case name == "config-watcher" && inNamespace && resource == "configmaps" && slices.Equal(r.Verbs, []string{"get", "list", "watch"}):
					// Defaults of GatewayClasses have any name, and a label.
				case name == "fairlead-gateways" && resource == "configmaps" && slices.Equal(r.Verbs, []string{"get", "list", "watch"}):
					// Overlays, of any name, are beside the Gateways.
				default:
					t.Errorf("role %s grants %s with resource names %v", name, resource, r.ResourceNames)
				}
			}
		}
	}
	for _, r := range all[*rbacv1.ClusterRole](objects) {
		inRole(r.Name, r.Rules, false)
	}
	for _, r := range all[*rbacv1.Role](objects) {
		inRole(r.Name, r.Rules, true)
	}
}

// checkLease asserts that a rule about leases allows no more than the election of the replica that writes statuses.
func checkLease(t *testing.T, r rbacv1.PolicyRule) {
	t.Helper()
	switch {
	case slices.Equal(r.Verbs, []string{"create"}): // a name cannot be asked for
	case slices.Equal(r.Verbs, []string{"get", "update"}) && slices.Equal(r.ResourceNames, []string{"fairlead-config-watcher-status"}):
	default:
		t.Errorf("config-watcher may %v leases %v", r.Verbs, r.ResourceNames)
	}
}

// checkWebhookRight asserts that a rule allows to read the one webhook configuration that is config-watcher's own.
func checkWebhookRight(t *testing.T, r rbacv1.PolicyRule) {
	t.Helper()
	if !slices.Equal(r.Verbs, []string{"get", "list", "watch"}) || !slices.Equal(r.ResourceNames, []string{"fairlead-validator"}) {
		t.Errorf("config-watcher may %v webhook configurations %v", r.Verbs, r.ResourceNames)
	}
}

// The replicas of a revision may take part in the election for the Lease that they use, and in no other.
func TestReplicasOfARevisionMayElectTheirWriter(t *testing.T) {
	text, err := render("../../deploy/kustomize/overlays/revision")
	if err != nil {
		t.Fatal(err)
	}
	objects, err := decode(text)
	if err != nil {
		t.Fatal(err)
	}
	_, watcher := service(t, objects, "config-watcher-canary")
	revision := argument(watcher, "--revision")
	if revision == "" {
		t.Fatal("config-watcher has no --revision")
	}
	var may []string
	for _, r := range grants(t, objects)["config-watcher"] {
		if slices.Contains(r.Resources, "leases") && slices.Contains(r.Verbs, "update") {
			may = append(may, r.ResourceNames...)
		}
	}
	if want := []string{"fairlead-config-watcher-status-" + revision}; !slices.Equal(may, want) {
		t.Errorf("config-watcher --revision=%s may update the leases %v, and uses %v", revision, may, want)
	}
}
