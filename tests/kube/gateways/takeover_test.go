package gateways

import (
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.dev/pkg/testkit"
)

// TestWhatIstiosControllerHasMadeIsTakenOver: when a Gateway becomes Fairlead's, its objects stay and nothing of
// Istio's is left in them.
func TestWhatIstiosControllerHasMadeIsTakenOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.namespace(theirs, map[string]string{"istio.io/rev": theirs})
	r.startIstiod()
	r.Apply(t, gateway(theirs, "web", "", ""))
	r.has(theirs, "web-istio", standard...)
	r.start()
	before := map[string]string{}
	for _, kind := range standard {
		before[kind] = string(r.get(kind, theirs, "web-istio").GetUID())
	}
	r.label(theirs, `{"istio.io/rev":null}`)
	testkit.Eventually(t, patience, func() error {
		var dep appsv1.Deployment
		r.into("Deployment", theirs, "web-istio", &dep)
		c := dep.Spec.Template.Spec.Containers[0]
		if slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "PILOT_CERT_PROVIDER" }) || c.Image != "fairlead/proxy:dev" {
			return fmt.Errorf("the container is %s with %v", c.Image, c.Env)
		}
		for _, kind := range standard {
			u := r.get(kind, theirs, "web-istio")
			if string(u.GetUID()) != before[kind] {
				return fmt.Errorf("the %s was made anew", kind)
			}
			if slices.ContainsFunc(u.GetManagedFields(), func(m metav1.ManagedFieldsEntry) bool {
				return m.Manager == "istio.io/gateway-controller"
			}) {
				return fmt.Errorf("the %s has fields of Istio's", kind)
			}
		}
		return nil
	})
}
