package gateways

import (
	"errors"
	"fmt"
	"os"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.dev/pkg/testkit"
)

// TestWhatFailsIsToldAndTriedAgain: what the API server refuses, a broken file of values, and a right that is missing.
func TestWhatFailsIsToldAndTriedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := r.start()
	is := func(metric string, good func(float64) bool) {
		t.Helper()
		testkit.Eventually(t, patience, func() error {
			if got := d.metric(t, metric); !good(got) {
				return fmt.Errorf("%s is %v", metric, got)
			}
			return nil
		})
	}
	one := func(v float64) bool { return v == 1 }

	// A namespace that is full.
	r.Apply(
		t,
		"apiVersion: v1\nkind: ResourceQuota\nmetadata: {namespace: team-a, name: none}\nspec: {hard: {count/deployments.apps: '0'}}\n",
	)
	testkit.Eventually(t, patience, func() error {
		_, err := r.Client(t).CoreV1().ResourceQuotas(apart).Patch(t.Context(), "none", types.MergePatchType,
			[]byte(`{"status":{"hard":{"count/deployments.apps":"0"},"used":{"count/deployments.apps":"0"}}}`), metav1.PatchOptions{}, "status")
		return err
	})
	r.Apply(t, gateway(apart, "web", "", "")+gateway("default", "good", "", ""))
	r.event(apart, "web", "DeploymentFailed", "exceeded quota")
	is(`fairlead_gateways_gateways{result="failed"}`, one)
	r.has("default", "good-istio", standard...)
	testkit.NoError(t, r.Client(t).CoreV1().ResourceQuotas(apart).Delete(t.Context(), "none", metav1.DeleteOptions{}))
	r.has(apart, "web-istio", standard...)

	// Values that cannot be used.
	good, err := os.ReadFile(r.values)
	testkit.NoError(t, err)
	testkit.WriteFile(t, r.values, []byte("global: 1"))
	is("fairlead_gateways_values_stale", one)
	r.Apply(t, gateway(apart, "more", "", ""))
	r.has(apart, "more-istio", standard...)
	testkit.WriteFile(t, r.values, good)
	is("fairlead_gateways_values_stale", func(v float64) bool { return v == 0 })

	// A right that is missing.
	roles := r.Client(t).RbacV1().ClusterRoles()
	role, err := roles.Get(t.Context(), "fairlead-gateways", metav1.GetOptions{})
	testkit.NoError(t, err)
	var less []rbacv1.PolicyRule
	for _, rule := range role.Rules {
		if len(rule.Resources) > 0 && rule.Resources[0] != "deployments" {
			less = append(less, rule)
		}
	}
	if len(less) == len(role.Rules) {
		t.Fatal(errors.New("the role has no rule for Deployments"))
	}
	role.Rules = less
	_, err = roles.Update(t.Context(), role, metav1.UpdateOptions{})
	testkit.NoError(t, err)
	testkit.NoError(t, d.Stop(patience))
	d = r.start()
	is("fairlead_gateways_watch_failures_total", func(v float64) bool { return v > 0 })
}
