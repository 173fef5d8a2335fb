package manifests_test

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
)

// TestMultiClusterServices: istiod's variables become flags of config-watcher, and give it the rights that these need.
// Without one it has none.
func TestMultiClusterServices(t *testing.T) {
	pkg := open(t)
	for name, tc := range map[string]struct{ env, flags, rights string }{
		"none":  {"{A: b}", "", ""},
		"false": {`{ENABLE_MCS_SERVICE_DISCOVERY: "false"}`, "", ""},
		"discovery": {`{ENABLE_MCS_SERVICE_DISCOVERY: "true"}`, "--mcs-service-discovery",
			"get serviceexports, list serviceexports, patch serviceexports/status, watch serviceexports"},
		"all": {`{ENABLE_MCS_SERVICE_DISCOVERY: "true", ENABLE_MCS_HOST: "1", ENABLE_MCS_CLUSTER_LOCAL: "True", ENABLE_MCS_AUTO_EXPORT: "true"}`,
			"--mcs-service-discovery --mcs-host --mcs-cluster-local --mcs-auto-export",
			"create serviceexports, get serviceexports, list serviceexports, patch serviceexports/status, watch serviceexports"},
	} {
		for _, profile := range []string{"minimal", "compact"} {
			t.Run(profile+"/"+name, func(t *testing.T) {
				objects := installed(t, pkg, profile, "{values: {pilot: {env: "+tc.env+"}}}")
				var flags, may []string
				for _, o := range objects {
					if d, ok := o.(*appsv1.Deployment); ok {
						for _, c := range d.Spec.Template.Spec.Containers {
							flags = append(flags, slices.DeleteFunc(slices.Clone(c.Args), func(a string) bool { return !strings.HasPrefix(a, "--mcs-") })...)
						}
					}
				}
				for _, line := range rights(t, objects) {
					_, right, _ := strings.Cut(line, " may ")
					if verb, what, _ := strings.Cut(right, " "); strings.HasPrefix(what, "serviceexports") {
						resource, _, _ := strings.Cut(what, ".")
						may = append(may, verb+" "+resource)
					}
				}
				slices.Sort(may)
				if got := strings.Join(flags, " "); got != tc.flags {
					t.Errorf("flags %q, want %q", got, tc.flags)
				}
				if got := strings.Join(may, ", "); got != tc.rights {
					t.Errorf("rights %q, want %q", got, tc.rights)
				}
			})
		}
	}
	for env, want := range map[string]string{
		`{ENABLE_MCS_HOST: "true"}`: "ENABLE_MCS_SERVICE_DISCOVERY",
		`{ENABLE_MCS_SERVICE_DISCOVERY: "true", ENABLE_MCS_CLUSTER_LOCAL: "true"}`: "ENABLE_MCS_HOST",
	} {
		_, err := try(pkg, "minimal", "apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\nspec: {values: {pilot: {env: "+env+"}}}")
		if err == nil || !strings.Contains(err.Error(), "has no effect without "+want) {
			t.Errorf("%s: %v", env, err)
		}
	}
}
