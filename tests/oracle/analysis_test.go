package oracle

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/process"
)

var drawnMeshes = flag.Int("meshes", 400, "how many random meshes are analyzed")

// TestAnalysis asks istioctl and config-watcher about files of the hand-written meshes and of random ones. With files
// alone istioctl runs a part of its checks; tests/kube asks about the same meshes in an API server.
func TestAnalysis(t *testing.T) {
	istioctl, watcher := judges(t)
	cases, err := Cases(root)
	if err != nil {
		t.Fatal(err)
	}
	for i := range *drawnMeshes {
		cases = append(cases, RandomMesh(*seed+uint64(i)))
	}
	began := time.Now()
	ask := func(text string) Analyses {
		t.Helper()
		file := filepath.Join(t.TempDir(), "mesh.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		a, err := Analyze(t.Context(), istioctl, watcher, []string{"--use-kube=false", file}, []string{file})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	var together strings.Builder
	for i, c := range cases {
		if !c.Shared() {
			together.WriteString("---\n" + c.In(i).YAML)
		}
	}
	all := ask(together.String())
	told, listed, shown, codes := 0, 0, Shown{}, map[string]bool{}
	for i, c := range cases {
		a := all.Of(i)
		if c.Shared() {
			a = ask(c.In(i).YAML)
		}
		told += len(a.Ours)
		unlisted, rows := a.Unlisted(true)
		listed += len(rows)
		shown.Add(c, rows)
		for _, f := range a.Ours {
			codes[f.Code] = true
		}
		if len(unlisted) > 0 {
			t.Errorf("%s:\n  %s\n%s\nmend the analysis, or give it a row in AnalysisDifferences", c.Name, strings.Join(unlisted, "\n  "),
				c.In(i).YAML)
		}
	}
	for _, stale := range shown.Stale(true) {
		t.Error(stale)
	}
	for line := range strings.Lines(process.MustDo(t, exec.CommandContext(t.Context(), watcher, "analyze", "-L"))) {
		// A defect of the analysis has no case; CredentialExpired and CredentialUnusable share a code.
		if code := strings.Fields(line)[1]; code != "-" && code != "IST0001" && !codes[code] {
			t.Errorf("no case makes Fairlead tell %s", strings.TrimSpace(line))
		}
	}
	t.Logf("%d meshes analyzed in %s: %d messages of Fairlead, %d differences as listed", len(cases), time.Since(began).Round(time.Second/10),
		told, listed)
}

// TestAnalysisExamples finds rows whose example is no case.
func TestAnalysisExamples(t *testing.T) {
	cases, err := Cases(root)
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, c := range cases {
		if known[c.Name] {
			t.Errorf("two cases are called %q", c.Name)
		}
		known[c.Name] = true
	}
	for _, d := range AnalysisDifferences {
		if !known[d.Example] {
			t.Errorf("%s: no case is called %q", d.What, d.Example)
		}
	}
}

// TestPageOfAnalysis keeps the page of the table.
func TestPageOfAnalysis(t *testing.T) {
	testkit.Golden(t, filepath.Join(root, "docs", "reference", "analysis-differences.md"), []byte(AnalysisPage()))
}
