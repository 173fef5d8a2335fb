package kube

import (
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/tests/internal/kubeapi"
)

// A real API server takes every definition of the chart base, and checks an IdentityBan by ours as config-watcher does.
func TestDefinitionsOnARealAPIServer(t *testing.T) {
	s := kubeapi.Start(t, kubeapi.Options{})
	for _, dir := range []string{"crds", "gateway-api/standard", "gateway-api/experimental"} {
		files, err := filepath.Glob("../../services/installer/manifests/charts/base/files/" + dir + "/*.*.*.yaml")
		if err != nil {
			t.Fatal(err)
		}
		if names := s.ApplyCRDs(t, files...); len(names) != len(files) || len(names) < 10 {
			t.Errorf("%s: %d files hold %d definitions", dir, len(files), len(names))
		}
	}
	for name, tc := range map[string]struct{ spec, want string }{
		"a ban":           {"{identity: spiffe://cluster.local/ns/a/sa/b, reason: stolen, until: '2030-01-01T00:00:00Z'}", ""},
		"no identity":     {"{reason: stolen}", "spec.identity"},
		"no workload":     {"{identity: spiffe://cluster.local/a}", "spec.identity"},
		"a long reason":   {"{identity: spiffe://cluster.local/ns/a/sa/b, reason: " + strings.Repeat("x", 501) + "}", "spec.reason"},
		"no time":         {"{identity: spiffe://cluster.local/ns/a/sa/b, until: tomorrow}", "spec.until"},
		"an unknown part": {"{identity: spiffe://cluster.local/ns/a/sa/b, unless: x}", "unless"},
	} {
		t.Run(name, func(t *testing.T) {
			objects, err := kubeapi.Decode([]byte("{apiVersion: fairlead.dev/v1, kind: IdentityBan, metadata: {name: x}, spec: " + tc.spec + "}"))
			if err != nil {
				t.Fatal(err)
			}
			err = kubeapi.Apply(t.Context(), s.Config, objects...)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("the answer is %v, want %q", err, tc.want)
			}
		})
	}
}
