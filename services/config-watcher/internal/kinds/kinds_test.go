package kinds

import "testing"

// TestUnknownKinds: an unknown kind or group is taken for the known one that it most likely stands for.
func TestUnknownKinds(t *testing.T) {
	for _, c := range []struct{ group, kind, mistaken, similar string }{
		{"", "VirtualService", "networking.istio.io/v1", "networking.istio.io/v1 VirtualService"},
		{GroupSecurity, "VirtualService", "networking.istio.io/v1", "networking.istio.io/v1 VirtualService"},
		{"networking", "Gateway", "networking.istio.io/v1", "networking.istio.io/v1 Gateway"},
		{GroupNetworking, "Gateway", "", "networking.istio.io/v1 Gateway"},
		{"serving.knative.dev", "Service", "", "v1 Service"},
		{"apps", "Deploymnt", "", "apps/v1 Deployment"},
		{"rbac.authorization.k8s.io", "ClusterRole", "", ""},
	} {
		if got := Mistaken(c.group, c.kind); got != c.mistaken {
			t.Errorf("%s %s: mistaken for %q, want %q", c.group, c.kind, got, c.mistaken)
		}
		if got := Similar(c.kind); got != c.similar {
			t.Errorf("%s: similar to %q, want %q", c.kind, got, c.similar)
		}
	}
}

// TestTable: each kind is found, by its names alone too, and is made by exactly one of its functions.
func TestTable(t *testing.T) {
	for _, k := range All() {
		if Find(k.Group, k.Name) == nil || len(k.Versions) == 0 || (k.NewSpec == nil) == (k.NewBody == nil) {
			t.Errorf("%s %s is incomplete", k.Group, k.Name)
		}
		if group, kind, known := ByName(k.Name + "." + k.Group); k.Group != "" && (!known || group != k.Group || kind != k.Name) {
			t.Errorf("%s.%s is %s.%s", k.Name, k.Group, kind, group)
		}
		if _, _, known := ByName(k.Name); !known || Canonical(k.Group, k.Name) == "" {
			t.Errorf("%s %s is not found", k.Group, k.Name)
		}
	}
	if Find(GroupNetworking, "Nothing") != nil || Canonical("", "Nothing") != "" || ClusterScoped("", "Nothing") {
		t.Error("an unknown kind is found")
	}
	if !OwnGroup(GroupNetworking) || !OwnGroup(GroupFairlead) || OwnGroup("") || OwnGroup(GroupGatewayAPI) {
		t.Error("the groups of Istio and Fairlead, and no others, have only kinds of the table")
	}
}
