package oracle

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/tests/internal/binaries"
)

var (
	seed    = flag.Uint64("seed", 1, "seed of the random objects")
	drawn   = flag.Int("random", 1200, "how many objects are drawn")
	most    = flag.Int("most", 20, "how many unlisted differences are printed")
	mutants = flag.Int("mutants", 6000, "how many objects are changed ones of others")
)

// root is the repository.
const root = "../.."

// fewest is how many objects must be judged for the result to say something.
const fewest = 2000

// judges finds istioctl and config-watcher. `make oracle` provides both; elsewhere the test is skipped.
func judges(t *testing.T) (istioctl, watcher string) {
	t.Helper()
	dir := os.Getenv("ISTIO_BIN")
	if dir == "" {
		t.Skip("ISTIO_BIN names no directory with istioctl: run `make oracle`")
	}
	if dir := os.Getenv("BIN_DIR"); dir != "" {
		return filepath.Join(os.Getenv("ISTIO_BIN"), "istioctl"), filepath.Join(dir, "config-watcher")
	}
	watcher = filepath.Join(t.TempDir(), "config-watcher")
	if err := binaries.Build(t.Context(), watcher, "fairlead.dev/services/config-watcher/cmd/config-watcher"); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "istioctl"), watcher
}

// collected are all objects, by where they come from.
type collected struct {
	ours, corpus, drawn, mutants []Object
}

func collectAll(t *testing.T) collected {
	t.Helper()
	gather := func(from func() ([]Object, error)) []Object {
		objects, err := from()
		if err != nil {
			t.Fatal(err)
		}
		return objects
	}
	var c collected
	ours := gather(func() ([]Object, error) { return Scenarios(root) })
	for _, dir := range []string{"tests/scenarios/corpus", "samples", "deploy"} {
		ours = append(ours, gather(func() ([]Object, error) { return Files(root, dir) })...)
	}
	ours = append(ours, gather(func() ([]Object, error) { return Pages(root) })...)
	c.ours = distinct(ours)
	c.corpus = gather(func() ([]Object, error) { return Files(root, "tests/oracle/corpus") })
	c.drawn = gather(func() ([]Object, error) { return Random(*seed, *drawn) })
	// Of the corpus alone: a new scenario or page does not change what is drawn.
	c.mutants = gather(func() ([]Object, error) { return Mutants(*seed, *mutants, c.corpus) })
	return c
}

// TestVerdicts asks istioctl and config-watcher about all objects. Where their verdicts differ, the tables must say
// why, and every row of the tables must show in its example.
func TestVerdicts(t *testing.T) {
	istioctl, watcher := judges(t)
	c := collectAll(t)
	objects := slices.Concat(c.ours, c.corpus, c.drawn, c.mutants)
	began := time.Now()
	both, err := Judge(context.Background(), istioctl, watcher, t.TempDir(), objects)
	if err != nil {
		t.Fatal(err)
	}
	hit := map[string]bool{}
	var accepted, refused, listed, unlisted int
	for _, b := range both {
		switch {
		case !b.Differ() && len(b.Istio) > 0:
			refused++
			continue
		case !b.Differ():
			accepted++
			continue
		}
		rows, direction, sentences := explain(b)
		for _, i := range rows {
			hit[fmt.Sprint(direction, i, filepath.Base(b.Origin))] = true
		}
		if len(sentences) == 0 {
			listed++
			continue
		}
		if unlisted++; unlisted <= *most {
			t.Errorf("%s: %s:\n  %s\n%s\nmend the verdict, or give it a row in Stricter or Laxer", b.Origin, direction,
				strings.Join(sentences, "\n  "), b.YAML())
		}
	}
	t.Logf("%d objects judged in %s: %d of ours, %d of the corpus, %d drawn and %d changed with seed %d", len(objects),
		time.Since(began).Round(time.Second/10),
		len(c.ours), len(c.corpus), len(c.drawn), len(c.mutants), *seed)
	t.Logf("%d accepted by both, %d refused by both, %d differ as listed, %d differ otherwise", accepted, refused, listed, unlisted)
	if len(c.ours)+len(c.corpus) < fewest {
		t.Errorf("%d objects of ours and of the corpus are too few", len(c.ours)+len(c.corpus))
	}
	stale := func(direction string, table []Difference) {
		for i, d := range table {
			if d.Example == "" {
				continue // no object shows it every time
			}
			file, object, _ := strings.Cut(d.Example, ": ")
			if !hit[fmt.Sprint(direction, i, file+".yaml: "+object)] {
				t.Errorf("%s: no difference in %q, the example of %q: correct the example, or remove the row", direction, d.Example, d.What)
			}
		}
	}
	stale("Fairlead refuses, Istio accepts", Stricter)
	stale("Istio refuses, Fairlead accepts", Laxer)
}

// TestCorpusIsDistinct finds objects of the corpus that add nothing.
func TestCorpusIsDistinct(t *testing.T) {
	objects, err := Files(root, "tests/oracle/corpus")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for _, o := range objects {
		if !o.Judged() {
			t.Errorf("%s: %s is no kind that istioctl judges", o.Origin, o.Kind())
		}
		if other := seen[o.identity()]; other != "" {
			t.Errorf("%s says the same as %s: remove one of them", o.Origin, other)
		}
		seen[o.identity()] = o.Origin
	}
}

// TestPage keeps the page of the tables.
func TestPage(t *testing.T) {
	testkit.Golden(t, filepath.Join(root, "docs", "reference", "validation-differences.md"), []byte(Page()))
}

// own are scenarios with objects that Istio refuses, and why they have them. A scenario that expects the refusal of an
// object is none.
var own = map[string]string{}

// TestScenariosAreIstios asks istioctl about what scenarios apply: anyone must be able to take it to a cluster.
func TestScenariosAreIstios(t *testing.T) {
	istioctl, watcher := judges(t)
	all, err := Scenarios(root)
	if err != nil {
		t.Fatal(err)
	}
	all = slices.DeleteFunc(all, func(o Object) bool { return !o.Judged() || o.Refused })
	both, err := Judge(context.Background(), istioctl, watcher, t.TempDir(), all)
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{}
	for _, b := range both {
		name, _, _ := strings.Cut(b.Origin, ".yaml/")
		if len(b.Istio) == 0 {
			continue
		}
		shown[name] = true
		if own[name] == "" {
			t.Errorf("%s: Istio refuses it: %s\nrewrite it, or say in `own` why the scenario needs it", b.Origin, strings.Join(b.Istio, "; "))
		}
	}
	for name := range own {
		if !shown[name] {
			t.Errorf("%s has nothing that Istio refuses: remove it from `own`", name)
		}
	}
	t.Logf("%d objects of scenarios, %d scenarios with reasons", len(all), len(own))
}
