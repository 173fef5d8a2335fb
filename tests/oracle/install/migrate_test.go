package install

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fairlead.dev/tests/internal/process"
)

// TestMigratedInstallations migrates the IstioOperators of the corpus and drawn ones: what `manifest generate` makes of
// the migrated one is what it makes of the original.
func TestMigratedInstallations(t *testing.T) {
	p := programs(t)
	cases := corpus(t)
	for n := *start; n < *start+*drawn; n++ {
		cases = append(cases, Draw(*seed, n))
	}
	migrated, dropped := 0, 0
	dir := t.TempDir()
	for _, c := range cases {
		if late(t) {
			break
		}
		if slices.Contains(c.Flags, "--force") {
			continue // what is forced is refused without
		}
		a, err := inputs(dir, c)
		if err != nil {
			t.Fatal(err)
		}
		answer := process.MustAsk(t, exec.CommandContext(t.Context(), p.Fairlead,
			append([]string{"manifest", "migrate", "--manifests", p.Manifests}, a...)...)) //nolint:gosec // the program under test
		before, err := generate(t.Context(), p.Fairlead, append([]string{"manifest", "generate", "--manifests", p.Manifests}, a...))
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Files) == 0 { // nothing to migrate: settings alone are no IstioOperator
			continue
		}
		if before.Refused != "" {
			dropped++
			continue
		}
		if answer.Code != 0 {
			t.Errorf("%s: manifest migrate refuses what manifest generate takes: %s\n%s", c.Name, answer.Said, c.Text())
			continue
		}
		file := filepath.Join(dir, "migrated.yaml")
		if err := os.WriteFile(file, []byte(answer.Out), 0o600); err != nil {
			t.Fatal(err)
		}
		after, err := generate(t.Context(), p.Fairlead, []string{"manifest", "generate", "--manifests", p.Manifests, "-f", file})
		if err != nil {
			t.Fatal(err)
		}
		if after.Refused != "" {
			t.Errorf("%s: what was migrated is refused: %s\n%s", c.Name, after.Refused, c.Text())
			continue
		}
		differ, err := Differing(before, after)
		if err != nil {
			t.Fatal(err)
		}
		// Istio's ConfigMap values is the inputs in writing: a migration leaves empty mappings out.
		differ = slices.DeleteFunc(differ, func(id string) bool {
			return strings.HasPrefix(id, "ConfigMap ") && strings.Contains(id, "/values")
		})
		if len(differ) > 0 {
			t.Errorf("%s: the migrated installation differs in %v\n%s\nmigrated:\n%s", c.Name, differ, c.Text(), answer.Out)
		}
		migrated++
	}
	t.Logf("%d installations are the same after migration, %d are refused before it", migrated, dropped)
	if migrated < 20 {
		t.Errorf("%d migrated installations are too few", migrated)
	}
}
