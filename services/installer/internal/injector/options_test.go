package injector

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"fairlead.dev/pkg/testkit"
)

// TestAKubeconfigNamesTheAPIServer holds what --kubeconfig and --kube-context mean.
func TestAKubeconfigNamesTheAPIServer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	testkit.WriteFile(t, file, []byte(`{apiVersion: v1, kind: Config, current-context: west,
clusters: [{name: west, cluster: {server: "https://127.0.0.1:1"}}, {name: east, cluster: {server: "https://127.0.0.1:2"}}],
contexts: [{name: west, context: {cluster: west}}, {name: east, context: {cluster: east}}]}`))
	for context, want := range map[string]string{"": "https://127.0.0.1:1", "east": "https://127.0.0.1:2"} {
		if config, err := connect(file, context); err != nil || config.Host != want {
			t.Errorf("context %q: %+v, %v", context, config, err)
		}
	}
	if _, err := connect(file, "north"); err == nil || !strings.Contains(err.Error(), "north") {
		t.Errorf("a context that is not there: %v", err)
	}
	var o Options
	flags := pflag.NewFlagSet("fairlead-injector", pflag.ContinueOnError)
	o.AddFlags(flags)
	testkit.NoError(t, flags.Parse([]string{"--kube-context=east"}))
	if err := o.check(); err == nil || !strings.Contains(err.Error(), "--kube-context: needs --kubeconfig") {
		t.Errorf("a context alone: %v", err)
	}
}
