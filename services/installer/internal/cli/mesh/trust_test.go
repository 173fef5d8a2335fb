package mesh_test

import (
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/installer/internal/cli/clitest"
)

// Flags that do not go together are refused before any cluster is asked.
func TestFlagsOfTrust(t *testing.T) {
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	testkit.WriteFile(t, rules, []byte("- {namespace: default, job: web, account: shop/web, tasks: x}\n"))
	for name, tc := range map[string]struct {
		args []string
		says string
	}{
		"nothing":                        {nil, "--context is required"},
		"rules for one of Kubernetes":    {[]string{"--context", "east", "--nomad-rules", rules}, "--nomad-rules has no effect without --nomad"},
		"a context and Nomad":            {[]string{"--context", "east", "--nomad", "https://n", "--name", "n"}, "--primary-context"},
		"Nomad without a name":           {[]string{"--nomad", "https://n"}, "--name is required"},
		"a rule with a field not known":  {[]string{"--nomad", "https://n", "--name", "n", "--nomad-rules", rules}, "field tasks not found"},
		"rules that are not there":       {[]string{"--nomad", "https://n", "--name", "n", "--nomad-rules", rules + "x"}, "--nomad-rules: "},
		"namespaces without one of them": {[]string{"--context", "east", "--namespaces", ""}, "--namespaces names none"},
	} {
		t.Run(name, func(t *testing.T) {
			_, code, err := clitest.Run("", append([]string{"remote-clusters", "trust"}, tc.args...)...)
			if err == nil || !strings.Contains(err.Error(), tc.says) || code != process.ExitUsage {
				t.Errorf("exit code %d, %v; want an error of usage with %q", code, err, tc.says)
			}
		})
	}
}
