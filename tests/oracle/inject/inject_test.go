package inject

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/process"
)

var (
	seed   = flag.Uint64("seed", 1, "seed of the drawn workloads")
	drawn  = flag.Int("drawn", 400, "how many workloads are drawn")
	start  = flag.Int("start", 0, "the first of the drawn ones")
	update = flag.Bool("update", false, "write docs/reference/injection-differences.md")
)

// root is the repository.
const root = "../../.."

// programs finds istioctl, builds fairlead unless `make oracle` has, and renders Configs.
func programs(t *testing.T) (istioctl, fairlead Program) {
	t.Helper()
	path := binaries.Istioctl(t)
	bin := os.Getenv("BIN_DIR")
	if bin == "" {
		bin = t.TempDir()
		if err := binaries.Build(t.Context(), bin+"/", "fairlead.dev/services/installer/cmd/fairlead"); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	istioctl, fairlead = Program{path, dir}, Program{filepath.Join(bin, "fairlead"), dir}
	if err := os.WriteFile(filepath.Join(dir, "none"), []byte("apiVersion: v1\nkind: Config\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	manifests := binaries.IstioManifests(t)
	for name, set := range Configs {
		render(t, istioctl.Path, manifests, filepath.Join(dir, name), set)
	}
	return istioctl, fairlead
}

// render writes the ConfigMaps of an installation of Istio as files.
func render(t *testing.T, istioctl, manifests, dir string, set []string) {
	t.Helper()
	a := []string{"manifest", "generate", "--manifests", manifests}
	for _, s := range set {
		a = append(a, "--set", s)
	}
	out := process.MustDo(t, exec.CommandContext(t.Context(), istioctl, a...)) //nolint:gosec // the program that the test compares with
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for doc := range strings.SplitSeq(out, "\n---\n") {
		if !strings.Contains(doc, "kind: ConfigMap\n") {
			continue
		}
		var m struct {
			Metadata struct{ Name string }
			Data     map[string]string
		}
		if err := yaml.Unmarshal([]byte(doc), &m); err != nil {
			t.Fatal(err)
		}
		switch m.Metadata.Name {
		case "istio":
			found["mesh"] = m.Data["mesh"]
		case "istio-sidecar-injector":
			found["config"], found["values"] = m.Data["config"], m.Data["values"]
		}
	}
	for _, key := range []string{"mesh", "config", "values"} {
		if found[key] == "" {
			t.Fatalf("istioctl %v makes no %s", a, key)
		}
		if err := os.WriteFile(filepath.Join(dir, key), []byte(found[key]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func corpus(t *testing.T) []Case {
	t.Helper()
	text, err := os.ReadFile("corpus.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var cases []Case
	if err := yaml.UnmarshalStrict(text, &cases); err != nil {
		t.Fatal(err)
	}
	return cases
}

// batches groups cases that one run of a program can take; broken ones are alone.
func batches(cases []Case) [][]Case {
	groups := map[string][]Case{}
	for _, c := range cases {
		key := fmt.Sprint(c.Config, c.Native)
		if c.Broken {
			key = c.Name
		}
		groups[key] = append(groups[key], c)
	}
	var all [][]Case
	for _, g := range groups {
		all = append(all, g)
	}
	return all
}

type tally struct {
	same, refused, listed, unlisted int
	shown                           map[string][]*Difference
	// injected are istioctl's, to be injected again.
	injected []Case
}

func (n *tally) compare(ctx context.Context, t *testing.T, istioctl, fairlead Program, cases []Case, again bool) {
	t.Helper()
	istio, err := istioctl.Run(ctx, cases)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := fairlead.Run(ctx, cases)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range cases {
		differ, rows, err := Explain(c, istio[i], ours[i])
		switch {
		case err != nil:
			t.Errorf("%s: %v", c.Name, err)
		case !differ && istio[i].Refused != "":
			n.refused++
		case !differ:
			n.same++
		case rows != nil:
			n.listed++
			n.shown[c.Name] = rows
		default:
			n.unlisted++
			t.Errorf("%s differs; istioctl says %s, fairlead says %s\n%s\n%s", c.Name, istio[i].Refused, ours[i].Refused, c.Text(),
				changed(t, istio[i].Document, ours[i].Document))
		}
		if !c.Broken && istio[i].Refused != "" {
			t.Logf("%s is refused: %s", c.Name, strings.TrimSpace(ours[i].Refused))
		}
		// Of a CronJob istioctl does not find again what it has injected.
		if !again && istio[i].Refused == "" && strings.Contains(istio[i].Document, "sidecar.istio.io/status") &&
			!strings.Contains(c.Document, "kind: CronJob") {
			c.Name, c.Document = c.Name+", injected again", istio[i].Document
			n.injected = append(n.injected, c)
		}
	}
}

// changed shows what differs, - of istioctl, + of fairlead.
func changed(t *testing.T, istio, ours string) string {
	t.Helper()
	dir := t.TempDir()
	a, b := filepath.Join(dir, "istioctl"), filepath.Join(dir, "fairlead")
	if os.WriteFile(a, []byte(istio+"\n"), 0o600) != nil || os.WriteFile(b, []byte(ours+"\n"), 0o600) != nil {
		return istio + "\n" + ours
	}
	out, _ := exec.CommandContext(t.Context(), "diff", "-U2", a, b).Output() //nolint:gosec // files of the test
	return string(out)
}

// TestInjections runs both programs on the corpus and on drawn workloads, and then on what istioctl has injected. Where
// verdict or objects differ, rows of Differences must say why, and every row must show in its example.
func TestInjections(t *testing.T) {
	istioctl, fairlead := programs(t)
	cases := corpus(t)
	for n := *start; n < *start+*drawn; n++ {
		cases = append(cases, Draw(*seed, n))
	}
	n := tally{shown: map[string][]*Difference{}}
	for _, b := range batches(cases) {
		n.compare(t.Context(), t, istioctl, fairlead, b, false)
	}
	t.Logf("%d workloads: %d are injected to the same objects, %d are refused by both, %d differ as listed, %d differ otherwise",
		len(cases), n.same, n.refused, n.listed, n.unlisted)
	if n.same < *drawn/2 || *drawn >= 100 && n.refused == 0 {
		t.Errorf("%d workloads that both inject and %d that both refuse are too few of %d", n.same, n.refused, len(cases))
	}
	for i := range Differences {
		if d := &Differences[i]; !slices.Contains(n.shown[d.Example], d) {
			t.Errorf("no difference in %q, the example of %q: correct the example, or remove the row", d.Example, d.What)
		}
	}
	second := tally{shown: map[string][]*Difference{}}
	for _, b := range batches(n.injected) {
		second.compare(t.Context(), t, istioctl, fairlead, b, true)
	}
	t.Logf("%d injected workloads, injected again: %d to the same objects, %d differ as listed, %d differ otherwise",
		len(n.injected), second.same, second.listed, second.unlisted)
}

// TestPage keeps the page of the table.
func TestPage(t *testing.T) {
	file := filepath.Join(root, "docs", "reference", "injection-differences.md")
	if *update {
		if err := os.WriteFile(file, []byte(Page()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil || string(text) != Page() {
		t.Errorf("%s is not what the table says: run `make golden` (%v)", file, err)
	}
}

// TestRowsHaveExamples finds rows whose example is not in the corpus, before anything runs.
func TestRowsHaveExamples(t *testing.T) {
	cases := corpus(t)
	for _, d := range Differences {
		if !slices.ContainsFunc(cases, func(c Case) bool { return c.Name == d.Example }) {
			t.Errorf("%q has the example %q, which is not in corpus.yaml", d.What, d.Example)
		}
	}
}
