package alerts

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestMain runs the tests. After all of them with promtool it looks at what they have seen together.
func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if all := flag.Lookup("test.run").Value.String() == ""; code == 0 && all && os.Getenv("PROMETHEUS_BIN") != "" {
		for _, problem := range uncovered() {
			fmt.Println("FAIL:", problem)
			code = 1
		}
	}
	os.Exit(code)
}

// unprovoked is an entry of unprovoked.yaml.
type unprovoked struct{ Why, Shown string }

func readUnprovoked() (map[string]unprovoked, error) {
	content, err := os.ReadFile("unprovoked.yaml")
	if err != nil {
		return nil, err
	}
	out := map[string]unprovoked{}
	return out, yaml.UnmarshalStrict(content, &out)
}

// TestUnprovokedAlertsAreShownElsewhere holds that the entries of unprovoked.yaml are alerts, and that the tests are
// there which they name.
func TestUnprovokedAlertsAreShownElsewhere(t *testing.T) {
	entries, err := readUnprovoked()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, s := range load(t) {
		alerts, common := s.Alerts()
		for _, r := range alerts {
			known[s.Name+"/"+r.Alert] = true
			known["*/"+r.Alert] = known["*/"+r.Alert] || common[r.Alert]
		}
	}
	for name, e := range entries {
		if known[name] && e.Why != "" && e.Shown == "" {
			continue
		}
		file, test, _ := strings.Cut(e.Shown, " ")
		content, err := os.ReadFile(filepath.Join(root, file))
		if !known[name] || e.Why == "" || err != nil || !strings.Contains(string(content), "func "+test+"(") {
			t.Errorf("unprovoked.yaml: %s: %+v: no alert, no reason or no test: %v", name, e, err)
		}
	}
}

// uncovered lists alerts that no fault has fired and unprovoked.yaml does not excuse, or that it excuses for nothing,
// and metrics of rules and dashboards that no service has shown and none makes.
func uncovered() []string {
	entries, err := readUnprovoked()
	if err != nil {
		return []string{err.Error()}
	}
	services, err := Load(root)
	if err != nil {
		return []string{err.Error()}
	}
	var problems []string
	wanted := map[string]string{}
	for _, s := range services {
		alerts, _ := s.Alerts()
		for _, r := range alerts {
			_, one := entries[s.Name+"/"+r.Alert]
			_, every := entries["*/"+r.Alert]
			if excused := one || every; excused == fired[s.Name+"/"+r.Alert] {
				problems = append(problems, fmt.Sprintf("%s of %s: fired by a fault: %v, in unprovoked.yaml: %v", r.Alert, s.Name, !excused, excused))
			}
		}
		for _, g := range s.Groups {
			for _, r := range g.Rules {
				seen[r.Record] = true
				for _, m := range Metrics(r.Expr) {
					wanted[m] = s.Name
				}
			}
		}
		content, err := os.ReadFile(filepath.Join(s.Dir, "dashboard.json"))
		if err != nil {
			return append(problems, err.Error())
		}
		for _, expr := range regexp.MustCompile(`"expr": "(.*)"`).FindAllStringSubmatch(string(content), -1) {
			for _, m := range Metrics(strings.ReplaceAll(expr[1], `\"`, `"`)) {
				wanted[m] = s.Name
			}
		}
	}
	for _, m := range slices.Sorted(maps.Keys(wanted)) {
		if !seen[m] && !made(m, wanted[m]) {
			problems = append(problems, fmt.Sprintf("%s shows or watches %s, which is no metric of it", wanted[m], m))
		}
	}
	return problems
}

// made tells whether the source of a service names a metric: some are there only with certain flags.
func made(metric, service string) bool {
	name := strings.TrimPrefix(metric, "fairlead_"+strings.ReplaceAll(service, "-", "_")+"_")
	for _, suffix := range []string{"_bucket", "_count", "_sum"} {
		name = strings.TrimSuffix(name, suffix)
	}
	found := false
	_ = filepath.WalkDir(filepath.Join(root, "services", service, "internal"), func(path string, d os.DirEntry, err error) error {
		if err != nil || found || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		content, err := os.ReadFile(path)
		found = strings.Contains(string(content), name+`"`)
		return err
	})
	return found
}
