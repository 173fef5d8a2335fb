package install_test

import (
	"path/filepath"
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/installer/internal/cli/clitest"
	"fairlead.dev/services/installer/internal/install/cluster/clustertest"
)

func TestTheRemovalOfATagNamesWhoUsesIt(t *testing.T) {
	const tags = `
{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {istio.io/rev: prod}}}
---
{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, metadata: {name: prod, labels: {istio.io/tag: prod, istio.io/rev: canary}}}
---
{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, metadata: {name: idle, labels: {istio.io/tag: idle, istio.io/rev: canary}}}
`
	s := clustertest.Start(t, tags)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	testkit.WriteFile(t, kubeconfig,
		[]byte("{clusters: [{name: a, cluster: {server: '"+s.URL+"'}}], contexts: [{name: a, context: {cluster: a}}], current-context: a}"))
	for _, tc := range []struct{ tag, want string }{
		{"prod", "warning: namespaces shop are injected by tag prod, which is removed\ntag prod removed\n"}, {"idle", "tag idle removed\n"},
	} {
		if out, _, err := clitest.Run("", "tag", "remove", tc.tag, "-y", "--kubeconfig", kubeconfig); err != nil || out != tc.want {
			t.Errorf("%q, %v", out, err)
		}
	}
}
