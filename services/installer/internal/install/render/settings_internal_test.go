package render

import (
	"reflect"
	"strings"
	"testing"

	"fairlead.dev/services/installer/internal/install/profile"
	"fairlead.dev/services/installer/internal/install/validate"
)

// What validation takes for a Kubernetes setting changes an object. Overlays are no setting of an object.
func TestEverySettingChangesSomething(t *testing.T) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[validate.KubernetesSettings]()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		_, patch, why := patchOf(name, nil, profile.Workload{Kind: "Deployment", Container: "main"}, "web", "web")
		if none := name == "overlays"; (why != "") != none || (patch == nil) != none {
			t.Errorf("k8s.%s: %v, %q", name, patch, why)
		}
	}
}
