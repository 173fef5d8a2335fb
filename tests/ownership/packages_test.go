package ownership

import (
	"flag"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the lists of packages into the READMEs of services and pkg")

type productPackage struct {
	dir, synopsis string
	lines, files  int
}

// productPackages lists the packages below a folder, with the lines and files that are neither tests nor generated.
// Packages for tests alone, whose names end with "test" or that are below testkit, are left out.
func productPackages(t *testing.T, below string) []productPackage {
	t.Helper()
	var list []productPackage
	err := filepath.WalkDir(filepath.Join(root, below), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		if name := entry.Name(); name == "testdata" || name == "testkit" || strings.HasSuffix(name, "test") {
			return fs.SkipDir
		}
		names, err := filepath.Glob(filepath.Join(path, "*.go"))
		if err != nil {
			return err
		}
		dir, _ := filepath.Rel(root, path)
		p := productPackage{dir: dir}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			syntax, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments|parser.PackageClauseOnly)
			if err != nil {
				return err
			}
			if strings.HasSuffix(name, "_test.go") || ast.IsGenerated(syntax) {
				continue
			}
			p.files++
			p.lines += strings.Count(string(text), "\n")
			if s := new(doc.Package).Synopsis(syntax.Doc.Text()); s != "" {
				p.synopsis = s
			}
		}
		if p.files > 0 {
			list = append(list, p)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// mostLines and mostFiles are what one package may have: a room that has grown beyond them is divided.
const mostLines, mostFiles = 3500, 25

func TestPackagesStaySmall(t *testing.T) {
	n := 0
	for _, below := range []string{"pkg", "proto", "samples", "services", "tests", "tools"} {
		for _, p := range productPackages(t, below) {
			n++
			if p.lines > mostLines || p.files > mostFiles {
				t.Errorf("%s has %d lines in %d files, more than %d or %d: divide it", p.dir, p.lines, p.files, mostLines, mostFiles)
			}
		}
	}
	if n < 200 {
		t.Errorf("only %d packages were found", n)
	}
}

// TestPackageListsAreCurrent compares the list of packages of each service's README, and of pkg's, with the packages'
// first sentences. With -update, which `make generate` gives it, it writes them.
func TestPackageListsAreCurrent(t *testing.T) {
	const begin, end = "<!-- packages: written by `make generate` from their first sentences -->\n", "<!-- end of packages -->\n"
	readmes := map[string]string{"pkg/README.md": "pkg"}
	for _, s := range services(t) {
		readmes["services/"+s+"/README.md"] = "services/" + s + "/internal"
	}
	for readme, below := range readmes {
		var table strings.Builder
		table.WriteString("| package | what it does |\n|---|---|\n")
		for _, p := range productPackages(t, below) {
			name := strings.TrimPrefix(p.dir, below+"/")
			words := strings.Fields(p.synopsis)
			if len(words) < 3 || words[0] != "Package" || words[1] != filepath.Base(name) {
				t.Errorf("%s: its comment must begin with %q and a sentence, not with %q", p.dir, "Package "+filepath.Base(name), p.synopsis)
				continue
			}
			table.WriteString("| `" + name + "` | " + strings.ReplaceAll(strings.Join(words[2:], " "), "|", "\\|") + " |\n")
		}
		text := read(t, readme)
		before, rest, found := strings.Cut(text, begin)
		list, after, closed := strings.Cut(rest, end)
		if !found || !closed {
			t.Errorf("%s has no place for the list of packages: %q and %q", readme, begin, end)
			continue
		}
		if list == table.String() {
			continue
		}
		if !*update {
			t.Errorf("%s: the list of packages is not current: run `make generate`", readme)
			continue
		}
		if err := os.WriteFile(filepath.Join(root, readme), []byte(before+begin+table.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEveryPackageSaysWhatItDoes(t *testing.T) {
	for _, below := range []string{"pkg", "proto/fairlead/contract", "services", "tests"} {
		for _, p := range productPackages(t, below) {
			if p.synopsis == "" {
				t.Errorf("%s has no package comment", p.dir)
			}
		}
	}
}
