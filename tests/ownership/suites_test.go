package ownership

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// suites runs hack/suites.sh, which reads the table in CONTRIBUTING.md, with the paths that have changed.
func suites(t *testing.T, changed string, args ...string) (rows [][]string, names []string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), filepath.Join(root, "hack/suites.sh"), args...)
	command.Env = append(os.Environ(), "CHANGED="+changed)
	out, err := command.Output()
	if err != nil {
		t.Fatalf("hack/suites.sh %v: %v", args, err)
	}
	for line := range strings.Lines(string(out)) {
		row := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(row) != 4 || slices.Contains(row, "") {
			t.Fatalf("row %q of the table of suites in CONTRIBUTING.md wants a name, two commands and paths", line)
		}
		rows, names = append(rows, row), append(names, row[0])
	}
	return rows, names
}

func TestSuitesNameTargetsAndPathsThatExist(t *testing.T) {
	rows, names := suites(t, "")
	makefile := read(t, "Makefile")
	var paths []string
	for _, row := range rows {
		for _, command := range row[1:3] {
			if words := strings.Fields(command); len(words) < 2 || words[0] != "make" || !strings.Contains(makefile, "\n"+words[1]+":") {
				t.Errorf("suite %s: %q is no target of the Makefile", row[0], command)
			}
		}
		for _, path := range strings.Fields(row[3]) {
			if _, err := os.Stat(filepath.Join(root, path)); err != nil {
				t.Errorf("suite %s: %v", row[0], err)
			}
			paths = append(paths, path)
		}
	}
	if sorted := slices.Sorted(slices.Values(names)); len(slices.Compact(sorted)) != len(names) {
		t.Errorf("a suite stands twice: %v", names)
	}
	for _, service := range services(t) {
		if !slices.ContainsFunc(paths, func(p string) bool { return strings.HasPrefix(p+"/", "services/"+service+"/") }) {
			t.Errorf("no suite runs first for a change of services/%s", service)
		}
	}
}

func TestSuitesOfWhatChangedRunFirst(t *testing.T) {
	_, all := suites(t, "")
	for changed, first := range map[string][]string{
		"proto/buf.yaml": {"skew"},
		"tests/mutants/main.go\ntests/e2e/skew/PREVIOUS":  {"skew", "mutants"},
		"protocol/x README.md":                            nil,
		"services/xds-server/internal/class/key.go":       {"race", "tenants"},
		"services/node-agent/internal/redirect/rules.go ": {"scenarios", "race", "stock", "scenarios-iptables"},
	} {
		_, names := suites(t, changed, "order")
		if len(names) < len(first) || !slices.Equal(names[:len(first)], first) {
			t.Errorf("after a change of %q: %v, want %v first", changed, names, first)
		}
		slices.Sort(names)
		if !slices.Equal(names, slices.Sorted(slices.Values(all))) {
			t.Errorf("after a change of %q: %v, want each of %v once", changed, names, all)
		}
	}
}
