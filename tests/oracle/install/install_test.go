package install

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"fairlead.dev/tests/internal/binaries"
)

var (
	seed   = flag.Uint64("seed", 1, "seed of the drawn IstioOperators")
	drawn  = flag.Int("drawn", 100, "how many IstioOperators are drawn")
	start  = flag.Int("start", 0, "the first of the drawn ones")
	update = flag.Bool("update", false, "write docs/reference/install-differences.md")
)

// root is the repository.
const root = "../../.."

// programs finds istioctl, and builds fairlead unless `make oracle` has.
func programs(t *testing.T) Programs {
	t.Helper()
	istioctl := binaries.Istioctl(t)
	bin := os.Getenv("BIN_DIR")
	if bin == "" {
		bin = t.TempDir()
		if err := binaries.Build(t.Context(), bin+"/", "fairlead.dev/services/installer/cmd/fairlead"); err != nil {
			t.Fatal(err)
		}
	}
	return Programs{Istioctl: istioctl, Fairlead: filepath.Join(bin, "fairlead"), Manifests: binaries.IstioManifests(t)}
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

// result is the outcome of one case.
type result struct {
	Case
	istio, ours Outcome
	differing   []string
	row         *Difference
}

// TestInstallations runs both programs on the corpus and on drawn IstioOperators. Where verdict or objects differ, a
// row of Differences must say why, and every row must show in its example.
func TestInstallations(t *testing.T) {
	p := programs(t)
	cases := corpus(t)
	for n := *start; n < *start+*drawn; n++ {
		cases = append(cases, Draw(*seed, n))
	}
	results := make([]result, len(cases))
	work := make(chan int)
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() {
			dir := t.TempDir()
			for i := range work {
				if late(t) {
					continue // of the drawn ones; the rest is for another run
				}
				results[i] = one(t.Context(), t, p, dir, cases[i])
			}
		})
	}
	for i := range cases {
		work <- i
	}
	close(work)
	group.Wait()
	var same, refused, listed, unlisted int
	shown := map[string]*Difference{}
	judged := 0
	for _, r := range results {
		if r.Name == "" {
			continue
		}
		judged++
		switch {
		case len(r.differing) == 0 && r.istio.Refused != "":
			refused++
		case len(r.differing) == 0:
			same++
		case r.row != nil:
			listed++
			shown[r.Name] = r.row
		default:
			unlisted++
		}
	}
	t.Logf("%d installations, %d of the corpus: %d generate the same objects, %d are refused by both, %d differ as listed, %d differ "+
		"otherwise",
		judged, len(cases)-*drawn, same, refused, listed, unlisted)
	for i := range Differences {
		if d := &Differences[i]; shown[d.Example] != d {
			t.Errorf("no difference in %q, the example of %q: correct the example, or remove the row", d.Example, d.What)
		}
	}
	if same < judged/4 {
		t.Errorf("%d installations that both generate are too few of %d", same, judged)
	}
}

func one(ctx context.Context, t *testing.T, p Programs, dir string, c Case) result {
	t.Helper()
	r := result{Case: c}
	var err error
	if r.istio, r.ours, err = p.Run(ctx, dir, c); err != nil {
		t.Errorf("%s: %v", c.Name, err)
		return r
	}
	if r.differing, err = Differing(r.istio, r.ours); err != nil {
		t.Errorf("%s: %v", c.Name, err)
		return r
	}
	if len(r.differing) > 0 {
		if r.row = Explain(c, r.istio, r.ours, r.differing); r.row == nil {
			t.Errorf("%s differs in %v\nistioctl: %s\nfairlead: %s\n%s", r.Name, r.differing, r.istio.Refused, r.ours.Refused, r.Text())
		}
	}
	r.istio.Objects, r.ours.Objects = nil, nil
	return r
}

// late tells that the test's deadline is near.
func late(t *testing.T) bool {
	deadline, ok := t.Deadline()
	return ok && time.Until(deadline) < time.Minute
}

// TestPage keeps the page of the table.
func TestPage(t *testing.T) {
	file := filepath.Join(root, "docs", "reference", "install-differences.md")
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
